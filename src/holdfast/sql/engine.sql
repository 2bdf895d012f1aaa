-- The statements of a batch, and the fragments that say how bookings and payments travel.
--
-- Every statement finds rows by index, whatever the statistics say: it unnests arrays, and each element probes an index
-- on its own (LATERAL). A hold therefore costs the same in a full event as in an empty one. Where a second index could
-- serve the lookup, IS NOT DISTINCT FROM keeps it out. Rows to write travel as JSON documents, because encoding them
-- costs Python a third of what arrays cost.
--
-- A statement includes a fragment with its name in double braces. Ids and hashes travel as base64, which msgspec decodes
-- into bytes.

-- fragment: booking_fields
-- The row `booking` as core.booking.Booking: every field under its own name, except that `details` and `answers` stay on
-- disk. A batch loads many bookings and needs neither. Responses that show them add the fragment `large_fields`.
holdfast_base64(booking.id) AS id,
holdfast_base64(booking.event_id) AS event,
holdfast_base64(booking.org_id) AS org,
booking.user_id AS "user",
booking.status,
(
    SELECT json_agg(json_build_array(line.pool, line.tariff, line.seat, line.quantity, line.unit_price) ORDER BY line.number)
    FROM line WHERE line.event_id = booking.event_id AND line.booking_id = booking.id
) AS lines,
booking.subtotal,
booking.tax,
booking.total,
booking.currency,
booking.created_at,
booking.expires_at,
booking.max_expires_at,
encode(booking.request_key, 'base64') AS request_key,
encode(booking.fingerprint, 'base64') AS fingerprint,
encode(booking.cart_hash, 'base64') AS cart_hash,
booking.details IS NOT NULL OR booking.answers IS NOT NULL AS has_details,
booking.name,
booking.email,
booking.phone,
booking.language,
booking.reason,
booking.generation,
encode(booking.client, 'base64') AS client,
booking.one_per_user,
booking.version,
(
    SELECT coalesce(json_agg(fields ORDER BY payment.id), '[]')
    FROM payment CROSS JOIN LATERAL (SELECT {{payment_fields}}) AS fields
    WHERE payment.booking_id = booking.id AND payment.event_id IS NOT DISTINCT FROM booking.event_id
) AS payments,
(
    SELECT coalesce(json_agg(encode(receipt.hash, 'base64')), '[]')
    FROM receipt WHERE receipt.booking_id = booking.id AND receipt.event_id IS NOT DISTINCT FROM booking.event_id
) AS receipts

-- fragment: large_fields
booking.details::text AS details, booking.answers::text AS answers

-- fragment: booking_items
-- The lines of the row `booking` as core.layout.BookedItem. Reads need no more of a layout than this.
(
    SELECT json_agg(json_build_object(
        'pool', pool.code, 'tariff', tariff.code, 'seat', seat.label, 'quantity', line.quantity, 'unit_price', line.unit_price
    ) ORDER BY line.number)
    FROM line JOIN pool ON pool.event_id = line.event_id AND pool.number = line.pool
         JOIN tariff ON tariff.event_id = line.event_id AND tariff.pool = line.pool AND tariff.number = line.tariff
         LEFT JOIN seat ON seat.event_id = line.event_id AND seat.number = line.seat
    WHERE line.event_id = booking.event_id AND line.booking_id = booking.id
)

-- fragment: with_line_count
-- Joins the number of lines to each row of `booking`. A payment counts as twenty lines: it may end with its booking, and
-- then has a journal entry of its own.
CROSS JOIN LATERAL (
    SELECT lines.count + 20 * payments.count AS lines
    FROM (
        SELECT count(*) FROM (
            SELECT FROM line WHERE line.event_id = booking.event_id AND line.booking_id = booking.id LIMIT 10000
        ) AS counted
    ) AS lines CROSS JOIN (
        SELECT count(*) FROM (
            SELECT FROM payment
            WHERE payment.booking_id = booking.id AND payment.event_id IS NOT DISTINCT FROM booking.event_id LIMIT 10000
        ) AS counted
    ) AS payments
) AS size

-- fragment: lines_before
-- The lines of all rows before this one, in an arbitrary order.
sum(size.lines) OVER (ROWS UNBOUNDED PRECEDING) - size.lines

