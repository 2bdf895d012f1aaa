-- Reads outside of batches. A hold past its deadline reads as expired, and its units as free, at once.
--
-- Due holds are read in the order of their index. On tables without statistics, PostgreSQL would otherwise choose any index
-- of the event's bookings and read all of them.

-- name: event
SELECT {{event_fields}}, series_id FROM event WHERE id = $1

-- fragment: scanned_fields
-- Each of :patterns has to match the title, the place or the title of the series.
id, starts_at, cardinality(:patterns::text[]) = 0 OR NOT EXISTS (
    SELECT FROM unnest(:patterns::text[]) AS pattern
    WHERE concat_ws(' ', title, place, (SELECT title FROM series WHERE series.id = event.series_id)) NOT ILIKE pattern
) AS is_match

-- fragment: list_filters
(NOT :only_published OR published_at IS NOT NULL) AND (:status::text IS NULL OR status = :status)
AND starts_at < :before AND (starts_at, id) > (:after_at, :after_id)
ORDER BY starts_at, id LIMIT :scan_max

-- name: events_of_org
-- Soonest first, after the event (:after_at, :after_id): events of which something starts from :earliest on, and before
-- :before. Events that began earlier and still have slots come from their own index; :has_earliest is false if
-- there can be none. A status of null means any.
WITH found AS (
    (SELECT {{scanned_fields}} FROM event
     WHERE org_id = :org AND starts_at > '-infinity' AND starts_at >= :earliest AND {{list_filters}})
    UNION ALL
    (SELECT {{scanned_fields}} FROM event
     WHERE :has_earliest AND org_id = :org AND listed_until > starts_at AND listed_until >= :earliest
       AND starts_at < :earliest AND last_slot_at >= :earliest AND {{list_filters}})
), {{event_page}}

-- name: events_of_all_orgs
-- The same for all orgs.
WITH found AS (
    (SELECT {{scanned_fields}} FROM event
     WHERE tax_bps >= 0 AND starts_at >= :earliest AND {{list_filters}})
    UNION ALL
    (SELECT {{scanned_fields}} FROM event
     WHERE :has_earliest AND currency > '' AND listed_until > starts_at AND listed_until >= :earliest
       AND starts_at < :earliest AND last_slot_at >= :earliest AND {{list_filters}})
), {{event_page}}

-- name: events_of_series
-- The same for one series.
WITH found AS (
    SELECT {{scanned_fields}} FROM event
    WHERE series_id = :series AND greatest(starts_at, last_slot_at) >= :earliest AND {{list_filters}}
), {{event_page}}

-- fragment: event_page
-- Up to :limit events among the first :scan_max found, and no more than fit into :bytes_max, but at least one. An event
-- counts with its details, the names of its pools and tariffs, and a hundred bytes for each of those. `found` is how many
-- :limit alone allows. Every row has the place where the scan ended, if it ended early; without events, it is the only
-- row.
scanned AS MATERIALIZED (SELECT * FROM found ORDER BY starts_at, id LIMIT :scan_max),
scan_end AS (
    SELECT starts_at AS scan_end_at, id AS scan_end_id FROM scanned ORDER BY starts_at, id OFFSET :scan_max - 1
),
matches AS MATERIALIZED (SELECT id FROM scanned WHERE is_match ORDER BY starts_at, id LIMIT :limit)
SELECT page.*, scan_end.*
FROM (SELECT) AS one LEFT JOIN scan_end ON true LEFT JOIN (
    SELECT {{event_fields}}, series_id, found
    FROM (
        SELECT *, sum(bytes) OVER (ORDER BY starts_at, id) - bytes AS bytes_before
        FROM (
            SELECT *, count(*) OVER () AS found, octet_length(details::text) + octet_length(questions::text) + (
                SELECT coalesce(sum(octet_length(text)), 0)
                FROM (VALUES (shift::text), (payment_instructions)) AS optional (text)
            ) + (
                SELECT coalesce(sum(100 + octet_length(pool.name)), 0) FROM pool WHERE pool.event_id = page.id
            ) + (
                SELECT coalesce(sum(100 + octet_length(tariff.name)), 0) FROM tariff WHERE tariff.event_id = page.id
            ) AS bytes
            FROM (SELECT event.* FROM matches JOIN event ON event.id = matches.id) AS page
        ) AS page
    ) AS page
    WHERE bytes_before < :bytes_max
) AS page ON true
ORDER BY page.starts_at, page.id

