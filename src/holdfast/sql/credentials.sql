-- Orgs, their secret keys, the secrets that sign customer tokens, and the secrets that all processes share.

-- name: insert_org
INSERT INTO org (id, slug, name, token_secret) VALUES ($1, $2, $3, $4) ON CONFLICT (slug) DO NOTHING RETURNING id

-- name: org_by_slug
SELECT id, slug, name FROM org WHERE slug = $1

-- name: orgs
SELECT id, slug, name FROM org ORDER BY slug

-- name: branding
SELECT slug, name, colour, logo_hash, frame_origins, max_unpaid_units_per_address, payment_instructions FROM org WHERE id = $1

-- name: change_org
-- :has_colour, :has_max_unpaid and :has_payment_instructions say whether to set the value, because null is one of its values.
UPDATE org SET name = coalesce(:name, name),
               colour = CASE WHEN :has_colour THEN lower(:colour) ELSE colour END,
               frame_origins = coalesce(:frame_origins, frame_origins),
               max_unpaid_units_per_address =
                   CASE WHEN :has_max_unpaid THEN :max_unpaid ELSE max_unpaid_units_per_address END,
               payment_instructions =
                   CASE WHEN :has_payment_instructions THEN :payment_instructions ELSE payment_instructions END
WHERE id = :org

-- name: logo
SELECT logo, logo_type, logo_hash FROM org WHERE slug = $1 AND logo IS NOT NULL

-- name: set_logo
UPDATE org SET logo = $2, logo_type = $3 WHERE id = $1

-- name: delete_logo
UPDATE org SET logo = NULL, logo_type = NULL WHERE id = $1

-- name: token_secret
-- The secret that signs the org's tokens now.
SELECT token_secret AS secret, token_secret_number AS number FROM org WHERE id = $1

-- name: token_secret_of
-- The secret with this number, if it may still verify tokens.
SELECT token_secret FROM org WHERE id = $1 AND token_secret_number = $2
UNION ALL
SELECT secret FROM old_token_secret WHERE org_id = $1 AND number = $2 AND valid_until > holdfast_now()

-- name: keep_token_secret
-- Lets the org's secret verify tokens for $2 more seconds, and earlier secrets no longer than that.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
current AS MATERIALIZED (
    SELECT id, token_secret_number, token_secret FROM org WHERE id = $1 FOR NO KEY UPDATE
)
INSERT INTO old_token_secret (org_id, number, secret, valid_until)
SELECT id, token_secret_number, token_secret, clock.at + make_interval(secs => $2) FROM clock, current
UNION ALL
SELECT org_id, number, secret, least(valid_until, clock.at + make_interval(secs => $2))
FROM clock, old_token_secret WHERE org_id = $1
ON CONFLICT (org_id, number) DO UPDATE SET valid_until = excluded.valid_until

-- name: delete_expired_token_secrets
DELETE FROM old_token_secret WHERE org_id = $1 AND valid_until <= holdfast_now()

-- name: replace_token_secret
UPDATE org SET token_secret = $2, token_secret_number = token_secret_number + 1 WHERE id = $1

-- name: use_token
-- Returns a row the first time. Each use also deletes a few tokens that expired long ago, by any process's clock.
WITH expired AS (
    DELETE FROM used_token WHERE hash IN (
        SELECT hash FROM used_token WHERE expires_at < holdfast_now() - interval '1 hour'
        ORDER BY expires_at LIMIT 10 FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO used_token (hash, expires_at) VALUES ($1, to_timestamp($2)) ON CONFLICT (hash) DO NOTHING RETURNING hash

-- name: is_token_used
SELECT EXISTS (SELECT FROM used_token WHERE hash = $1)

-- name: create_secret
INSERT INTO secret (name, value) SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM secret WHERE name = $1)
ON CONFLICT (name, number) DO NOTHING

-- name: secret
-- The values that verify, the newest first, and whether each of them may sign.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT number, value, signs_from <= clock.at AS signs
FROM clock CROSS JOIN secret WHERE name = $1 AND (valid_until IS NULL OR valid_until > clock.at)
ORDER BY number DESC

-- name: delete_expired_secrets
DELETE FROM secret WHERE name = $1 AND valid_until <= holdfast_now()

-- name: lock_secret
-- Two rotations at once would give their values the same number.
SELECT number FROM secret WHERE name = $1 FOR UPDATE

-- name: rotate_secret
-- Adds a value that signs from a moment on. From then on, the others verify for the overlap, or less if they already had
-- to end sooner. Returns when the last of them ends.
WITH clock AS MATERIALIZED (SELECT holdfast_now() + make_interval(secs => :signs_after_seconds) AS signs_from),
old AS (
    UPDATE secret SET valid_until = least(valid_until, clock.signs_from + make_interval(secs => :overlap_seconds))
    FROM clock WHERE name = :name RETURNING number, valid_until
), added AS (
    INSERT INTO secret (name, number, value, signs_from)
    SELECT :name, (SELECT max(number) + 1 FROM old), :value, signs_from FROM clock
)
SELECT max(valid_until) FROM old

-- name: insert_key
-- Inserts nothing if the org has :keys_max valid keys.
INSERT INTO api_key (hash, org_id, prefix, role, events)
SELECT :hash, :org, :prefix, :role, :events
WHERE (SELECT count(*) FROM api_key WHERE org_id = :org AND revoked_at IS NULL) < :keys_max

-- name: key
SELECT org_id, prefix, role, events FROM api_key WHERE hash = $1 AND revoked_at IS NULL

-- name: keys
SELECT prefix, role, events, revoked_at FROM api_key WHERE org_id = $1 ORDER BY created_at

-- name: revoke_key
UPDATE api_key SET revoked_at = holdfast_now() WHERE org_id = $1 AND prefix = $2 AND revoked_at IS NULL
