-- The statements of a batch. Each looks rows up by index, whatever the statistics say: arrays are unnested and every
-- element probes an index on its own (LATERAL), so that a hold costs the same in a full event as in an empty one; where
-- a second index could serve too, IS NOT DISTINCT FROM keeps it out. What is written travels as JSON documents, which
-- cost the process that has to make them a third of what arrays do.

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

-- name: load
-- Everything a batch needs, as one JSON document. It reads the clock after the lock was granted. It loads:
-- - bookings: due holds of `:events` (up to `:due_max` each), bookings made under the request keys, bookings named by id,
--   live bookings of the users, bookings that must end with their event (up to `:ending_max` each), and all live
--   bookings of a user whose expired booking may be revived;
-- - the counters of the given pools and of every pool that these bookings have lines in;
-- - the taken seats within the given ranges, and those of bookings that may be revived;
-- - the webhook endpoints of the orgs.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
wanted AS MATERIALIZED (
    SELECT due.event_id, due.id
    FROM clock CROSS JOIN unnest(:events::uuid[]) AS asked (event_id) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = asked.event_id
          AND booking.status IN ('held', 'payment_submitted')
          AND booking.expires_at <= clock.at
        ORDER BY booking.event_id, booking.expires_at LIMIT :due_max
    ) AS due
    UNION
    SELECT made.event_id, made.id
    FROM unnest(:request_events::uuid[], :request_keys::bytea[]) AS asked (event_id, request_key) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = asked.event_id AND booking.request_key = asked.request_key
          AND booking.request_key > ''
        LIMIT 1
    ) AS made
    UNION
    SELECT * FROM unnest(:booking_events::uuid[], :booking_ids::uuid[])
    UNION
    SELECT live.event_id, live.id
    FROM unnest(:user_events::uuid[], :users::text[]) AS asked (event_id, user_id) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = asked.event_id AND booking.user_id = asked.user_id
          AND booking.status IN ('held', 'payment_submitted', 'confirmed')
        LIMIT 10000
    ) AS live
    UNION
    SELECT ending.event_id, ending.id
    FROM unnest(:events::uuid[]) AS asked (event_id) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM event JOIN booking ON booking.event_id = event.id
        WHERE event.id = asked.event_id AND event.status IN ('cancelled', 'completed')
          AND booking.status IN ('held', 'payment_submitted', 'confirmed')
          AND (event.status = 'cancelled' OR booking.status = 'confirmed')
        LIMIT :ending_max
    ) AS ending
    UNION
    SELECT live.event_id, live.id
    FROM unnest(:revival_events::uuid[], :revivals::uuid[]) AS asked (event_id, id) CROSS JOIN LATERAL (
        SELECT booking.user_id FROM booking
        WHERE booking.event_id = asked.event_id AND booking.id = asked.id LIMIT 1
    ) AS named CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = asked.event_id AND booking.user_id = named.user_id
          AND booking.status IN ('held', 'payment_submitted', 'confirmed')
        LIMIT 10000
    ) AS live
),
found AS MATERIALIZED (
    SELECT booking.*, lines.lines, lines.pools, payments.payments, receipts.receipts
    FROM wanted CROSS JOIN LATERAL (
        SELECT id, event_id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
               max_expires_at, request_key, fingerprint, cart_hash, details, email, language, reason, generation, version
        FROM booking WHERE booking.event_id = wanted.event_id AND booking.id = wanted.id LIMIT 1
    ) AS booking CROSS JOIN LATERAL (
        SELECT json_agg(json_build_array(pool, tariff, seat, quantity, unit_price) ORDER BY number) AS lines,
               array_agg(pool) AS pools
        FROM line WHERE line.event_id = wanted.event_id AND line.booking_id = wanted.id
    ) AS lines CROSS JOIN LATERAL (
        SELECT json_agg(payment ORDER BY id) AS payments
        FROM payment WHERE payment.booking_id = wanted.id AND payment.event_id IS NOT DISTINCT FROM wanted.event_id
    ) AS payments CROSS JOIN LATERAL (
        SELECT json_agg(hash) AS receipts
        FROM receipt WHERE receipt.booking_id = wanted.id AND receipt.event_id IS NOT DISTINCT FROM wanted.event_id
    ) AS receipts
),
pools AS MATERIALIZED (
    SELECT pool.event_id, pool.number, pool.capacity, pool.held, pool.sold
    FROM (
        SELECT * FROM unnest(:pool_events::uuid[], :pools::integer[])
        UNION
        SELECT found.event_id, unnest(found.pools) FROM found
    ) AS asked (event_id, number) CROSS JOIN LATERAL (
        SELECT * FROM pool WHERE pool.event_id = asked.event_id AND pool.number = asked.number LIMIT 1
    ) AS pool
),
taken AS MATERIALIZED (
    SELECT line.event_id, line.seat, line.booking_id
    FROM unnest(:seat_events::uuid[], :first_seats::integer[], :last_seats::integer[]) AS asked (event_id, first, last) CROSS JOIN LATERAL (
        SELECT line.event_id, line.seat, line.booking_id FROM line
        WHERE line.event_id = asked.event_id AND line.live AND line.seat IS NOT NULL
          AND line.seat BETWEEN asked.first AND asked.last
        ORDER BY line.event_id, line.seat LIMIT 100000
    ) AS line
    UNION
    SELECT other.event_id, other.seat, other.booking_id
    FROM unnest(:revival_events::uuid[], :revivals::uuid[]) AS asked (event_id, id) CROSS JOIN LATERAL (
        SELECT line.seat FROM line
        WHERE line.event_id = asked.event_id AND line.booking_id = asked.id AND line.seat IS NOT NULL LIMIT 10000
    ) AS own CROSS JOIN LATERAL (
        SELECT line.event_id, line.seat, line.booking_id FROM line
        WHERE line.event_id = asked.event_id AND line.live AND line.seat IS NOT NULL AND line.seat = own.seat
        ORDER BY line.event_id, line.seat LIMIT 1
    ) AS other
),
endpoints AS MATERIALIZED (
    SELECT endpoint.org_id, endpoint.id, endpoint.kinds
    FROM unnest(:orgs::uuid[]) AS asked (org_id) CROSS JOIN LATERAL (
        SELECT org_id, id, kinds FROM webhook_endpoint
        WHERE webhook_endpoint.org_id = asked.org_id AND webhook_endpoint.enabled LIMIT 100
    ) AS endpoint
)
SELECT json_build_object(
    'now', clock.at,
    'bookings', (SELECT coalesce(json_agg(found), '[]') FROM found),
    'pools', (SELECT coalesce(json_agg(json_build_array(event_id, number, capacity, held, sold)), '[]') FROM pools),
    'taken', (SELECT coalesce(json_agg(json_build_array(event_id, seat, booking_id)), '[]') FROM taken),
    'endpoints', (SELECT coalesce(json_agg(json_build_array(org_id, id, kinds)), '[]') FROM endpoints)
)
FROM clock

