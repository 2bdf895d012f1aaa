-- Recovering a guest's bookings by email: requests, links, limits, and the bookings themselves.
--
-- Addresses match regardless of the case of their ASCII letters. `booking_of_email` says why other letters do not fold.

-- name: insert_request
-- Stores a request, and returns its id unless the address or the org has had too many in this hour. An address over its
-- limit uses up none of the org's, and an org over its limit gets no more rows for new addresses.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at, date_trunc('hour', holdfast_now()) AS hour),
address AS (
    INSERT INTO recovery_count AS counted (kind, key, starts_at, count)
    SELECT 'address_hour', :client::bytea, clock.hour, 1 FROM clock
    WHERE NOT EXISTS (
        SELECT FROM recovery_count AS full_org
        WHERE full_org.kind = 'org_hour' AND full_org.key = :org_key::bytea AND full_org.starts_at = clock.hour
          AND full_org.count >= :per_org::integer
    )
    ON CONFLICT (kind, key, starts_at) DO UPDATE SET count = counted.count + 1
    WHERE counted.count < :per_address::integer
    RETURNING counted.starts_at
),
org AS (
    INSERT INTO recovery_count AS counted (kind, key, starts_at, count)
    SELECT 'org_hour', :org_key::bytea, address.starts_at, 1 FROM address
    ON CONFLICT (kind, key, starts_at) DO UPDATE SET count = counted.count + 1
    WHERE counted.count < :per_org::integer
    RETURNING counted.starts_at
)
INSERT INTO recovery_request (id, org_id, email, language, created_at, due_at)
SELECT :id, :org, :email, :language, clock.at, clock.at FROM clock CROSS JOIN org
RETURNING id

-- name: orgs_with_waiting_requests
-- Up to :orgs_max orgs after :after that have requests, and whether any of those is due. Each step jumps to the next org in
-- `recovery_request_due`, so the number of requests does not matter.
WITH RECURSIVE seen AS (
    (SELECT 1 AS step, org_id, due_at FROM recovery_request
     WHERE org_id > :after ORDER BY org_id, due_at LIMIT 1)
    UNION ALL
    SELECT seen.step + 1, following.org_id, following.due_at FROM seen CROSS JOIN LATERAL (
        SELECT org_id, due_at FROM recovery_request
        WHERE org_id > seen.org_id ORDER BY org_id, due_at LIMIT 1
    ) AS following WHERE seen.step < :orgs_max
)
SELECT org_id AS org, due_at <= holdfast_now() AS due FROM seen

-- name: claim_requests
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT id FROM recovery_request
    WHERE org_id = :org AND due_at <= (SELECT at FROM clock)
    ORDER BY org_id, due_at LIMIT :claim_max FOR UPDATE SKIP LOCKED
)
UPDATE recovery_request SET due_at = clock.at + make_interval(secs => :lease_seconds), attempts = attempts + 1
FROM clock, due WHERE recovery_request.id = due.id
RETURNING recovery_request.id, org_id AS org, email, language, attempts

-- name: postpone_request
-- If the lease has ended and another worker has claimed the request, its attempts are no longer :attempts, and it is left to
-- that worker.
UPDATE recovery_request SET due_at = holdfast_now() + make_interval(secs => :seconds)
WHERE id = :id AND attempts = :attempts

-- name: delete_request
DELETE FROM recovery_request WHERE id = $1

-- name: recipient
-- The org, and the address in the newest recoverable booking.
SELECT org.slug, org.name AS org_name, booking.email
FROM org CROSS JOIN LATERAL (
    SELECT booking.email FROM booking
    WHERE booking.org_id = org.id AND lower(booking.email COLLATE "C") = lower(:email::text COLLATE "C")
      AND booking.email IS NOT NULL AND booking.user_id ~ {{guest}} AND booking.status IN ({{recoverable}})
    ORDER BY booking.org_id DESC, lower(booking.email COLLATE "C") DESC, booking.id DESC LIMIT 1
) AS booking
WHERE org.id = :org