-- name: titles
-- The titles of all events of an org that has few.
SELECT id, title FROM event WHERE org_id = $1 AND starts_at > '-infinity' ORDER BY id

-- name: pools_of
SELECT event_id, number, code, name, seated, capacity, starts_at, ends_at, sales_open_at, sales_close_at
FROM pool WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, number

-- name: tariffs_of
SELECT event_id, pool, number, code, name, price, needs_companion FROM tariff WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, pool, number

-- name: event_version
-- Shows whether a read model is current: the version, the number of due holds, and the journal entries after $2: up to $3
-- of them, and no more than fit into $4 bytes. Between two journal entries the number of due holds only grows.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT event.org_id, event.published_at IS NOT NULL AS is_published, clock.at, event.version, due.count AS due, recent.entries
FROM clock CROSS JOIN event CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM booking WHERE booking.event_id = event.id
          AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
        ORDER BY booking.event_id, booking.expires_at
    ) AS booking
) AS due CROSS JOIN LATERAL (
    SELECT coalesce(json_agg(json_build_array(number, kind, booking_id IS NULL, data) ORDER BY number), '[]') AS entries
    FROM (
        SELECT number, kind, booking_id, data,
               sum(octet_length(data::text)) OVER (ORDER BY number) - octet_length(data::text) AS bytes_before
        FROM (
            SELECT number, kind, booking_id, data,
                   sum(pg_column_size(data)) OVER (ORDER BY number) - pg_column_size(data) AS stored_before
            FROM (
                SELECT number, kind, booking_id, data FROM journal
                WHERE journal.event_id = event.id AND journal.number > $2 ORDER BY number LIMIT $3
            ) AS entry
        ) AS entry
        WHERE stored_before < $4
    ) AS entry
    WHERE bytes_before < $4
) AS recent
WHERE event.id = $1

-- name: versions
SELECT holdfast_now() AS at, id, version FROM event WHERE id = ANY ($1::uuid[])

-- name: entries_until
-- The journal entries after $2 and up to $3, in the form of `event_version`. Null if they have more than $4 bytes: first
-- on disk, which is known without unpacking them, then as text.
SELECT CASE
    WHEN size.stored > $4 THEN NULL
    WHEN (
        SELECT sum(octet_length(data::text)) FROM journal WHERE event_id = $1 AND number > $2 AND number <= $3
    ) > $4 THEN NULL
    ELSE (
        SELECT coalesce(json_agg(json_build_array(number, kind, booking_id IS NULL, data) ORDER BY number), '[]')
        FROM journal WHERE event_id = $1 AND number > $2 AND number <= $3
    )
END
FROM (
    SELECT sum(pg_column_size(data)) AS stored FROM journal WHERE event_id = $1 AND number > $2 AND number <= $3
) AS size

-- name: due
-- The seats of due holds, and the pools without their units. One statement, because all of it must be of one moment.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT booking.id FROM clock CROSS JOIN LATERAL (
        SELECT id FROM booking
        WHERE booking.event_id = $1 AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
        ORDER BY booking.event_id, booking.expires_at
    ) AS booking
),
freed AS MATERIALIZED (
    SELECT line.pool, line.seat, line.quantity FROM due JOIN line ON line.event_id = $1 AND line.booking_id = due.id
),
units AS MATERIALIZED (SELECT pool, sum(quantity)::integer AS freed FROM freed GROUP BY pool)
SELECT event.version, (SELECT count(*) FROM due) AS due, (
    SELECT coalesce(array_agg(seat.label), '{}') FROM freed CROSS JOIN LATERAL (
        SELECT label FROM seat WHERE seat.event_id = $1 AND seat.number = freed.seat LIMIT 1
    ) AS seat
) AS seats, (
    SELECT json_object_agg(pool.code, json_build_object(
        'capacity', pool.capacity, 'held', pool.held - coalesce(units.freed, 0), 'sold', pool.sold,
        'remaining', pool.capacity - pool.held - pool.sold + coalesce(units.freed, 0)
    ) ORDER BY pool.number)
    FROM pool LEFT JOIN units ON units.pool = pool.number
    WHERE pool.event_id = $1
) AS pools
FROM event WHERE event.id = $1

-- name: availability
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT line.pool, sum(line.quantity)::integer AS units
    FROM clock CROSS JOIN LATERAL (
        SELECT id FROM booking
        WHERE booking.event_id = $1 AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
        ORDER BY booking.event_id, booking.expires_at
    ) AS booking JOIN line ON line.event_id = $1 AND line.booking_id = booking.id
    GROUP BY line.pool
)
SELECT pool.code, pool.capacity, pool.held - coalesce(due.units, 0) AS held, pool.sold
FROM pool LEFT JOIN due ON due.pool = pool.number
WHERE pool.event_id = $1 ORDER BY pool.number