-- name: load_events
SELECT id, org_id, status, revision, currency, tax_bps, policy FROM event WHERE id = ANY ($1::uuid[])

-- name: load_layout_pools
SELECT event_id, number, code, name, seated FROM pool WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, number

-- name: load_layout_tariffs
SELECT event_id, pool, number, code, name, price FROM tariff WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, pool, number

-- name: load_layout_seats
SELECT event_id, number, label, pool, row, place, x, y, blocked FROM seat WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, number

-- name: update_bookings
-- Bookings that came into another status or got another deadline; `was` is the status they were loaded with. Lines of
-- those that claim nothing any more are no longer live. Goes before `insert_bookings`, which may take the same seats again.
WITH changed AS (
    UPDATE booking SET status = new.status, expires_at = new.expires_at, reason = new.reason, version = new.version
    FROM json_to_recordset($1::json) AS new (
        event_id uuid, id uuid, was text, status text, expires_at timestamptz, reason text, version bigint
    )
    WHERE booking.event_id = new.event_id AND booking.id = new.id AND booking.status = new.was
    RETURNING 1
), released AS (
    UPDATE line SET live = false
    FROM json_to_recordset($2::json) AS gone (event_id uuid, booking_id uuid, number integer)
    WHERE line.event_id = gone.event_id AND line.booking_id = gone.booking_id AND line.number = gone.number AND line.live
    RETURNING 1
)
SELECT (SELECT count(*) FROM changed) AS bookings, (SELECT count(*) FROM released) AS released_lines

-- name: reclaim_lines
-- Lines of bookings that were revived are live again. Goes between `update_bookings` and `insert_bookings`.
WITH reclaimed AS (
    UPDATE line SET live = true
    FROM json_to_recordset($1::json) AS back (event_id uuid, booking_id uuid, number integer)
    WHERE line.event_id = back.event_id AND line.booking_id = back.booking_id AND line.number = back.number AND NOT line.live
    RETURNING 1
)
SELECT (SELECT count(*) FROM reclaimed) AS reclaimed_lines

-- name: transfer_bookings
-- Bookings that went to another person.
WITH transferred AS (
    UPDATE booking SET user_id = new.user_id, email = new.email, language = new.language, generation = new.generation
    FROM json_to_recordset($1::json) AS new (
        event_id uuid, id uuid, user_id text, email text, language text, generation integer
    )
    WHERE booking.event_id = new.event_id AND booking.id = new.id
    RETURNING 1
)
SELECT (SELECT count(*) FROM transferred) AS bookings

