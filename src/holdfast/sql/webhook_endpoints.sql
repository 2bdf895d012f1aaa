-- The webhook endpoints of an org, and the log of deliveries to them.

-- name: lock_org
-- Two requests at once must not both find room for one more endpoint.
SELECT FROM org WHERE id = $1 FOR NO KEY UPDATE

-- name: insert
INSERT INTO webhook_endpoint (id, org_id, url, kinds, secret)
SELECT $1, $2, $3, $4, $5 WHERE (SELECT count(*) FROM webhook_endpoint WHERE org_id = $2) < $6
RETURNING id

-- name: list
SELECT id, url, kinds, enabled, disabled_reason, created_at FROM webhook_endpoint WHERE org_id = $1 ORDER BY id

-- name: one
SELECT id, url, kinds, enabled, disabled_reason, created_at FROM webhook_endpoint WHERE id = $1 AND org_id = $2

-- name: change
-- Null leaves a column as it is.
UPDATE webhook_endpoint SET url = coalesce($3, url), kinds = coalesce($4, kinds), enabled = coalesce($5, enabled),
       disabled_reason = CASE WHEN $5 THEN NULL WHEN NOT $5 THEN 'switched off' ELSE disabled_reason END
WHERE id = $1 AND org_id = $2

-- name: rotate
-- The old secret keeps signing for a while, so that receivers can switch to the new one.
UPDATE webhook_endpoint
SET old_secret = secret, old_secret_until = holdfast_now() + make_interval(secs => $4), secret = $3
WHERE id = $1 AND org_id = $2

-- name: delete
DELETE FROM webhook_endpoint WHERE id = $1 AND org_id = $2

-- name: deliveries
-- $1 endpoint, $2 org, $3 status or null for any, $4 and $5 the delivery before the page, $6 limit; newest first.
SELECT event_id, number, kind, status, attempts, created_at, due_at, done_at, last_error FROM delivery
WHERE target = $1 AND org_id = $2 AND ($3::text IS NULL OR status = $3)
  AND ($4::uuid IS NULL OR (created_at, event_id, number) < (
      SELECT created_at, event_id, number FROM delivery WHERE event_id = $4 AND number = $5 AND target = $1))
ORDER BY created_at DESC, event_id DESC, number DESC LIMIT $6