-- name: seats
-- Each seat finds its line by index. Without statistics, PostgreSQL would join a hall that has just gone on sale by comparing
-- every seat with every line.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT seat.label, pool.code AS pool, seat.row, seat.number_in_row AS number, seat.x, seat.y,
       CASE WHEN seat.blocked THEN 'blocked' ELSE coalesce(taken.state, 'free') END AS state
FROM clock CROSS JOIN seat CROSS JOIN LATERAL (
    SELECT pool.code FROM pool WHERE pool.event_id = seat.event_id AND pool.number = seat.pool LIMIT 1
) AS pool LEFT JOIN LATERAL (
    SELECT CASE WHEN booking.status IN ({{holding}}) THEN 'held' ELSE 'sold' END AS state
    FROM line CROSS JOIN LATERAL (
        SELECT booking.status, booking.expires_at FROM booking
        WHERE booking.event_id = line.event_id AND booking.id = line.booking_id LIMIT 1
    ) AS booking
    WHERE line.event_id = seat.event_id AND line.live AND line.seat IS NOT NULL AND line.seat = seat.number
      AND NOT (booking.status IN ({{timed}}) AND booking.expires_at <= clock.at)
    LIMIT 1
) AS taken ON true
WHERE seat.event_id = $1 ORDER BY seat.number

-- name: booking
SELECT holdfast_now() AS now, to_json(fields) AS booking, {{booking_items}} AS items, 1 AS found
FROM booking CROSS JOIN LATERAL (SELECT {{booking_fields}}, {{large_fields}}) AS fields
WHERE booking.event_id = $1 AND booking.id = $2 AND booking.org_id = $3
  AND ($4::text IS NULL OR booking.user_id = $4)

-- name: booking_details
SELECT details::text AS details, answers::text AS answers FROM booking WHERE event_id = $1 AND id = $2

-- name: bookings
-- Newest first, after the booking :after: up to :limit bookings, and no more than have :lines_max lines, but at least one.
-- `found` is how many :limit alone allows. Null means any; :status is the status as it reads now, and :reference the last
-- ten digits of the id.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
page AS MATERIALIZED (
    SELECT booking.*
    FROM clock CROSS JOIN booking
    WHERE booking.org_id = :org
      AND (:event::uuid IS NULL OR booking.event_id = :event)
      AND (:user::text IS NULL OR booking.user_id = :user)
      AND (:status::text IS NULL OR :status = CASE
            WHEN booking.status IN ({{timed}}) AND booking.expires_at <= clock.at THEN 'expired'
            ELSE booking.status END)
      AND (:after::uuid IS NULL OR booking.id < :after)
      AND (:reference::text IS NULL OR right(booking.id::text, 10) = :reference)
    ORDER BY booking.id DESC LIMIT :limit
),
counted AS MATERIALIZED (
    SELECT page.*, count(*) OVER () AS found, sum(line.count) OVER (ORDER BY page.id DESC) - line.count AS lines_before
    FROM page CROSS JOIN LATERAL (
        SELECT count(*) FROM line WHERE line.event_id = page.event_id AND line.booking_id = page.id
    ) AS line
)
SELECT clock.at AS now, to_json(fields) AS booking, {{booking_items}} AS items, booking.found
FROM clock CROSS JOIN counted AS booking CROSS JOIN LATERAL (SELECT {{booking_fields}}, {{large_fields}}) AS fields
WHERE booking.lines_before < :lines_max
ORDER BY booking.id DESC

-- fragment: page_of_event
-- Up to :limit bookings of the event after the booking :after, which has the position 0.
--
-- Each booking finds the next one by its key. Without statistics, PostgreSQL would assume that every event is small, and sort
-- all remaining bookings for each page.
page (id, position) AS (
    VALUES (:after::uuid, 0)
    UNION ALL
    SELECT next.id, page.position + 1 FROM page CROSS JOIN LATERAL (
        SELECT booking.id FROM booking WHERE booking.event_id = :event AND booking.id > page.id
        ORDER BY booking.event_id, booking.id LIMIT 1
    ) AS next
    WHERE page.position < :limit
)