-- name: count_email
-- Counts an email to a recipient, and returns a row unless that is one too many in this hour or day.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
hour AS (
    INSERT INTO recovery_count AS counted (kind, key, starts_at, count)
    SELECT 'recipient_hour', :recipient::bytea, date_trunc('hour', clock.at), 1 FROM clock
    ON CONFLICT (kind, key, starts_at) DO UPDATE SET count = counted.count + 1
    WHERE counted.count < :per_hour::integer
    RETURNING counted.key
)
INSERT INTO recovery_count AS counted (kind, key, starts_at, count)
SELECT 'recipient_day', hour.key, date_trunc('day', clock.at), 1 FROM clock CROSS JOIN hour
ON CONFLICT (kind, key, starts_at) DO UPDATE SET count = counted.count + 1
WHERE counted.count < :per_day::integer
RETURNING counted.count

-- name: insert_link
INSERT INTO recovery_link (token_hash, request_id, org_id, email, expires_at)
VALUES (:token_hash, :request, :org, :email, holdfast_now() + make_interval(secs => :valid_seconds))

-- name: link
SELECT email, holdfast_now() AS now FROM recovery_link
WHERE token_hash = $1 AND org_id = $2 AND expires_at > holdfast_now()

-- name: use_link
-- Deletes the link and all others of its request. Of several uses at once, one gets a row.
WITH used AS MATERIALIZED (
    SELECT request_id FROM recovery_link WHERE token_hash = $1 AND org_id = $2 AND expires_at > holdfast_now()
)
DELETE FROM recovery_link USING used WHERE recovery_link.request_id = used.request_id
RETURNING recovery_link.email, holdfast_now() AS now

-- name: delete_old_requests
-- Up to $2 requests that are older than $1 seconds.
DELETE FROM recovery_request WHERE id IN (
    SELECT id FROM recovery_request WHERE created_at < holdfast_now() - make_interval(secs => $1)
    ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
)

-- name: delete_expired_links
-- Up to $1 of them.
DELETE FROM recovery_link WHERE token_hash IN (
    SELECT token_hash FROM recovery_link WHERE expires_at <= holdfast_now()
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
)

-- name: delete_old_counts
-- Up to $2 counts that started more than $1 seconds ago.
DELETE FROM recovery_count WHERE (kind, key, starts_at) IN (
    SELECT kind, key, starts_at FROM recovery_count WHERE starts_at < holdfast_now() - make_interval(secs => $1)
    ORDER BY starts_at LIMIT $2 FOR UPDATE SKIP LOCKED
)

-- name: owner
-- The guest whom a booking belongs to, if it was made before one of the browser's recoveries and has that address. A booking
-- keeps no former owner: a transfer changes its address.
SELECT booking.user_id FROM booking
WHERE booking.event_id = :event AND booking.id = :booking AND booking.org_id = :org AND booking.user_id ~ {{guest}}
  AND EXISTS (
    SELECT FROM unnest(:emails::text[], :recovered_at::float8[]) AS recovered (email, at)
    WHERE lower(booking.email COLLATE "C") = lower(recovered.email COLLATE "C")
      AND booking.created_at <= to_timestamp(recovered.at)
  )

-- name: bookings
-- The bookings that were made before a recovery and have its address, newest first: up to :limit for each address, and no
-- more than have :lines_max lines, but at least one. Rows have the form of the statement `bookings` in reads.sql,
-- without details, which no list shows.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
page AS MATERIALIZED (
    SELECT booking.*
    FROM unnest(:emails::text[], :recovered_at::float8[]) AS recovered (email, at) CROSS JOIN LATERAL (
        SELECT * FROM booking
        WHERE booking.org_id = :org AND lower(booking.email COLLATE "C") = lower(recovered.email COLLATE "C")
          AND booking.email IS NOT NULL AND booking.user_id ~ {{guest}} AND booking.status IN ({{recoverable}})
          AND booking.created_at <= to_timestamp(recovered.at)
        ORDER BY booking.org_id DESC, lower(booking.email COLLATE "C") DESC, booking.id DESC LIMIT :limit
    ) AS booking
),
counted AS MATERIALIZED (
    SELECT page.*, count(*) OVER () AS found, sum(line.count) OVER (ORDER BY page.id DESC) - line.count AS lines_before
    FROM page CROSS JOIN LATERAL (
        SELECT count(*) FROM line WHERE line.event_id = page.event_id AND line.booking_id = page.id
    ) AS line
)
SELECT clock.at AS now, to_json(fields) AS booking, {{booking_items}} AS items, booking.found
FROM clock CROSS JOIN counted AS booking CROSS JOIN LATERAL (SELECT {{booking_fields}}) AS fields
WHERE booking.lines_before < :lines_max
ORDER BY booking.id DESC
