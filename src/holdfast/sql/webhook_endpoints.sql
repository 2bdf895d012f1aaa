-- The webhook endpoints of an org, and the log of deliveries to them.

-- name: lock_org
-- Two requests at once must not both find room for one more endpoint.
SELECT FROM org WHERE id = $1 FOR NO KEY UPDATE

-- name: insert
INSERT INTO webhook_endpoint (id, org_id, url, kinds, secret)
SELECT :id, :org, :url, :kinds, :secret
WHERE (SELECT count(*) FROM webhook_endpoint WHERE org_id = :org) < :endpoints_max
RETURNING id

-- name: list
SELECT id, url, kinds, enabled, disabled_reason, created_at FROM webhook_endpoint WHERE org_id = $1 ORDER BY id

-- name: one
SELECT id, url, kinds, enabled, disabled_reason, created_at FROM webhook_endpoint WHERE id = $1 AND org_id = $2

-- name: change
-- Null leaves a column as it is.
UPDATE webhook_endpoint
SET url = coalesce(:url, url), kinds = coalesce(:kinds, kinds), enabled = coalesce(:enabled, enabled),
    disabled_reason = CASE WHEN :enabled THEN NULL WHEN NOT :enabled THEN 'switched off' ELSE disabled_reason END
WHERE id = :id AND org_id = :org

-- name: rotate
-- The old secret keeps signing for a while, so that receivers can switch to the new one.
UPDATE webhook_endpoint
SET old_secret = secret, old_secret_until = holdfast_now() + make_interval(secs => $4), secret = $3
WHERE id = $1 AND org_id = $2

-- name: delete
DELETE FROM webhook_endpoint WHERE id = $1 AND org_id = $2

-- name: deliveries
-- Newest first, after the delivery :after_event and :after_number. Null means any.
SELECT event_id, number, kind, status, attempts, created_at, due_at, done_at, last_error FROM delivery
WHERE target = :endpoint AND org_id = :org AND (:status::text IS NULL OR status = :status)
  AND (:after_event::uuid IS NULL OR (created_at, event_id, number) < (
      SELECT created_at, event_id, number FROM delivery
      WHERE event_id = :after_event AND number = :after_number AND target = :endpoint))
ORDER BY created_at DESC, event_id DESC, number DESC LIMIT :limit
