-- Creating and changing events. Changes happen under the event's lock, like every change to its stock.

-- name: insert_event
INSERT INTO event (id, org_id, status, version, title, preset, starts_at, ends_at, timezone, currency, tax_bps,
                   policy, details, seat_count, sales_open_at, sales_close_at, contact, questions, payment_instructions,
                   providers, shift, order_number, series_id, one_per_user_since, actor_key)
VALUES (:id, :org, 'draft', 1, :title, :preset, :starts_at, :ends_at, :timezone, :currency, :tax_bps, :policy, :details,
        :seat_count, :sales_open_at, :sales_close_at, :contact, :questions, :payment_instructions, :providers, :shift,
        :order_number, :series, CASE WHEN :one_per_user::boolean THEN holdfast_now() END, :actor_key)
ON CONFLICT (id) DO NOTHING

-- name: exists
SELECT EXISTS (SELECT FROM event WHERE id = $1)

-- name: set_last_slot
UPDATE event SET last_slot_at = (SELECT max(starts_at) FROM pool WHERE pool.event_id = $1) WHERE id = $1

-- name: org_usage
-- The usage that the quotas of an org limit.
SELECT count(*) AS events, coalesce(sum(seat_count), 0)::bigint AS seats
FROM event WHERE org_id = $1 AND status IN ('draft', 'active') AND seat_count >= 0

-- name: insert_pools
INSERT INTO pool (event_id, number, code, name, seated, capacity, starts_at, ends_at, sales_open_at, sales_close_at)
SELECT $1, * FROM json_to_recordset($2::json) AS pool (
    number integer, code text, name text, seated boolean, capacity integer, starts_at timestamptz, ends_at timestamptz,
    sales_open_at timestamptz, sales_close_at timestamptz
)

-- name: insert_tariffs
INSERT INTO tariff (event_id, pool, number, code, name, price, needs_companion)
SELECT $1, * FROM json_to_recordset($2::json) AS tariff (
    pool integer, number integer, code text, name text, price bigint, needs_companion boolean
)

-- name: insert_seats
INSERT INTO seat (event_id, number, pool, label, row, number_in_row, x, y)
SELECT $1, * FROM json_to_recordset($2::json) AS seat (
    number integer, pool integer, label text, row text, number_in_row integer, x float8, y float8
)

-- name: lock
SELECT status, title, starts_at, ends_at, timezone, tax_bps, policy, details, sales_open_at, sales_close_at, contact,
       questions, payment_instructions, providers, shift, series_id, actor_key
FROM event WHERE id = $1 AND org_id = $2 FOR UPDATE

-- name: set_event
UPDATE event SET title = :title, starts_at = :starts_at, ends_at = :ends_at, timezone = :timezone, tax_bps = :tax_bps,
                 policy = :policy, details = :details, sales_open_at = :sales_open_at, sales_close_at = :sales_close_at,
                 contact = :contact, questions = :questions, payment_instructions = :payment_instructions,
                 providers = :providers, shift = :shift, order_number = :order_number, series_id = :series,
                 one_per_user_since = CASE WHEN :one_per_user::boolean THEN coalesce(one_per_user_since, holdfast_now()) END
WHERE id = :id

-- name: set_status
UPDATE event SET status = $2, published_at = CASE WHEN $2 = 'active' THEN holdfast_now() ELSE published_at END
WHERE id = $1

-- name: insert_revision
-- Records a change to the event: a new revision, a journal entry, and a delivery to each bus and to each webhook endpoint
-- that subscribes to this kind of entry. Receivers know the event as :public_id and the kind as :webhook_kind.
WITH entry AS MATERIALIZED (
    SELECT event.id AS event_id, event.journal_head AS previous, holdfast_now() AS at, NULL::uuid AS booking_id,
           :kind::text AS kind, :actor::text AS actor, :data::json AS data
    FROM event WHERE event.id = :event
), changed AS (
    UPDATE event SET revision = event.revision + 1, version = event.version + 1, journal_head = {{entry_hash}},
                     seats_revision = CASE WHEN :changes_seats THEN event.revision + 1 ELSE event.seats_revision END
    FROM entry WHERE event.id = entry.event_id
    RETURNING event.id, event.org_id, event.version, event.status, event.title, entry.at
), deliveries AS (
    INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
    SELECT changed.id, changed.version, receiver.target, receiver.channel, changed.org_id, changed.id, :webhook_kind,
           json_build_object('event', :public_id::text, 'seq', changed.version,
                             'at', changed.at, 'status', changed.status, 'title', changed.title),
           changed.at, changed.at
    FROM changed CROSS JOIN LATERAL (
        SELECT replace(endpoint.id::text, '-', '') AS target, 'webhook' AS channel FROM webhook_endpoint AS endpoint
        WHERE endpoint.org_id = changed.org_id AND endpoint.enabled
          AND (endpoint.kinds = '{}' OR :webhook_kind::text = ANY (endpoint.kinds))
        UNION ALL
        SELECT name || ':' || replace(changed.org_id::text, '-', ''), name FROM event_bus
    ) AS receiver
)
INSERT INTO journal (event_id, number, at, kind, actor, data, previous)
SELECT changed.id, changed.version, entry.at, entry.kind, entry.actor, entry.data, entry.previous
FROM changed CROSS JOIN entry

-- name: insert_first_entry
WITH entry AS MATERIALIZED (
    SELECT {{chain_start}} AS previous, holdfast_now() AS at, NULL::uuid AS booking_id, 'event_created' AS kind,
           :actor::text AS actor, '{}'::json AS data
), inserted AS (
    INSERT INTO journal (event_id, number, at, kind, actor, data, previous)
    SELECT :event, 1, at, kind, actor, data, previous FROM entry
)
UPDATE event SET journal_head = {{entry_hash}} FROM entry WHERE event.id = :event

-- name: pools
SELECT number, code, name, seated, capacity, held, sold, starts_at, ends_at, sales_open_at, sales_close_at
FROM pool WHERE event_id = $1 ORDER BY number

-- name: tariffs_of_pool
SELECT number, code, name, needs_companion FROM tariff WHERE event_id = $1 AND pool = $2

-- name: set_pool
UPDATE pool SET name = :name, capacity = :capacity, starts_at = :starts_at, ends_at = :ends_at,
                sales_open_at = :sales_open_at, sales_close_at = :sales_close_at
WHERE event_id = :event AND number = :number

-- name: set_tariff
UPDATE tariff SET name = :name, price = :price, needs_companion = :needs_companion
WHERE event_id = :event AND pool = :pool AND number = :number

-- name: count_seats
SELECT seat_count FROM event WHERE id = $1

-- name: add_seats
UPDATE event SET seat_count = seat_count + $2 WHERE id = $1

-- name: prices
SELECT DISTINCT price FROM tariff WHERE event_id = $1

-- name: count_tariffs
SELECT count(*) FROM tariff WHERE event_id = $1

-- name: seats_by_label
-- The seats with these labels, and whether a booking has them.
SELECT seat.number, seat.label, seat.pool, seat.blocked,
       EXISTS (SELECT FROM line WHERE line.event_id = $1 AND line.seat = seat.number AND line.live) AS taken
FROM seat WHERE seat.event_id = $1 AND seat.label = ANY ($2::text[])

-- name: set_blocked
UPDATE seat SET blocked = $3 WHERE event_id = $1 AND number = ANY ($2::integer[])

-- name: labels_in_use
SELECT label FROM seat WHERE event_id = $1 AND label = ANY ($2::text[])

-- name: shift_capacity
UPDATE pool SET capacity = capacity + $3 WHERE event_id = $1 AND number = $2
