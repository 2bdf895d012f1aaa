-- The statements of a batch. Each looks rows up by index, whatever the statistics say: the arrays are unnested and every
-- element probes an index on its own (LATERAL), so that a hold costs the same in a full event as in an empty one.

-- name: lock
-- The only lock there is. Sorted, so that two batches never wait for each other in a circle.
SELECT event.id, event.version, event.revision
FROM event
WHERE event.id = ANY ($1::uuid[])
ORDER BY event.id
FOR UPDATE

-- name: lock_if_free
-- The same for housekeeping, which leaves alone what others are working on.
SELECT event.id, event.version, event.revision
FROM event
WHERE event.id = ANY ($1::uuid[])
ORDER BY event.id
FOR UPDATE SKIP LOCKED

-- name: load_bookings
-- The time, read after the lock was granted, and the bookings that the batch may need: $1 events (their due holds, at
-- most $8 each), $2+$3 those made under these request keys, $4+$5 those named, $6+$7 the live ones of these users.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
wanted AS (
    SELECT due.event_id, due.id
    FROM clock CROSS JOIN unnest($1::uuid[]) AS asked (event_id) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = asked.event_id
          AND booking.status IN ('held', 'payment_submitted')
          AND booking.expires_at <= clock.at
        ORDER BY booking.event_id, booking.expires_at LIMIT $8
    ) AS due
    UNION
    SELECT made.event_id, made.id
    FROM unnest($2::uuid[], $3::bytea[]) AS asked (event_id, request_key) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = asked.event_id AND booking.request_key = asked.request_key
        LIMIT 1
    ) AS made
    UNION
    SELECT * FROM unnest($4::uuid[], $5::uuid[])
    UNION
    SELECT live.event_id, live.id
    FROM unnest($6::uuid[], $7::text[]) AS asked (event_id, user_id) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = asked.event_id AND booking.user_id = asked.user_id
          AND booking.status IN ('held', 'payment_submitted', 'confirmed')
        LIMIT 10000
    ) AS live
)
SELECT clock.at, found.*
FROM clock LEFT JOIN (
    SELECT booking.*, lines.*
    FROM wanted CROSS JOIN LATERAL (
        SELECT id, event_id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
               max_expires_at, request_key, fingerprint, cart_hash, details, reason, version
        FROM booking WHERE booking.event_id = wanted.event_id AND booking.id = wanted.id LIMIT 1
    ) AS booking CROSS JOIN LATERAL (
        SELECT array_agg(pool ORDER BY number) AS pools, array_agg(tariff ORDER BY number) AS tariffs,
               array_agg(seat ORDER BY number) AS seats, array_agg(quantity ORDER BY number) AS quantities,
               array_agg(unit_price ORDER BY number) AS unit_prices
        FROM line WHERE line.event_id = wanted.event_id AND line.booking_id = wanted.id
    ) AS lines
) AS found ON true

-- name: load_live
-- Some bookings that have to end with their event: all live ones if it was cancelled, the confirmed ones if it is over.
SELECT live.event_id, live.id
FROM unnest($1::uuid[]) AS asked (event_id) CROSS JOIN LATERAL (
    SELECT booking.event_id, booking.id FROM event JOIN booking ON booking.event_id = event.id
    WHERE event.id = asked.event_id AND booking.status IN ('held', 'payment_submitted', 'confirmed')
      AND (event.status = 'cancelled' OR event.status = 'completed' AND booking.status = 'confirmed')
    LIMIT $2
) AS live

-- name: load_pools
SELECT pool.event_id, pool.number, pool.capacity, pool.held, pool.sold
FROM unnest($1::uuid[], $2::integer[]) AS asked (event_id, number) CROSS JOIN LATERAL (
    SELECT * FROM pool WHERE pool.event_id = asked.event_id AND pool.number = asked.number LIMIT 1
) AS pool