-- fragment: event_fields
-- The columns of `event` that api.event_handlers.EventRow has.
id, status, version, title, preset, starts_at, ends_at, timezone, currency, tax_bps, policy, details, sales_open_at,
sales_close_at, contact, questions, payment_instructions, providers, shift, created_at

-- fragment: payment_fields
-- The row `payment` as core.payment.Payment.
holdfast_base64(payment.id) AS id,
payment.provider,
payment.status,
payment.amount,
payment.currency,
encode(payment.request_key, 'base64') AS request_key,
encode(payment.fingerprint, 'base64') AS fingerprint,
payment.created_at,
payment.outcome,
payment.provider_ref,
payment.checkout_url,
payment.return_url,
payment.captured_at,
payment.capture_assumed,
payment.reason

-- fragment: payment_row
-- The row `payment` as payments.payment_rows.PaymentRow: the payment, and the event, org and booking that it belongs to.
payment.event_id AS event, payment.org_id AS org, payment.booking_id AS booking,
(SELECT to_json(fields) FROM (SELECT {{payment_fields}}) AS fields) AS payment

-- fragment: chain_start
-- The hash that the first journal entry of the event :event carries, as core.journal_chain.chain_start.
sha256('holdfast journal'::bytea || uuid_send(:event::uuid))

-- fragment: entry_hash
-- The hash of the journal entry in the row `entry`, as core.journal_chain.entry_hash. The schema refuses a time that is no
-- number of microseconds, but the auditor has to read it if somebody has dropped the constraint.
sha256(
    entry.previous || CASE WHEN entry.at > '-infinity' AND entry.at < '290000-01-01 00:00:00+00'
        THEN int8send((extract(epoch FROM entry.at) * 1000000)::bigint)
        ELSE convert_to(extract(epoch FROM entry.at)::text, 'UTF8') END
    || coalesce(uuid_send(entry.booking_id), '\x00000000000000000000000000000000')
    || convert_to(entry.kind, 'UTF8') || '\x00' || convert_to(entry.actor, 'UTF8') || '\x00'
    || convert_to(entry.data::text, 'UTF8')
)

-- fragment: is_status_entry
-- Whether the journal entry of a booking is about its status.
kind NOT IN ('extended', 'transferred') AND kind NOT LIKE 'payment.%'

