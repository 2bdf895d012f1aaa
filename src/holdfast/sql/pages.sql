-- Reads for the pages. One statement brings everything that a page shows of an event, so that a page stays cheap.
-- Due holds are read in the order of their index, for the reason given in reads.sql.

-- name: org
SELECT id, slug, name, colour, logo_hash, frame_origins FROM org WHERE slug = $1

-- name: org_by_id
SELECT id, slug, name, colour, logo_hash, frame_origins FROM org WHERE id = $1

-- name: org_of_event
-- The org of a published event.
SELECT org.id, org.slug, org.name, org.colour, org.logo_hash, org.frame_origins
FROM event JOIN org ON org.id = event.org_id WHERE event.id = $1 AND event.published_at IS NOT NULL

-- name: orgs_on_sale
-- Two rows are enough to know that several orgs sell here.
SELECT id, slug, name, colour, logo_hash, frame_origins FROM org
WHERE EXISTS (SELECT FROM event WHERE event.org_id = org.id AND event.status = 'active' AND event.seat_count >= 0)
ORDER BY slug LIMIT 2

-- fragment: upcoming_filters
-- Each of :patterns has to match, as in `scanned_fields`. Days are those of the event's own time zone: something has to start
-- between the times that its zone has in the arrays, unless :any_day.
status = 'active' AND published_at IS NOT NULL AND (cardinality(:patterns::text[]) = 0 OR NOT EXISTS (
    SELECT FROM unnest(:patterns::text[]) AS pattern
    WHERE concat_ws(' ', title, place, (SELECT title FROM series WHERE series.id = event.series_id)) NOT ILIKE pattern
)) AND (:any_day OR EXISTS (
    SELECT FROM unnest(:zones::text[], :day_starts::timestamptz[], :day_ends::timestamptz[]) AS day (zone, starts_at, ends_at)
    WHERE day.zone = event.timezone AND event.starts_at < day.ends_at
      AND greatest(event.starts_at, event.last_slot_at) >= day.starts_at
))
ORDER BY starts_at, id LIMIT :scan_max

-- name: cards_of_org
-- What an org has on sale, soonest first: one card for each series or other event, after the card (:after_at, :after_id),
-- with up to :dates_max events each. Events that are under way come from their own index.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
upcoming AS MATERIALIZED (
    (SELECT id, series_id, starts_at FROM event
     WHERE org_id = :org AND starts_at > '-infinity' AND starts_at > (SELECT at FROM clock) AND {{upcoming_filters}})
    UNION ALL
    (SELECT id, series_id, starts_at FROM event
     WHERE org_id = :org AND listed_until > starts_at AND listed_until > (SELECT at FROM clock)
       AND starts_at <= (SELECT at FROM clock) AND {{upcoming_filters}})
), {{cards}}

-- name: cards_of_all_orgs
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
upcoming AS MATERIALIZED (
    (SELECT id, series_id, starts_at FROM event
     WHERE tax_bps >= 0 AND starts_at > (SELECT at FROM clock) AND {{upcoming_filters}})
    UNION ALL
    (SELECT id, series_id, starts_at FROM event
     WHERE currency > '' AND listed_until > starts_at AND listed_until > (SELECT at FROM clock)
       AND starts_at <= (SELECT at FROM clock) AND {{upcoming_filters}})
), {{cards}}

-- fragment: cards
ranked AS (
    SELECT id, row_number() OVER card AS number, count(*) OVER (PARTITION BY coalesce(series_id, id)) AS dates,
           first_value(starts_at) OVER card AS card_at, first_value(id) OVER card AS card_id
    FROM upcoming WINDOW card AS (PARTITION BY coalesce(series_id, id) ORDER BY starts_at, id)
),
numbered AS (
    SELECT *, dense_rank() OVER (ORDER BY card_at, card_id) AS card_number
    FROM ranked WHERE number <= :dates_max AND (card_at, card_id) > (:after_at, :after_id)
),
found AS MATERIALIZED (
    SELECT event.*, numbered.dates, numbered.card_at, numbered.card_id, series.title AS series_title
    FROM numbered JOIN event ON event.id = numbered.id LEFT JOIN series ON series.id = event.series_id
    WHERE numbered.card_number <= :limit
)
{{summaries}}

