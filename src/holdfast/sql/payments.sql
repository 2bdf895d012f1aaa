-- Payments outside of the engine: lookups, the inbox of notices, and the queue of due payments. Only the engine changes
-- a payment's status.

-- name: payment
SELECT {{payment_row}} FROM payment WHERE payment.event_id = $1 AND payment.id = $2

-- name: payment_at_provider
SELECT {{payment_row}} FROM payment WHERE payment.provider = $1 AND payment.provider_ref = $2

-- name: payment_access
-- The payment, if it belongs to the org $3 and, unless null, to the user $4. Customers do not see the payments of a
-- transferred booking.
SELECT {{payment_row}}
FROM payment JOIN booking ON booking.event_id = payment.event_id AND booking.id = payment.booking_id
WHERE payment.event_id = $1 AND payment.id = $2 AND payment.org_id = $3
  AND ($4::text IS NULL OR booking.user_id = $4 AND booking.generation = 0)

-- name: set_started
-- Stores where the buyer pays, for the request that started the payment and its retries. Returns nothing if the payment
-- has ended in the meantime, because then nobody may pay it.
UPDATE payment SET provider_ref = $3, checkout_url = $4 WHERE event_id = $1 AND id = $2 AND status = 'started'
RETURNING id

-- name: set_reference
-- Stores the provider's reference when it arrives in a notice, because the response to `start` was lost.
UPDATE payment SET provider_ref = $3 WHERE event_id = $1 AND id = $2 AND provider_ref IS NULL

-- name: event_title
SELECT title FROM event WHERE id = $1

-- name: insert_notice
-- The process that stores a notice with a result has it to itself for :lease_seconds.
INSERT INTO payment_notice (provider, id, body, result, provider_ref, payment, amount, currency, due_at)
VALUES (:provider, :id, :body, :result, :provider_ref, :payment, :amount, :currency,
        CASE WHEN :result::text IS NOT NULL THEN holdfast_now() + make_interval(secs => :lease_seconds) END)
ON CONFLICT (provider, id) DO NOTHING
RETURNING provider, id, result, provider_ref, payment, amount, currency, attempts, received_at

-- name: orgs_with_waiting_notices
-- Up to :orgs_max orgs after :after that have waiting notices, and whether any of those is due. Each step jumps to the
-- next org in `payment_notice_due`, where the first row of an org is the first one due, so the number of notices does
-- not matter.
WITH RECURSIVE seen AS (
    (SELECT 1 AS step, org_id, due_at FROM payment_notice
     WHERE due_at IS NOT NULL AND org_id > :after ORDER BY org_id, due_at LIMIT 1)
    UNION ALL
    SELECT seen.step + 1, following.org_id, following.due_at FROM seen CROSS JOIN LATERAL (
        SELECT org_id, due_at FROM payment_notice
        WHERE due_at IS NOT NULL AND org_id > seen.org_id ORDER BY org_id, due_at LIMIT 1
    ) AS following WHERE seen.step < :orgs_max
)
SELECT org_id AS org, due_at <= holdfast_now() AS due FROM seen

-- name: claim_notices
-- Stored notices of one org that had no effect yet, in the order they arrived: the process that stored one died or
-- failed, or no payment matches it yet.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT provider, id FROM payment_notice WHERE org_id = :org AND due_at <= (SELECT at FROM clock)
    ORDER BY due_at LIMIT :claim_max FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE payment_notice AS notice
    SET due_at = clock.at + make_interval(secs => :lease_seconds), attempts = notice.attempts + 1
    FROM clock, due WHERE notice.provider = due.provider AND notice.id = due.id
    RETURNING notice.provider, notice.id, notice.result, notice.provider_ref, notice.payment, notice.amount,
              notice.currency, notice.attempts, notice.received_at, clock.at - notice.received_at AS age
)
SELECT * FROM claimed ORDER BY received_at

-- name: finish_notice
UPDATE payment_notice SET due_at = NULL, handled_as = $3 WHERE provider = $1 AND id = $2

-- name: postpone_notice
-- A worker whose lease has ended must not make a notice due again that another worker has finished. $4 is the org, if
-- the notice's payment is known.
UPDATE payment_notice SET due_at = holdfast_now() + make_interval(secs => $3), org_id = coalesce($4, org_id)
WHERE provider = $1 AND id = $2 AND due_at IS NOT NULL

