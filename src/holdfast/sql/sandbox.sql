-- The tables of the sandbox, a payment provider that moves no money.

-- name: insert_charge
INSERT INTO sandbox_charge (ref, payment, amount, currency, description, return_url, expires_at)
VALUES (:ref, :payment, :amount, :currency, :description, :return_url, :expires_at) ON CONFLICT (ref) DO NOTHING

-- name: charge
-- A late payment is captured when its notice first becomes due, even if the charge was closed before. Claiming the notice
-- moves its `due_at`, so a notice with attempts counts as captured too.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT charge.ref, charge.payment, charge.amount, charge.currency, charge.description, charge.return_url,
       charge.expires_at, late.due_at AS late_at,
       CASE WHEN late.attempts > 0 OR late.due_at <= clock.at THEN 'paid' ELSE charge.status END AS status
FROM clock CROSS JOIN sandbox_charge AS charge LEFT JOIN sandbox_notice AS late ON late.id = 'msg_late_' || charge.ref
WHERE charge.ref = $1

-- name: lock_charge
SELECT FROM sandbox_charge WHERE ref = $1 FOR UPDATE

-- name: set_status
UPDATE sandbox_charge SET status = $2 WHERE ref = $1 AND status = 'open'

-- name: insert_notices
-- Notices about one charge, all due at the same moment: $4 seconds after the charge expires, or now.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
INSERT INTO sandbox_notice (id, ref, type, due_at)
SELECT notice.id, charge.ref, $3, greatest(
    clock.at, coalesce(charge.expires_at, clock.at) + make_interval(secs => $4::double precision)
)
FROM clock CROSS JOIN sandbox_charge AS charge CROSS JOIN unnest($2::text[]) AS notice (id) WHERE charge.ref = $1

-- name: claim_notices
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at), due AS MATERIALIZED (
    SELECT notice.id FROM clock CROSS JOIN sandbox_notice AS notice
    WHERE notice.sent_at IS NULL AND notice.due_at <= clock.at
    ORDER BY notice.due_at LIMIT :claim_max FOR UPDATE OF notice SKIP LOCKED
)
UPDATE sandbox_notice AS notice
SET due_at = clock.at + make_interval(secs => :lease_seconds::double precision), attempts = notice.attempts + 1
FROM due, clock, sandbox_charge AS charge WHERE notice.id = due.id AND charge.ref = notice.ref
RETURNING notice.id, notice.type, notice.attempts, charge.ref, charge.payment, charge.amount, charge.currency

-- name: finish_notice
UPDATE sandbox_notice SET sent_at = holdfast_now() WHERE id = $1 AND sent_at IS NULL

-- name: postpone_notice
UPDATE sandbox_notice SET due_at = holdfast_now() + make_interval(secs => $2) WHERE id = $1 AND sent_at IS NULL

-- name: insert_refund
INSERT INTO sandbox_refund (key, ref) VALUES ($2, $1) ON CONFLICT (key) DO NOTHING

-- name: refund_of_key
SELECT ref FROM sandbox_refund WHERE key = $1