-- name: bookings_of_event
-- Oldest first, after the booking :after: up to :limit bookings, and no more than have :lines_max lines, but at least one.
-- Without their details, which may be large.
WITH RECURSIVE clock AS MATERIALIZED (SELECT holdfast_now() AS at),
{{page_of_event}},
counted AS MATERIALIZED (
    SELECT booking.*, sum(line.count) OVER (ORDER BY page.position) - line.count AS lines_before
    FROM page CROSS JOIN LATERAL (
        SELECT * FROM booking WHERE booking.event_id = :event AND booking.id = page.id LIMIT 1
    ) AS booking CROSS JOIN LATERAL (
        SELECT count(*) FROM line WHERE line.event_id = booking.event_id AND line.booking_id = booking.id
    ) AS line
    WHERE page.position > 0
)
SELECT clock.at AS now, to_json(fields) AS booking, {{booking_items}} AS items, booking.answers
FROM clock CROSS JOIN counted AS booking CROSS JOIN LATERAL (SELECT {{booking_fields}}) AS fields
WHERE booking.lines_before < :lines_max
ORDER BY booking.id

-- name: unpaid_units_elsewhere
-- The unpaid units of an address in all events of the org but :event, and how many it may have. `load_clients` counts the
-- same in one event.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
unpaid AS MATERIALIZED (
    SELECT booking.event_id, booking.id FROM clock CROSS JOIN booking
    WHERE booking.client = :client AND booking.client IS NOT NULL AND booking.event_id <> :event
      AND booking.status IN ({{holding}}) AND booking.expires_at > clock.at
    UNION ALL
    SELECT booking.event_id, booking.id FROM clock CROSS JOIN LATERAL (
        SELECT event_id, id FROM booking
        WHERE booking.client = :client AND booking.client IS NOT NULL AND booking.event_id <> :event
          AND booking.status IN ({{sold}}) AND (booking.total = 0 OR booking.expires_at IS NULL)
          AND booking.created_at > clock.at - make_interval(secs => :free_seconds)
        ORDER BY booking.client, booking.created_at
    ) AS booking
)
SELECT org.max_unpaid_units_per_address AS max_in_org, coalesce(sum(line.quantity), 0)::integer AS units
FROM org LEFT JOIN unpaid ON true LEFT JOIN LATERAL (
    SELECT quantity FROM line WHERE line.event_id = unpaid.event_id AND line.booking_id = unpaid.id LIMIT 10000
) AS line ON true
WHERE org.id = :org
GROUP BY org.id

-- name: entries
-- The journal entries after :after: up to :limit of them, and no more than fit into :bytes_max, but at least one. The size
-- on disk comes first, because it is known without unpacking what is stored. `found` is how many :limit alone allows.
SELECT number, at, kind, booking_id, actor, data, found
FROM (
    SELECT *, sum(octet_length(data::text)) OVER (ORDER BY number) - octet_length(data::text) AS bytes_before
    FROM (
        SELECT *, sum(pg_column_size(data)) OVER (ORDER BY number) - pg_column_size(data) AS stored_before,
               count(*) OVER () AS found
        FROM (
            SELECT number, at, kind, booking_id, actor, data FROM journal
            WHERE event_id = :event AND number > :after ORDER BY number LIMIT :limit
        ) AS entry
    ) AS entry
    WHERE stored_before < :bytes_max
) AS entry
WHERE bytes_before < :bytes_max
ORDER BY number

-- name: holders
-- The key of the actors' pseudonyms in the journal of an event, and the users of these bookings.
SELECT event.actor_key, coalesce((
    SELECT json_object_agg(encode(uuid_send(booking.id), 'hex'), booking.user_id)
    FROM booking WHERE booking.event_id = event.id AND booking.id = ANY ($2::uuid[])
), '{}') AS user_by_booking
FROM event WHERE event.id = $1

-- name: event_owner
SELECT org_id, published_at FROM event WHERE id = $1

-- name: progress
-- The cleanup after an event: bookings that are still live, and refunds that are pending.
SELECT event.status, booking.bookings, booking.live, payment.refunds_due, payment.refunded, payment.in_review,
       booking.live = 0 AND payment.refunds_due = 0 AS done
FROM event CROSS JOIN LATERAL (
    SELECT count(*) AS bookings, count(*) FILTER (WHERE booking.status IN ({{live}})) AS live
    FROM booking WHERE booking.event_id = event.id
) AS booking CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE payment.status = 'refund_due') AS refunds_due,
           count(*) FILTER (WHERE payment.status = 'refunded') AS refunded,
           count(*) FILTER (WHERE payment.status = 'review') AS in_review
    FROM payment WHERE payment.event_id = event.id
) AS payment
WHERE event.id = $1
