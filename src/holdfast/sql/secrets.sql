-- What the pages need and the API does not tell.

-- name: make_secret
INSERT INTO secret (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING

-- name: secret
SELECT value FROM secret WHERE name = $1

-- name: org_of_event
SELECT org.id, org.slug, org.name, org.colour, encode(sha256(org.logo), 'hex') AS logo_hash, org.frame_origins,
       event.revision
FROM event JOIN org ON org.id = event.org_id WHERE event.id = $1

-- name: orgs
-- Those who have something on sale; two are enough to know that there are several.
SELECT slug FROM org WHERE EXISTS (SELECT FROM event WHERE event.org_id = org.id AND event.status = 'active')
ORDER BY slug LIMIT 2