-- fragment: entry_data
-- The data of the journal entry in the row `entry`, without characters that PostgreSQL refuses to read although it stores
-- them.
CASE WHEN strpos(entry.data::text, '\u') = 0 THEN entry.data
     ELSE regexp_replace(entry.data::text, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\uFFFD', 'g')::json END

-- fragment: entry_pools
-- The pools that the journal entry in the row `entry` changes, by their codes.
CASE WHEN strpos(entry.data::text, '"pools"') = 0 THEN '{}'
     WHEN json_typeof({{entry_data}} -> 'pools') = 'object' THEN {{entry_data}} -> 'pools' ELSE '{}' END

-- fragment: entry_seats
CASE WHEN strpos(entry.data::text, '"seats"') = 0 THEN '{}'
     WHEN json_typeof({{entry_data}} -> 'seats') = 'object' THEN {{entry_data}} -> 'seats' ELSE '{}' END

-- name: lock
-- The only lock. Sorting by id keeps two batches from deadlocking.
SELECT event.id, event.version, event.revision, event.journal_head, event.actor_key
FROM event
WHERE event.id = ANY ($1::uuid[])
ORDER BY event.id
FOR UPDATE

-- name: lock_if_free
-- For batches that wait for nobody.
SELECT event.id, event.version, event.revision, event.journal_head, event.actor_key, event.seat_count,
       event.seats_revision
FROM event
WHERE event.id = ANY ($1::uuid[])
ORDER BY event.id
FOR UPDATE SKIP LOCKED

-- name: revisions
SELECT event.id, event.revision FROM event WHERE event.id = ANY ($1::uuid[])

-- name: lock_transfers
-- The bookings that the batch transfers. A check-in shares the lock of its booking: either it has committed, and
-- `load_checked_in` sees it, or it waits for this batch and finds the ticket void.
SELECT locked.id
FROM unnest($1::uuid[], $2::uuid[]) AS given (event_id, id) CROSS JOIN LATERAL (
    SELECT booking.id FROM booking
    WHERE booking.event_id = given.event_id AND booking.id = given.id LIMIT 1 FOR NO KEY UPDATE
) AS locked

-- name: load_checked_in
-- Those of the given bookings with which somebody has entered.
SELECT used.booking_id
FROM unnest($1::uuid[], $2::uuid[]) AS given (event_id, id) CROSS JOIN LATERAL (
    SELECT checkin.booking_id FROM checkin
    WHERE checkin.event_id = given.event_id AND checkin.booking_id = given.id LIMIT 1
) AS used

-- name: load
-- Everything a batch needs, as one JSON document. It reads the clock after the lock was granted. It loads:
-- - bookings: due holds of `:events` (up to `:due_max` each), bookings made under the request keys, bookings named by id,
--   and bookings that must end with their event (up to `:ending_max` each). Of due and ending bookings it takes as many as
--   have `:lines_max` lines together, because a few of them may have more lines than the process can handle at once;
-- - `unfinished`: the events that may have more due holds than these;
-- - users: what the given users, and those whose expired bookings may be revived, have in their live bookings;
-- - the counters of the given pools and of every pool that these bookings have lines in;
-- - the taken seats within the given ranges, and those of bookings that may be revived;
-- - the webhook endpoints of the orgs;
-- - the buses that get every entry.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT booking.event_id, booking.id, {{lines_before}} < :lines_max AS is_wanted
    FROM clock CROSS JOIN unnest(:events::uuid[]) AS given (event_id) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = given.event_id
          AND booking.status IN ({{timed}})
          AND booking.expires_at <= clock.at
        ORDER BY booking.event_id, booking.expires_at LIMIT :due_max
    ) AS booking {{with_line_count}}
),
wanted AS MATERIALIZED (
    SELECT due.event_id, due.id FROM due WHERE due.is_wanted
    UNION
    SELECT made.event_id, made.id
    FROM unnest(:request_events::uuid[], :request_keys::bytea[]) AS given (event_id, request_key) CROSS JOIN LATERAL (
        SELECT booking.event_id, booking.id FROM booking
        WHERE booking.event_id = given.event_id AND booking.request_key = given.request_key
          AND booking.request_key > ''
        LIMIT 1
    ) AS made
    UNION
    SELECT * FROM unnest(:booking_events::uuid[], :booking_ids::uuid[])
    UNION
    SELECT ending.event_id, ending.id
    FROM (
        SELECT booking.event_id, booking.id, {{lines_before}} < :lines_max AS is_wanted
        FROM unnest(:events::uuid[]) AS given (event_id) CROSS JOIN LATERAL (
            SELECT booking.event_id, booking.id FROM event JOIN booking ON booking.event_id = event.id
            WHERE event.id = given.event_id AND event.status IN ({{ended}})
              AND booking.status IN ({{live}})
              AND (event.status, booking.status) IN ({{endings}})
            LIMIT :ending_max
        ) AS booking {{with_line_count}}
    ) AS ending
    WHERE ending.is_wanted
),
users AS MATERIALIZED (
    SELECT given.event_id, given.user_id, live.bookings, live.units, live.unpaid_units
    FROM clock CROSS JOIN (
        SELECT * FROM unnest(:user_events::uuid[], :users::text[])
        UNION
        SELECT named.event_id, named.user_id
        FROM unnest(:revival_events::uuid[], :revivals::uuid[]) AS given (event_id, id) CROSS JOIN LATERAL (
            SELECT booking.event_id, booking.user_id FROM booking
            WHERE booking.event_id = given.event_id AND booking.id = given.id LIMIT 1
        ) AS named
    ) AS given (event_id, user_id) CROSS JOIN LATERAL (
        SELECT count(*) AS bookings, coalesce(sum(size.units), 0) AS units, coalesce(sum(size.units) FILTER (
            WHERE booking.status IN ({{holding}}) OR (
                (booking.total = 0 OR booking.expires_at IS NULL)
                AND booking.created_at > clock.at - make_interval(secs => :free_seconds)
            )
        ), 0) AS unpaid_units
        FROM (
            SELECT booking.event_id, booking.id, booking.status, booking.total, booking.expires_at, booking.created_at
            FROM booking
            WHERE booking.event_id = given.event_id AND booking.user_id = given.user_id
              AND booking.status IN ({{live}})
            LIMIT 10000
        ) AS booking CROSS JOIN LATERAL (
            SELECT sum(line.quantity) AS units FROM (
                SELECT line.quantity FROM line
                WHERE line.event_id = booking.event_id AND line.booking_id = booking.id LIMIT 10000
            ) AS line
        ) AS size
    ) AS live
),
bookings AS MATERIALIZED (
    SELECT to_json(fields) AS booking
    FROM wanted CROSS JOIN LATERAL (
        SELECT * FROM booking WHERE booking.event_id = wanted.event_id AND booking.id = wanted.id LIMIT 1
    ) AS booking CROSS JOIN LATERAL (SELECT {{booking_fields}}) AS fields
),
pools AS MATERIALIZED (
    SELECT pool.event_id, pool.number, pool.capacity, pool.held, pool.sold
    FROM (
        SELECT * FROM unnest(:pool_events::uuid[], :pools::integer[])
        UNION
        SELECT line.event_id, line.pool
        FROM wanted CROSS JOIN LATERAL (
            SELECT line.event_id, line.pool FROM line
            WHERE line.event_id = wanted.event_id AND line.booking_id = wanted.id LIMIT 10000
        ) AS line
    ) AS given (event_id, number) CROSS JOIN LATERAL (
        SELECT * FROM pool WHERE pool.event_id = given.event_id AND pool.number = given.number LIMIT 1
    ) AS pool
),
taken AS MATERIALIZED (
    SELECT line.event_id, line.seat
    FROM unnest(:seat_events::uuid[], :first_seats::integer[], :last_seats::integer[]) AS given (event_id, first, last) CROSS JOIN LATERAL (
        SELECT line.event_id, line.seat FROM line
        WHERE line.event_id = given.event_id AND line.live AND line.seat IS NOT NULL
          AND line.seat BETWEEN given.first AND given.last
        ORDER BY line.event_id, line.seat LIMIT 100000
    ) AS line
    UNION ALL
    SELECT other.event_id, other.seat
    FROM unnest(:revival_events::uuid[], :revivals::uuid[]) AS given (event_id, id) CROSS JOIN LATERAL (
        SELECT line.seat FROM line
        WHERE line.event_id = given.event_id AND line.booking_id = given.id AND line.seat IS NOT NULL LIMIT 10000
    ) AS own CROSS JOIN LATERAL (
        SELECT line.event_id, line.seat FROM line
        WHERE line.event_id = given.event_id AND line.live AND line.seat IS NOT NULL AND line.seat = own.seat
        ORDER BY line.event_id, line.seat LIMIT 1
    ) AS other
),
endpoints AS MATERIALIZED (
    SELECT endpoint.org_id, endpoint.id, endpoint.kinds
    FROM unnest(:orgs::uuid[]) AS given (org_id) CROSS JOIN LATERAL (
        SELECT org_id, id, kinds FROM webhook_endpoint
        WHERE webhook_endpoint.org_id = given.org_id AND webhook_endpoint.enabled LIMIT 100
    ) AS endpoint
)
SELECT json_build_object(
    'now', clock.at,
    'unfinished', (
        SELECT coalesce(json_agg(holdfast_base64(event_id)), '[]')
        FROM (SELECT event_id FROM due GROUP BY event_id HAVING count(*) >= :due_max OR NOT bool_and(is_wanted)) AS unfinished
    ),
    'bookings', (SELECT coalesce(json_agg(booking), '[]') FROM bookings),
    'users', (
        SELECT coalesce(json_agg(json_build_array(holdfast_base64(event_id), user_id, bookings, units, unpaid_units)), '[]')
        FROM users
    ),
    'pools', (
        SELECT coalesce(json_agg(json_build_array(holdfast_base64(event_id), number, capacity, held, sold)), '[]')
        FROM pools
    ),
    'taken', (
        SELECT coalesce(json_agg(json_build_array(holdfast_base64(event_id), seats)), '[]')
        FROM (SELECT event_id, json_agg(seat) AS seats FROM taken GROUP BY event_id) AS taken_in_event
    ),
    'endpoints', (
        SELECT coalesce(json_agg(json_build_array(holdfast_base64(org_id), holdfast_base64(id), kinds)), '[]')
        FROM endpoints
    ),
    'buses', to_json(ARRAY(SELECT name FROM event_bus ORDER BY name))
)
FROM clock

