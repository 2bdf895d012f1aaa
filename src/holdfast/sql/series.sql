-- Series of events, and the jobs that make their events.

-- name: owner
SELECT org_id FROM series WHERE id = $1

-- name: lock_org
-- Two requests at once must not both find room for one more.
SELECT FROM org WHERE id = $1 FOR NO KEY UPDATE

-- name: count_series
SELECT count(*) FROM series WHERE org_id = $1 AND title > ''

-- name: insert_series
INSERT INTO series (id, org_id, title, description, details) VALUES (:id, :org, :title, :description, :details)

-- name: change_series
-- Null leaves the title or the details as they are. Each request sets only its own fields, so two at once both count.
UPDATE series
SET title = coalesce(:title, title), details = coalesce(:details::json, details),
    description = CASE WHEN :sets_description::boolean THEN :description ELSE description END
WHERE id = :id

-- name: series
SELECT id, org_id, title, description, details, created_at, EXISTS (
    SELECT FROM event WHERE event.series_id = series.id AND event.published_at IS NOT NULL
) AS is_published
FROM series WHERE id = $1

-- name: list
-- Newest first, after the series :after: up to :limit of them, and no more than fit into :bytes_max, but at least one.
-- `found` is how many :limit alone allows. An org of null means any.
SELECT id, org_id, title, description, details, created_at, true AS is_published, found
FROM (
    SELECT *, sum(bytes) OVER (ORDER BY id DESC) - bytes AS bytes_before
    FROM (
        SELECT *, count(*) OVER () AS found,
               octet_length(details::text) + coalesce(octet_length(description), 0) + octet_length(title) AS bytes
        FROM (
            SELECT * FROM series
            WHERE title > '' AND (:org::uuid IS NULL OR org_id = :org) AND (:after::uuid IS NULL OR id < :after)
              AND (NOT :only_published OR EXISTS (
                  SELECT FROM event WHERE event.series_id = series.id AND event.published_at IS NOT NULL
              ))
            ORDER BY id DESC LIMIT :limit
        ) AS page
    ) AS page
) AS page
WHERE bytes_before < :bytes_max
ORDER BY id DESC

-- name: count_unfinished_jobs
SELECT count(*) FROM series_job WHERE org_id = $1 AND due_at IS NOT NULL

-- name: insert_job
-- The first request with a key wins.
INSERT INTO series_job (id, org_id, series_id, request_key, fingerprint, template, starts, publish, actor)
VALUES (:id, :org, :series, :request_key, :fingerprint, :template, :starts, :publish, :actor)
ON CONFLICT (series_id, request_key) DO NOTHING

-- fragment: job_fields
id, org_id, series_id, fingerprint, cardinality(starts) AS total, position, failed, errors, publish, attempts, created_at,
done_at

-- name: job
SELECT {{job_fields}} FROM series_job WHERE id = $1

-- name: job_by_key
SELECT {{job_fields}} FROM series_job WHERE series_id = $1 AND request_key = $2

-- name: orgs_with_waiting_jobs
-- The same as `orgs_with_waiting_notices` in payments.sql, for jobs.
WITH RECURSIVE seen AS (
    (SELECT 1 AS step, org_id, due_at FROM series_job
     WHERE due_at IS NOT NULL AND org_id > :after ORDER BY org_id, due_at LIMIT 1)
    UNION ALL
    SELECT seen.step + 1, following.org_id, following.due_at FROM seen CROSS JOIN LATERAL (
        SELECT org_id, due_at FROM series_job
        WHERE due_at IS NOT NULL AND org_id > seen.org_id ORDER BY org_id, due_at LIMIT 1
    ) AS following WHERE seen.step < :orgs_max
)
SELECT org_id AS org, due_at <= holdfast_now() AS due FROM seen

-- name: claim_jobs
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT id FROM series_job WHERE org_id = :org AND due_at <= (SELECT at FROM clock)
    ORDER BY due_at LIMIT :claim_max FOR UPDATE SKIP LOCKED
)
UPDATE series_job AS job
SET due_at = clock.at + make_interval(secs => :lease_seconds), attempts = job.attempts + 1
FROM clock, due WHERE job.id = due.id
RETURNING job.id, job.org_id, job.series_id, job.template, job.starts, job.publish, job.actor, job.position, job.attempts

-- name: advance_job
-- Records that the event at :position is done, with the error that kept it from being made. A worker whose lease has
-- ended changes nothing if another one has gone on. The last event ends the job; any other one renews the lease.
UPDATE series_job
SET position = position + 1, attempts = 1,
    failed = failed + CASE WHEN :error::json IS NULL THEN 0 ELSE 1 END,
    errors = CASE WHEN :error::json IS NULL OR json_array_length(errors) >= :errors_max THEN errors
                  ELSE (errors::jsonb || jsonb_build_array(:error::jsonb))::json END,
    template = CASE WHEN position + 1 < cardinality(starts) THEN template END,
    done_at = CASE WHEN position + 1 < cardinality(starts) THEN NULL ELSE holdfast_now() END,
    due_at = CASE WHEN position + 1 < cardinality(starts) THEN holdfast_now() + make_interval(secs => :lease_seconds) END
WHERE id = :id AND position = :position AND due_at IS NOT NULL
RETURNING id

-- name: release_job
-- Lets a worker continue the job at once, after the org's other jobs.
UPDATE series_job SET due_at = holdfast_now(), attempts = 0 WHERE id = $1 AND position = $2 AND due_at IS NOT NULL