-- name: dates_of_series
-- The events of a series that pages list, soonest first.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
found AS MATERIALIZED (
    SELECT event.*, 1 AS dates, event.starts_at AS card_at, event.id AS card_id, NULL AS series_title
    FROM event
    WHERE series_id = :series AND status = 'active' AND published_at IS NOT NULL AND listed_until > (SELECT at FROM clock)
      AND (starts_at, id) > (:after_at, :after_id)
    ORDER BY starts_at, id LIMIT :limit
)
{{summaries}}

-- fragment: closes_at
-- When sales of the row `pool` of the event `found` close: core.sales_window.pool_window.
coalesce(least(pool.sales_close_at, found.sales_close_at, pool.starts_at), found.starts_at)

-- fragment: summaries
-- Pools and tariffs are added up here, because an event may have a thousand. Only pools that can still be bought count.
-- Of the due lines of each event, a hundred count as free, so that a page stays cheap while very many holds expire at
-- once. The worker frees the rest in a moment.
SELECT found.id, found.title, found.preset, found.starts_at, found.timezone, found.currency, found.place, found.series_id,
       found.series_title, found.dates, found.card_at, found.card_id, stock.capacity, stock.seats,
       stock.remaining + due.units AS remaining, stock.opens_at, stock.is_closed, tariff.lowest_price
FROM clock CROSS JOIN found CROSS JOIN LATERAL (
    SELECT coalesce(sum(capacity) FILTER (WHERE closes_at > clock.at), 0) AS capacity,
           coalesce(sum(capacity) FILTER (WHERE seated), 0) AS seats,
           coalesce(sum(capacity - held - sold) FILTER (WHERE closes_at > clock.at), 0) AS remaining,
           -- Null: something can be bought already.
           CASE WHEN bool_and(coalesce(opens_at > clock.at, false)) FILTER (WHERE closes_at > clock.at)
                THEN min(opens_at) FILTER (WHERE closes_at > clock.at) END AS opens_at,
           coalesce(max(closes_at) <= clock.at, false) AS is_closed
    FROM (
        SELECT capacity, held, sold, seated, coalesce(pool.sales_open_at, found.sales_open_at) AS opens_at,
               {{closes_at}} AS closes_at
        FROM pool WHERE pool.event_id = found.id
    ) AS pool
) AS stock CROSS JOIN LATERAL (
    SELECT min(price) AS lowest_price FROM tariff WHERE tariff.event_id = found.id
) AS tariff CROSS JOIN LATERAL (
    SELECT coalesce(sum(line.quantity), 0) AS units
    FROM (
        SELECT line.quantity
        FROM (
            SELECT id FROM booking
            WHERE booking.event_id = found.id AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
            ORDER BY booking.event_id, booking.expires_at LIMIT 100
        ) AS booking CROSS JOIN LATERAL (
            SELECT quantity, pool FROM line WHERE line.event_id = found.id AND line.booking_id = booking.id LIMIT 100
        ) AS line JOIN pool ON pool.event_id = found.id AND pool.number = line.pool
            AND {{closes_at}} > clock.at
        LIMIT 100
    ) AS line
) AS due
ORDER BY found.card_at, found.card_id, found.starts_at, found.id

-- name: zones_of_org
-- The time zones of an org's events.
SELECT DISTINCT timezone FROM event WHERE org_id = $1 AND status IN ('draft', 'active') AND seat_count >= 0

-- name: zones_of_all_orgs
-- The time zones of the next $1 events.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT timezone FROM (
    SELECT timezone FROM event
    WHERE tax_bps >= 0 AND starts_at > (SELECT at FROM clock) AND status = 'active'
    ORDER BY starts_at, id LIMIT $1
) AS event
UNION
SELECT timezone FROM event
WHERE currency > '' AND listed_until > starts_at AND listed_until > (SELECT at FROM clock)
  AND starts_at <= (SELECT at FROM clock) AND status = 'active'