-- name: load_own_bookings
-- Only for batches with users who have live bookings and ask for more, as one JSON document:
-- - users: the latest live booking of each given user;
-- - owners: those of the named seats that the user who asks already has;
-- - bookings: those that have such a seat, if it is the first that a command names, and the latest one of a user who can
--   have only one.
WITH users AS MATERIALIZED (
    SELECT given.event_id, given.user_id, given.is_wanted, latest.id
    FROM unnest(:user_events::uuid[], :users::text[], :user_wanted::boolean[]) AS given (event_id, user_id, is_wanted)
    CROSS JOIN LATERAL (
        SELECT max(booking.id::text)::uuid AS id FROM (
            SELECT booking.id FROM booking
            WHERE booking.event_id = given.event_id AND booking.user_id = given.user_id
              AND booking.status IN ({{live}})
            LIMIT 10000
        ) AS booking
    ) AS latest
    WHERE latest.id IS NOT NULL
),
owners AS MATERIALIZED (
    SELECT given.event_id, given.user_id, given.seat, given.is_first, line.booking_id
    FROM unnest(:named_events::uuid[], :named_seats::integer[], :named_users::text[], :named_first::boolean[])
        AS given (event_id, seat, user_id, is_first)
    CROSS JOIN LATERAL (
        SELECT line.event_id, line.booking_id FROM line
        WHERE line.event_id = given.event_id AND line.live AND line.seat IS NOT NULL AND line.seat = given.seat
        ORDER BY line.event_id, line.seat LIMIT 1
    ) AS line CROSS JOIN LATERAL (
        SELECT booking.user_id, booking.status FROM booking
        WHERE booking.event_id = line.event_id AND booking.id = line.booking_id LIMIT 1
    ) AS booking
    WHERE booking.user_id = given.user_id AND booking.status IN ({{live}})
),
wanted AS MATERIALIZED (
    SELECT event_id, id FROM users WHERE is_wanted
    UNION
    SELECT event_id, booking_id FROM owners WHERE is_first
)
SELECT json_build_object(
    'users', (
        SELECT coalesce(json_agg(json_build_array(holdfast_base64(event_id), user_id, holdfast_base64(id))), '[]')
        FROM users
    ),
    'owners', (
        SELECT coalesce(json_agg(json_build_array(
            holdfast_base64(event_id), seat, holdfast_base64(booking_id), user_id
        )), '[]')
        FROM owners
    ),
    'bookings', (
        SELECT coalesce(json_agg(to_json(fields)), '[]')
        FROM wanted CROSS JOIN LATERAL (
            SELECT * FROM booking WHERE booking.event_id = wanted.event_id AND booking.id = wanted.id LIMIT 1
        ) AS booking CROSS JOIN LATERAL (SELECT {{booking_fields}}) AS fields
    )
)