-- name: orgs_with_waiting_payments
-- The same as `orgs_with_waiting_notices`, for payments in one status.
WITH RECURSIVE seen AS (
    (SELECT 1 AS step, org_id, due_at FROM payment
     WHERE due_at IS NOT NULL AND status = :status AND org_id > :after ORDER BY org_id, due_at LIMIT 1)
    UNION ALL
    SELECT seen.step + 1, following.org_id, following.due_at FROM seen CROSS JOIN LATERAL (
        SELECT org_id, due_at FROM payment
        WHERE due_at IS NOT NULL AND status = :status AND org_id > seen.org_id ORDER BY org_id, due_at LIMIT 1
    ) AS following WHERE seen.step < :orgs_max
)
SELECT org_id AS org, due_at <= holdfast_now() AS due FROM seen

-- name: claim_payments
-- Due payments of one org in one status, with the deadline of their booking. `attempts` sets the pace of retries, so it does not
-- count the regular polls during the hold.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT event_id, id, booking_id FROM payment
    WHERE org_id = :org AND status = :status AND due_at <= (SELECT at FROM clock)
    ORDER BY due_at LIMIT :claim_max FOR UPDATE SKIP LOCKED
)
UPDATE payment SET due_at = clock.at + make_interval(secs => :lease_seconds),
                   attempts = payment.attempts + (payment.status = 'refund_due' OR NOT hold.held)::integer
FROM clock, due JOIN booking ON booking.event_id = due.event_id AND booking.id = due.booking_id
     CROSS JOIN LATERAL (SELECT booking.status IN ({{payable}}) AND booking.expires_at > clock.at AS held) AS hold
WHERE payment.event_id = due.event_id AND payment.id = due.id
RETURNING {{payment_row}}, payment.attempts, clock.at AS now, booking.expires_at, hold.held

-- name: postpone_payment
UPDATE payment SET due_at = $4 WHERE event_id = $1 AND id = $2 AND status = $3

-- name: receipts
-- The receipts of a booking, each with the org's other bookings for which somebody submitted the same one.
SELECT receipt.id, receipt.at, receipt.content_type, receipt.size, receipt.file_ref, receipt.message_ref,
       ARRAY(
           SELECT 'bk_' || replace(other.event_id::text || other.booking_id::text, '-', '') FROM receipt AS other
           WHERE other.org_id = receipt.org_id AND other.hash = receipt.hash AND other.booking_id <> receipt.booking_id
           ORDER BY other.at LIMIT 20
       ) AS also_on
FROM receipt WHERE receipt.booking_id = $2 AND receipt.event_id = $1 AND receipt.org_id = $3
ORDER BY receipt.at, receipt.id

-- name: receipt
SELECT org_id, hash, content_type FROM receipt WHERE event_id = $1 AND id = $2 AND org_id = $3

-- name: receipt_access
-- Decides whether the booking of this org and user accepts a receipt now. Returns no row if there is no such booking.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT booking.status, booking.total = 0 AS is_free, event.status AS event_status,
       coalesce(event.policy ->> 'review' = 'manual', false) AS is_reviewed,
       coalesce(booking.expires_at + make_interval(secs => (event.policy ->> 'late_grace_seconds')::integer) < clock.at,
                false) AS is_too_late
FROM clock CROSS JOIN booking JOIN event ON event.id = booking.event_id
WHERE booking.event_id = $1 AND booking.id = $2 AND booking.org_id = $3 AND ($4::text IS NULL OR booking.user_id = $4)

-- name: lock_receipt_files
-- Uploads for one booking reserve their files one after the other. Nothing else takes this lock.
SELECT pg_advisory_xact_lock($1)

-- name: reserve_receipt_file
-- Returns a row if the booking may store this file: one that it knows already, or one of its first :files_max.
WITH known AS MATERIALIZED (
    SELECT hash FROM receipt_file WHERE event_id = :event AND booking_id = :booking
    UNION
    SELECT hash FROM receipt WHERE booking_id = :booking AND event_id = :event
)
INSERT INTO receipt_file (event_id, booking_id, hash)
SELECT :event, :booking, :hash
WHERE (SELECT count(*) FROM known) < :files_max OR EXISTS (SELECT FROM known WHERE hash = :hash)
ON CONFLICT (event_id, booking_id, hash) DO UPDATE SET hash = excluded.hash
RETURNING hash

-- name: booking_access
-- What a caller has to know about a booking of this org and user before acting on it.
SELECT generation FROM booking WHERE event_id = $1 AND id = $2 AND org_id = $3 AND ($4::text IS NULL OR user_id = $4)
