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
WHERE EXISTS (SELECT FROM event WHERE event.org_id = org.id AND event.status = 'active')
ORDER BY slug LIMIT 2

-- name: events_on_sale
-- $1 org (null: all), $2 limit; newest first. Pools and tariffs are added up here, because an event may have a thousand.
-- Only a hundred due lines of each event count as free, so that a page stays cheap while very many holds expire at once. The
-- worker frees the rest in a moment.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
found AS MATERIALIZED (
    SELECT * FROM event
    WHERE ($1::uuid IS NULL OR org_id = $1) AND status = 'active' AND published_at IS NOT NULL
    ORDER BY id DESC LIMIT $2
)
SELECT found.id, found.title, found.preset, found.starts_at, found.timezone, found.currency, coalesce(found.details -> 'address', found.shift -> 'address') AS address,
       stock.capacity, stock.seats, stock.remaining + due.units AS remaining, tariff.lowest_price
FROM clock CROSS JOIN found CROSS JOIN LATERAL (
    SELECT sum(capacity) AS capacity, coalesce(sum(capacity) FILTER (WHERE seated), 0) AS seats,
           sum(capacity - held - sold) AS remaining
    FROM pool WHERE pool.event_id = found.id
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
            SELECT quantity FROM line WHERE line.event_id = found.id AND line.booking_id = booking.id LIMIT 100
        ) AS line
        LIMIT 100
    ) AS line
) AS due
ORDER BY found.starts_at, found.id

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
SELECT found.id, found.revision, found.status, found.version, found.title, found.preset, found.starts_at, found.ends_at,
       found.timezone, found.currency, found.tax_bps, found.policy, found.details, found.sales_open_at,
       found.sales_close_at, found.contact, found.questions, found.providers, found.shift, found.series_id, found.created_at,
       coalesce(found.payment_instructions, org.payment_instructions) AS payment_instructions,
       org.id AS org_id, org.slug, org.name AS org_name, org.colour, org.logo_hash, org.frame_origins,
       stock.pools, stock.pools AS availability
FROM found JOIN org ON org.id = found.org_id CROSS JOIN LATERAL (
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