-- name: load_clients
-- Only for batches with holds that limits against hoarding apply to, as one JSON document:
-- - what the given clients have without paying, and how many of their last `:client_outcomes` bookings expired in a row;
-- - how many of the last `:guest_outcomes` bookings of the given guests expired in a row.
WITH clients AS MATERIALIZED (
    SELECT given.event_id, given.client, held.units + free.units AS units, streak.expired, streak.last_at
    FROM unnest(:client_events::uuid[], :clients::bytea[], :client_outcomes::integer[]) AS given (event_id, client, outcomes)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(line.quantity), 0) AS units
        FROM (
            SELECT booking.event_id, booking.id FROM booking
            WHERE booking.event_id = given.event_id AND booking.client = given.client
              AND booking.client IS NOT NULL AND booking.status IN ({{holding}})
            LIMIT 10000
        ) AS booking CROSS JOIN LATERAL (
            SELECT line.quantity FROM line
            WHERE line.event_id = booking.event_id AND line.booking_id = booking.id LIMIT 10000
        ) AS line
    ) AS held CROSS JOIN LATERAL (
        SELECT coalesce(sum(line.quantity), 0) AS units
        FROM (
            SELECT booking.event_id, booking.id FROM booking
            WHERE booking.event_id = given.event_id AND booking.client = given.client
              AND booking.client IS NOT NULL AND booking.status IN ({{sold}})
              AND (booking.total = 0 OR booking.expires_at IS NULL)
              AND booking.created_at > :now::timestamptz - make_interval(secs => :free_seconds)
            ORDER BY booking.client, booking.event_id, booking.created_at LIMIT 10000
        ) AS booking CROSS JOIN LATERAL (
            SELECT line.quantity FROM line
            WHERE line.event_id = booking.event_id AND line.booking_id = booking.id LIMIT 10000
        ) AS line
    ) AS free CROSS JOIN LATERAL (
        SELECT count(*) AS expired, max(outcome.expires_at) AS last_at
        FROM (
            SELECT booking.expires_at, bool_and(booking.status = 'expired') OVER (ORDER BY booking.version DESC) AS in_a_row
            FROM (
                SELECT booking.expires_at, booking.status, booking.version FROM booking
                WHERE booking.event_id = given.event_id AND booking.client = given.client
                  AND booking.client IS NOT NULL AND booking.status IN ({{outcomes}})
                ORDER BY booking.event_id DESC, booking.client DESC, booking.version DESC LIMIT given.outcomes
            ) AS booking
        ) AS outcome WHERE outcome.in_a_row
    ) AS streak
),
streaks AS MATERIALIZED (
    SELECT given.event_id, given.user_id, streak.expired, streak.last_at
    FROM unnest(:guest_events::uuid[], :guests::text[], :guest_outcomes::integer[]) AS given (event_id, user_id, outcomes)
    CROSS JOIN LATERAL (
        SELECT count(*) AS expired, max(outcome.expires_at) AS last_at
        FROM (
            SELECT booking.expires_at, bool_and(booking.status = 'expired') OVER (ORDER BY booking.version DESC) AS in_a_row
            FROM (
                SELECT booking.expires_at, booking.status, booking.version FROM booking
                WHERE booking.event_id = given.event_id AND booking.user_id = given.user_id
                  AND booking.client IS NOT NULL AND booking.status IN ({{outcomes}})
                ORDER BY booking.event_id DESC, booking.user_id DESC, booking.version DESC LIMIT given.outcomes
            ) AS booking
        ) AS outcome WHERE outcome.in_a_row
    ) AS streak
)
SELECT json_build_object(
    'clients', (
        SELECT coalesce(json_agg(json_build_array(
            holdfast_base64(event_id), encode(client, 'base64'), units, expired, last_at
        )), '[]')
        FROM clients
    ),
    'streaks', (
        SELECT coalesce(json_agg(json_build_array(holdfast_base64(event_id), user_id, expired, last_at)), '[]')
        FROM streaks
    )
)