-- name: series_with_org
-- A series that has a published event, with its org.
SELECT series.id, series.title, series.description, org.id AS org_id, org.slug, org.name AS org_name, org.colour,
       org.logo_hash, org.frame_origins
FROM series JOIN org ON org.id = series.org_id
WHERE series.id = $1
  AND EXISTS (SELECT FROM event WHERE event.series_id = series.id AND event.published_at IS NOT NULL)

-- name: seat_positions
-- The seats of the first $2 pools of an event, as the document that the seat map reads. It may be large, and bytes need no
-- decoding.
SELECT convert_to('{"seats":[' || coalesce(string_agg(
    json_build_array(label, pool, row, number_in_row, x, y)::text, ',' ORDER BY number
), '') || ']}', 'UTF8')
FROM seat WHERE event_id = $1 AND pool < $2

-- name: booked_events
-- Events, with the times of these pools among theirs: the pool $3 of the event $2, and so on.
SELECT event.id, event.title, event.starts_at, event.ends_at, event.timezone, (
    SELECT coalesce(json_agg(json_build_object(
        'code', pool.code, 'starts_at', pool.starts_at, 'ends_at', pool.ends_at
    )), '[]')
    FROM unnest($2::uuid[], $3::text[]) AS booked (event_id, code)
         JOIN pool ON pool.event_id = booked.event_id AND pool.code = booked.code
    WHERE booked.event_id = event.id AND pool.starts_at IS NOT NULL
) AS pools
FROM event WHERE event.id = ANY ($1::uuid[])

-- name: listings
-- Published events with their org, their pools, and what is left of each pool. A hold past its deadline counts as free at
-- once.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
found AS MATERIALIZED (SELECT * FROM event WHERE id = ANY ($1::uuid[]) AND published_at IS NOT NULL),
due AS MATERIALIZED (
    SELECT line.event_id, line.pool, sum(line.quantity)::integer AS units
    FROM clock CROSS JOIN found CROSS JOIN LATERAL (
        SELECT id FROM booking
        WHERE booking.event_id = found.id AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
        ORDER BY booking.event_id, booking.expires_at
    ) AS booking JOIN line ON line.event_id = found.id AND line.booking_id = booking.id
    GROUP BY line.event_id, line.pool
)
SELECT clock.at AS now, found.id, found.revision, found.status, found.version, found.title, found.preset, found.starts_at, found.ends_at,
       found.timezone, found.currency, found.tax_bps, found.policy, found.details, found.sales_open_at,
       found.sales_close_at, found.contact, found.questions, found.providers, found.shift, found.series_id, found.created_at,
       coalesce(found.payment_instructions, org.payment_instructions) AS payment_instructions,
       org.id AS org_id, org.slug, org.name AS org_name, org.colour, org.logo_hash, org.frame_origins,
       stock.pools, stock.pools AS availability
FROM clock CROSS JOIN found JOIN org ON org.id = found.org_id CROSS JOIN LATERAL (
    SELECT json_agg(json_build_object(
        'code', pool.code, 'name', pool.name, 'capacity', pool.capacity, 'seated', pool.seated,
        'starts_at', pool.starts_at, 'ends_at', pool.ends_at, 'sales_open_at', pool.sales_open_at,
        'sales_close_at', pool.sales_close_at,
        'held', pool.held - coalesce(due.units, 0), 'sold', pool.sold,
        'remaining', pool.capacity - pool.held - pool.sold + coalesce(due.units, 0),
        'tariffs', (
            SELECT json_agg(json_build_object(
                'code', code, 'name', name, 'price', price, 'needs_companion', needs_companion
            ) ORDER BY number)
            FROM tariff WHERE tariff.event_id = pool.event_id AND tariff.pool = pool.number
        )
    ) ORDER BY pool.number) AS pools
    FROM pool LEFT JOIN due ON due.event_id = pool.event_id AND due.pool = pool.number
    WHERE pool.event_id = found.id
) AS stock