-- name: load_taken
-- Which seats are taken in these ranges of seat numbers: a seat asked for, a row, or all of a pool.
SELECT line.event_id, line.seat, line.booking_id
FROM unnest($1::uuid[], $2::integer[], $3::integer[]) AS asked (event_id, first, last) CROSS JOIN LATERAL (
    SELECT line.event_id, line.seat, line.booking_id FROM line
    WHERE line.event_id = asked.event_id AND line.live AND line.seat IS NOT NULL
      AND line.seat BETWEEN asked.first AND asked.last
    ORDER BY line.event_id, line.seat LIMIT 100000
) AS line

-- name: load_events
SELECT id, org_id, status, revision, currency, tax_bps, policy FROM event WHERE id = ANY ($1::uuid[])

-- name: load_layout_pools
SELECT event_id, number, code, name, seated FROM pool WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, number

-- name: load_layout_tariffs
SELECT event_id, pool, number, code, name, price FROM tariff WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, pool, number

-- name: load_layout_seats
SELECT event_id, number, label, pool, row, place, x, y, blocked FROM seat WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, number

-- name: save_moved
-- Bookings that came into another status or got another deadline; `was` is the status they were loaded with. Lines of
-- those that claim nothing any more are no longer live. Goes before `save_new`, which may take the same seats again.
WITH moved AS (
    UPDATE booking SET status = new.status, expires_at = new.expires_at, reason = new.reason, version = new.version
    FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[], $6::text[], $7::bigint[])
        AS new (event_id, id, was, status, expires_at, reason, version)
    WHERE booking.event_id = new.event_id AND booking.id = new.id AND booking.status = new.was
    RETURNING 1
), freed AS (
    UPDATE line SET live = false
    FROM unnest($8::uuid[], $9::uuid[], $10::integer[]) AS gone (event_id, booking_id, number)
    WHERE line.event_id = gone.event_id AND line.booking_id = gone.booking_id AND line.number = gone.number AND line.live
    RETURNING 1
)
SELECT (SELECT count(*) FROM moved) AS moved, (SELECT count(*) FROM freed) AS freed

-- name: save_new
-- New bookings with their lines, the counters of pools, and the facts; an event's version is its last fact's number.
WITH booked AS (
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                         max_expires_at, request_key, fingerprint, cart_hash, details, reason, version)
    SELECT event_id, id, org_id, user_id, status, subtotal, tax, subtotal + tax, currency, created_at, expires_at,
           max_expires_at, request_key, fingerprint, cart_hash, details::json, reason, version
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
                $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::bytea[], $13::bytea[], $14::bytea[],
                $15::text[], $16::text[], $17::bigint[])
        AS new (event_id, id, org_id, user_id, status, subtotal, tax, currency, created_at, expires_at,
                max_expires_at, request_key, fingerprint, cart_hash, details, reason, version)
    RETURNING 1
), lined AS (
    INSERT INTO line (event_id, booking_id, number, pool, tariff, seat, quantity, unit_price, live)
    SELECT * FROM unnest($18::uuid[], $19::uuid[], $20::integer[], $21::integer[], $22::integer[], $23::integer[],
                         $24::integer[], $25::bigint[], $26::boolean[])
    RETURNING 1
), counted AS (
    UPDATE pool SET held = pool.held + shift.held, sold = pool.sold + shift.sold
    FROM unnest($27::uuid[], $28::integer[], $29::integer[], $30::integer[]) AS shift (event_id, number, held, sold)
    WHERE pool.event_id = shift.event_id AND pool.number = shift.number
    RETURNING 1
), versioned AS (
    UPDATE event SET version = new.version
    FROM unnest($31::uuid[], $32::bigint[], $33::bigint[]) AS new (id, was, version)
    WHERE event.id = new.id AND event.version = new.was
    RETURNING 1
), noted AS (
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data)
    SELECT event_id, number, $34::timestamptz, kind, booking_id, actor, data::json
    FROM unnest($35::uuid[], $36::bigint[], $37::text[], $38::uuid[], $39::text[], $40::text[])
        AS new (event_id, number, kind, booking_id, actor, data)
    RETURNING 1
)
SELECT (SELECT count(*) FROM booked) AS booked, (SELECT count(*) FROM lined) AS lined,
       (SELECT count(*) FROM counted) AS counted, (SELECT count(*) FROM versioned) AS versioned,
       (SELECT count(*) FROM noted) AS noted