-- name: load_events
SELECT id, org_id, status, revision, seats_revision, currency, tax_bps, policy, starts_at, ends_at, sales_open_at,
       sales_close_at, contact, questions, providers
FROM event WHERE id = ANY ($1::uuid[])

-- name: load_layout_seats
SELECT event_id, number, label, pool, row, number_in_row, x, y, blocked FROM seat WHERE event_id = ANY ($1::uuid[]) ORDER BY event_id, number

-- name: update_bookings
-- Changed bookings; `was` is the status they were loaded with. The lines of bookings that no longer claim units are no
-- longer live. This runs before `insert_bookings`, which may take the same seats again.
WITH changed AS MATERIALIZED (
    SELECT holdfast_uuid(booking.event) AS event_id, holdfast_uuid(booking.id) AS id, document.was, booking.status,
           booking.user AS user_id, booking.name, booking.email, booking.phone, booking.language, booking.expires_at,
           booking.reason, coalesce(booking.generation, 0) AS generation,
           coalesce(booking.one_per_user, false) AS one_per_user, booking.version
    FROM json_to_recordset($1::json) AS document (was text, booking json)
    CROSS JOIN LATERAL json_to_record(document.booking) AS booking (
        event text, id text, status text, "user" text, name text, email text, phone text, language text,
        expires_at timestamptz, reason text, generation integer, one_per_user boolean, version bigint
    )
), updated AS (
    UPDATE booking SET status = changed.status, user_id = changed.user_id, name = changed.name, email = changed.email,
                       phone = changed.phone, language = changed.language, expires_at = changed.expires_at,
                       reason = changed.reason, generation = changed.generation, one_per_user = changed.one_per_user,
                       version = changed.version
    FROM changed
    WHERE booking.event_id = changed.event_id AND booking.id = changed.id AND booking.status = changed.was
    RETURNING 1
), released AS (
    UPDATE line SET live = false
    FROM changed
    WHERE line.event_id = changed.event_id AND line.booking_id = changed.id AND line.live
      AND changed.status NOT IN ({{claiming}})
    RETURNING 1
)
SELECT (SELECT count(*) FROM updated) AS bookings, (SELECT count(*) FROM released) AS released_lines

