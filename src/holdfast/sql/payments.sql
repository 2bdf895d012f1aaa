-- Payments outside of batches: where they are found, what providers told, and what a worker has to turn to. The status of
-- a payment changes only in a batch.

-- name: payment
SELECT event_id, id, org_id, booking_id, provider, provider_ref, status FROM payment WHERE event_id = $1 AND id = $2

-- name: payment_at_provider
SELECT event_id, id, org_id, booking_id, provider, provider_ref, status FROM payment
WHERE provider = $1 AND provider_ref = $2

-- name: payment_view
-- $4: the user whose payment it has to be, or null.
SELECT payment.id, payment.event_id, payment.booking_id, provider, provider_ref, payment.status, outcome, amount,
       payment.currency, checkout_url, payment.reason, payment.created_at
FROM payment JOIN booking ON booking.event_id = payment.event_id AND booking.id = payment.booking_id
WHERE payment.event_id = $1 AND payment.id = $2 AND payment.org_id = $3 AND ($4::text IS NULL OR booking.user_id = $4)

-- name: set_started
-- The provider's answer. It is written once; who asks the provider again gets the same one.
UPDATE payment SET provider_ref = $3, checkout_url = $4 WHERE event_id = $1 AND id = $2 AND provider_ref IS NULL

-- name: event_title
SELECT title FROM event WHERE id = $1

-- name: insert_notice
-- $9: for how many seconds whoever stores it has it to themselves.
INSERT INTO payment_notice (provider, id, body, news, provider_ref, payment, amount, currency, due_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, CASE WHEN $4::text IS NULL THEN NULL ELSE holdfast_now() + make_interval(secs => $9) END)
ON CONFLICT (provider, id) DO NOTHING
RETURNING provider, id, news, provider_ref, payment, amount, currency, attempts, received_at

-- name: claim_notices
-- What was stored and not dealt with: whoever should have has died, or it cannot be matched yet.
UPDATE payment_notice SET due_at = holdfast_now() + make_interval(secs => $2), attempts = attempts + 1
WHERE (provider, id) IN (
    SELECT provider, id FROM payment_notice WHERE due_at <= holdfast_now()
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
RETURNING provider, id, news, provider_ref, payment, amount, currency, attempts, received_at,
          holdfast_now() - received_at AS age

-- name: finish_notice
UPDATE payment_notice SET due_at = NULL, result = $3 WHERE provider = $1 AND id = $2

-- name: postpone_notice
UPDATE payment_notice SET due_at = holdfast_now() + make_interval(secs => $3) WHERE provider = $1 AND id = $2

-- name: claim_payments
-- Payments to pay back, or to ask their provider about, with what their booking is like now.
UPDATE payment SET due_at = holdfast_now() + make_interval(secs => $3), attempts = payment.attempts + 1
FROM booking
WHERE booking.event_id = payment.event_id AND booking.id = payment.booking_id
  AND (payment.event_id, payment.id) IN (
    SELECT event_id, id FROM payment WHERE due_at <= holdfast_now() AND status = $1
    ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
RETURNING payment.event_id, payment.id, payment.org_id, payment.booking_id, payment.provider, payment.provider_ref,
          payment.amount, payment.currency, payment.attempts, payment.created_at, holdfast_now() AS now,
          booking.expires_at,
          booking.status = 'held' AND booking.expires_at > holdfast_now() AS held

-- name: postpone_payment
UPDATE payment SET due_at = $4 WHERE event_id = $1 AND id = $2 AND status = $3

-- name: receipts
-- The receipts of a booking, and for each the other bookings of the org that the same one was handed in for.
SELECT receipt.event_id, receipt.id, receipt.at, receipt.content_type, receipt.size, receipt.file_ref, receipt.message_ref,
       ARRAY(
           SELECT 'bk_' || replace(other.event_id::text || other.booking_id::text, '-', '') FROM receipt AS other
           WHERE other.org_id = receipt.org_id AND other.hash = receipt.hash AND other.booking_id <> receipt.booking_id
           ORDER BY other.at LIMIT 20
       ) AS also_on
FROM receipt WHERE receipt.booking_id = $2 AND receipt.event_id = $1 AND receipt.org_id = $3
ORDER BY receipt.at, receipt.id

-- name: receipt
SELECT org_id, hash, content_type, file_ref FROM receipt WHERE event_id = $1 AND id = $2 AND org_id = $3

-- name: owner_of
-- Whether the booking is there for this org and user, and how many receipts it has.
SELECT (SELECT count(*) FROM receipt WHERE receipt.booking_id = $2 AND receipt.event_id = $1) AS receipts
FROM booking WHERE event_id = $1 AND id = $2 AND org_id = $3 AND ($4::text IS NULL OR user_id = $4)
