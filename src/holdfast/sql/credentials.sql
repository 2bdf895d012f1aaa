-- Orgs, their secret keys, and the secrets that sign customer tokens.

-- name: insert_org
INSERT INTO org (id, slug, name, token_secret) VALUES ($1, $2, $3, $4) ON CONFLICT (slug) DO NOTHING RETURNING id

-- name: org_by_slug
SELECT id, slug, name FROM org WHERE slug = $1

-- name: orgs
SELECT id, slug, name FROM org ORDER BY slug

-- name: branding
SELECT slug, name, colour, logo_hash, frame_origins FROM org WHERE id = $1

-- name: change_org
-- :has_colour says whether to set the colour, because null is one of its values.
UPDATE org SET name = coalesce(:name, name),
               colour = CASE WHEN :has_colour THEN lower(:colour) ELSE colour END,
               frame_origins = coalesce(:frame_origins, frame_origins)
WHERE id = :org

-- name: logo
SELECT logo, logo_type FROM org WHERE slug = $1 AND logo IS NOT NULL

-- name: set_logo
UPDATE org SET logo = $2, logo_type = $3 WHERE id = $1

-- name: delete_logo
UPDATE org SET logo = NULL, logo_type = NULL WHERE id = $1

-- name: token_secret
SELECT token_secret FROM org WHERE id = $1

-- name: insert_key
INSERT INTO api_key (hash, org_id, prefix, role) VALUES ($1, $2, $3, $4)

-- name: key
SELECT org_id, prefix, role FROM api_key WHERE hash = $1 AND revoked_at IS NULL

-- name: keys
SELECT prefix, role, revoked_at FROM api_key WHERE org_id = $1 ORDER BY created_at

-- name: revoke_key
UPDATE api_key SET revoked_at = holdfast_now() WHERE org_id = $1 AND prefix = $2 AND revoked_at IS NULL