-- name: release_users
-- Before a batch gives bookings to other users, or revives them. PostgreSQL checks the index of users with one booking row
-- by row, so the bookings that change leave it first.
UPDATE booking SET one_per_user = false
FROM unnest($1::uuid[], $2::uuid[]) AS changing (event_id, id)
WHERE booking.event_id = changing.event_id AND booking.id = changing.id AND booking.one_per_user

-- name: reclaim_lines
-- The lines of revived bookings are live again. This runs between `update_bookings` and `insert_bookings`.
WITH reclaimed AS (
    UPDATE line SET live = true
    FROM unnest($1::uuid[], $2::uuid[]) AS revived (event_id, booking_id)
    WHERE line.event_id = revived.event_id AND line.booking_id = revived.booking_id AND NOT line.live
    RETURNING 1
)
SELECT (SELECT count(*) FROM reclaimed) AS reclaimed_lines

-- name: insert_bookings
-- New bookings and their lines, and with them the rest of the batch: shifts of pool counters, event versions, and journal
-- entries. An event's version is the number of its last entry, and its head that entry's hash.
WITH new AS MATERIALIZED (
    SELECT holdfast_uuid(booking.event) AS event_id, holdfast_uuid(booking.id) AS booking_id, booking.*
    FROM json_to_recordset(:bookings::json) AS booking (
        id text, event text, org text, "user" text, status text, lines json, subtotal bigint, tax bigint, total bigint,
        currency text, created_at timestamptz, expires_at timestamptz, max_expires_at timestamptz, request_key text,
        fingerprint text, cart_hash text, details text, name text, email text, phone text, language text, answers text,
        reason text, generation integer, client text, one_per_user boolean, version bigint
    )
), bookings AS (
    INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, expires_at,
                         max_expires_at, request_key, fingerprint, cart_hash, details, name, email, phone, language,
                         answers, reason, generation, client, one_per_user, version)
    SELECT event_id, booking_id, holdfast_uuid(org), "user", status, subtotal, tax, total, currency, created_at, expires_at,
           max_expires_at, decode(request_key, 'base64'), decode(fingerprint, 'base64'), decode(cart_hash, 'base64'),
           details::json, name, email, phone, language, answers::json, reason, coalesce(generation, 0),
           decode(client, 'base64'), coalesce(one_per_user, false), version
    FROM new
    RETURNING 1
), lines AS (
    INSERT INTO line (event_id, booking_id, number, pool, tariff, seat, quantity, unit_price, live)
    SELECT new.event_id, new.booking_id, line.number - 1, (line.fields ->> 0)::integer, (line.fields ->> 1)::integer,
           (line.fields ->> 2)::integer, (line.fields ->> 3)::integer, (line.fields ->> 4)::bigint,
           new.status IN ({{claiming}})
    FROM new CROSS JOIN LATERAL json_array_elements(new.lines) WITH ORDINALITY AS line (fields, number)
    RETURNING 1
), pools AS (
    UPDATE pool SET held = pool.held + shift.held, sold = pool.sold + shift.sold
    FROM json_to_recordset(:shifts::json) AS shift (event text, pool integer, held integer, sold integer)
    WHERE pool.event_id = holdfast_uuid(shift.event) AND pool.number = shift.pool
    RETURNING 1
), events AS (
    UPDATE event SET version = changed.version, journal_head = decode(changed.head, 'base64')
    FROM json_to_recordset(:events::json) AS changed (event text, was bigint, version bigint, head text)
    WHERE event.id = holdfast_uuid(changed.event) AND event.version = changed.was
    RETURNING 1
), entries AS (
    INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data, previous)
    SELECT holdfast_uuid(entry.event), entry.number, :now::timestamptz, entry.kind, holdfast_uuid(entry.booking),
           entry.actor, entry.data, decode(entry.previous, 'base64')
    FROM json_to_recordset(:entries::json) AS entry (
        event text, number bigint, kind text, booking text, actor text, data json, previous text
    )
    RETURNING 1
)
SELECT (SELECT count(*) FROM bookings) AS bookings, (SELECT count(*) FROM lines) AS lines,
       (SELECT count(*) FROM pools) AS pools, (SELECT count(*) FROM events) AS events,
       (SELECT count(*) FROM entries) AS entries