-- name: save_payments
-- New payments, payments that came into another status (`was` is the one they were loaded with), and receipts.
WITH new_payments AS (
    INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, outcome, amount, currency, request_key,
                         fingerprint, return_url, reason, created_at, captured_at, due_at)
    SELECT * FROM json_to_recordset($1::json) AS new (
        event_id uuid, id uuid, org_id uuid, booking_id uuid, provider text, status text, outcome text, amount bigint,
        currency text, request_key bytea, fingerprint bytea, return_url text, reason text, created_at timestamptz,
        captured_at timestamptz, due_at timestamptz
    )
    RETURNING 1
), changed_payments AS (
    UPDATE payment SET status = new.status, outcome = new.outcome, reason = new.reason, captured_at = new.captured_at,
                       due_at = new.due_at, attempts = 0
    FROM json_to_recordset($2::json) AS new (
        event_id uuid, id uuid, was text, status text, outcome text, reason text, captured_at timestamptz,
        due_at timestamptz
    )
    WHERE payment.event_id = new.event_id AND payment.id = new.id AND payment.status = new.was
    RETURNING 1
), new_receipts AS (
    INSERT INTO receipt (event_id, id, org_id, booking_id, at, hash, content_type, size, file_ref, message_ref)
    SELECT event_id, id, org_id, booking_id, $4::timestamptz, hash, content_type, size, file_ref, message_ref
    FROM json_to_recordset($3::json) AS new (
        event_id uuid, id uuid, org_id uuid, booking_id uuid, hash bytea, content_type text, size integer,
        file_ref text, message_ref text
    )
    RETURNING 1
)
SELECT (SELECT count(*) FROM new_payments) AS new_payments, (SELECT count(*) FROM changed_payments) AS changed_payments,
       (SELECT count(*) FROM new_receipts) AS new_receipts

-- name: insert_deliveries
-- What has to be told of the facts. A message is due at once.
INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
SELECT event_id, number, target, channel, org_id, stream, kind, body, $2::timestamptz, $2::timestamptz
FROM json_to_recordset($1::json) AS new (
    event_id uuid, number bigint, target text, channel text, org_id uuid, stream uuid, kind text, body json
)

-- name: insert_bookings
-- New bookings with their lines, the counters of pools, and the facts; an event's version is its last fact's number.
WITH bookings AS (
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                         max_expires_at, request_key, fingerprint, cart_hash, details, email, language, reason, version)
    SELECT event_id, id, org_id, user_id, status, subtotal, tax, subtotal + tax, currency, created_at, expires_at,
           max_expires_at, request_key, fingerprint, cart_hash, details, email, language, reason, version
    FROM json_to_recordset($1::json) AS new (
        event_id uuid, id uuid, org_id uuid, user_id text, status text, subtotal bigint, tax bigint, currency text,
        created_at timestamptz, expires_at timestamptz, max_expires_at timestamptz, request_key bytea,
        fingerprint bytea, cart_hash bytea, details json, email text, language text, reason text, version bigint
    )
    RETURNING 1
), lines AS (
    INSERT INTO line (event_id, booking_id, number, pool, tariff, seat, quantity, unit_price, live)
    SELECT * FROM json_to_recordset($2::json) AS new (
        event_id uuid, booking_id uuid, number integer, pool integer, tariff integer, seat integer,
        quantity integer, unit_price bigint, live boolean
    )
    RETURNING 1
), pools AS (
    UPDATE pool SET held = pool.held + shift.held, sold = pool.sold + shift.sold
    FROM json_to_recordset($3::json) AS shift (event_id uuid, number integer, held integer, sold integer)
    WHERE pool.event_id = shift.event_id AND pool.number = shift.number
    RETURNING 1
), events AS (
    UPDATE event SET version = new.version
    FROM json_to_recordset($4::json) AS new (id uuid, was bigint, version bigint)
    WHERE event.id = new.id AND event.version = new.was
    RETURNING 1
), entries AS (
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data)
    SELECT event_id, number, $6::timestamptz, kind, booking_id, actor, data
    FROM json_to_recordset($5::json) AS new (
        event_id uuid, number bigint, kind text, booking_id uuid, actor text, data json
    )
    RETURNING 1
)
SELECT (SELECT count(*) FROM bookings) AS bookings, (SELECT count(*) FROM lines) AS lines,
       (SELECT count(*) FROM pools) AS pools, (SELECT count(*) FROM events) AS events,
       (SELECT count(*) FROM entries) AS entries