-- name: save_payments
-- New payments (`was` is null), changed payments (`was` is the status they were loaded with), and receipts. Requests to
-- the provider set `provider_ref` and `checkout_url` outside of batches, so this leaves them alone.
WITH changed AS MATERIALIZED (
    SELECT holdfast_uuid(document.event) AS event_id, holdfast_uuid(payment.id) AS payment_id, document.org,
           document.booking, document.was, document.due_at, payment.*
    FROM json_to_recordset($1::json) AS document (
        event text, org text, booking text, was text, due_at timestamptz, payment json
    ) CROSS JOIN LATERAL json_to_record(document.payment) AS payment (
        id text, provider text, status text, amount bigint, currency text, request_key text, fingerprint text,
        created_at timestamptz, outcome text, return_url text, captured_at timestamptz, capture_assumed boolean,
        reason text
    )
), inserted AS (
    INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, outcome, amount, currency, request_key,
                         fingerprint, return_url, reason, created_at, captured_at, capture_assumed, due_at)
    SELECT event_id, payment_id, holdfast_uuid(org), holdfast_uuid(booking), provider, status, outcome, amount, currency,
           decode(request_key, 'base64'), decode(fingerprint, 'base64'), return_url, reason, created_at, captured_at,
           coalesce(capture_assumed, false), due_at
    FROM changed WHERE was IS NULL
    RETURNING 1
), updated AS (
    UPDATE payment SET status = changed.status, outcome = changed.outcome, reason = changed.reason,
                       captured_at = changed.captured_at,
                       capture_assumed = coalesce(changed.capture_assumed, false), due_at = changed.due_at, attempts = 0
    FROM changed
    WHERE payment.event_id = changed.event_id AND payment.id = changed.payment_id AND payment.status = changed.was
    RETURNING 1
), receipts AS (
    INSERT INTO receipt (event_id, id, org_id, booking_id, at, hash, content_type, size, file_ref, message_ref)
    SELECT holdfast_uuid(document.event), holdfast_uuid(receipt.id), holdfast_uuid(document.org),
           holdfast_uuid(document.booking), $3::timestamptz, decode(receipt.hash, 'base64'), receipt.content_type,
           receipt.size, receipt.file_ref, receipt.message_ref
    FROM json_to_recordset($2::json) AS document (event text, org text, booking text, receipt json)
    CROSS JOIN LATERAL json_to_record(document.receipt) AS receipt (
        id text, hash text, content_type text, size integer, file_ref text, message_ref text
    )
    RETURNING 1
)
SELECT (SELECT count(*) FROM inserted) AS new_payments, (SELECT count(*) FROM updated) AS changed_payments,
       (SELECT count(*) FROM receipts) AS new_receipts

-- name: insert_deliveries
-- The notifications that the batch's journal entries cause. They are due at once.
INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, recipient_hash, buyer_hash,
                      client_hash, created_at, due_at)
SELECT holdfast_uuid(event), number, target, channel, holdfast_uuid(org), holdfast_uuid(booking), kind, body,
       decode(recipient_hash, 'base64'), decode(buyer_hash, 'base64'), decode(client_hash, 'base64'),
       $2::timestamptz, $2::timestamptz
FROM json_to_recordset($1::json) AS delivery (
    event text, number bigint, target text, channel text, org text, booking text, kind text, body json,
    recipient_hash text, buyer_hash text, client_hash text
)

-- name: insert_push_deliveries
-- A push message for each browser that subscribed to one of these bookings: events $1, bookings $2, kinds $3.
INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
SELECT subscription.event_id, nextval('delivery_number'), 'push:' || replace(subscription.org_id::text, '-', ''), 'push',
       subscription.org_id, subscription.booking_id, reviewed.kind, json_build_object('slot', subscription.slot),
       $4::timestamptz, $4::timestamptz
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS reviewed (event_id, booking_id, kind)
JOIN push_subscription AS subscription
    ON subscription.event_id = reviewed.event_id AND subscription.booking_id = reviewed.booking_id
