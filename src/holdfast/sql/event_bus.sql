-- The event bus: which buses there are, and the deliveries to them. Connections that run the statements of the relay look
-- up rows by index only, so their plans stay good while a backlog grows.

-- name: register
-- Reads first, because almost every start finds the row.
INSERT INTO event_bus (name)
SELECT $1 WHERE NOT EXISTS (SELECT FROM event_bus WHERE name = $1)
ON CONFLICT DO NOTHING

-- name: registered
SELECT name FROM event_bus ORDER BY name

-- name: unregister
DELETE FROM event_bus WHERE name = $1

-- name: org_slug
SELECT slug FROM org WHERE id = $1

-- name: finish
-- Deletes rows that the bus has accepted, and makes the next row of each of their streams due. The journal keeps the fact.
WITH given AS MATERIALIZED (
    SELECT event_id, number FROM unnest(:events::uuid[], :numbers::bigint[]) AS given (event_id, number)
),
done AS (
    DELETE FROM delivery USING given
    WHERE delivery.event_id = given.event_id AND delivery.number = given.number AND delivery.target || '' = :target
    RETURNING delivery.stream, delivery.number
),
following AS MATERIALIZED (
    SELECT next.event_id, next.number FROM done CROSS JOIN LATERAL (
        SELECT event_id, number FROM delivery
        WHERE stream = done.stream AND target = :target AND status = 'waiting' AND number > done.number
        ORDER BY number LIMIT 1
    ) AS next
)
UPDATE delivery SET due_at = least(due_at, holdfast_now()) FROM following
WHERE delivery.event_id = following.event_id AND delivery.number = following.number AND delivery.target || '' = :target

-- name: status
-- What each bus has yet to accept, and what it refused for good. A bus that was removed shows up while it has rows left.
-- `last_error` is that of the oldest message with an error. Those that wait come first.
SELECT bus.name, event_bus.created_at AS registered_at, rows.waiting, rows.oldest_waiting_at,
       extract(epoch FROM (SELECT holdfast_now()) - rows.oldest_waiting_at)::float8 AS oldest_waiting_seconds,
       rows.failed, failing.last_error
FROM unnest(:buses::text[]) AS bus (name) LEFT JOIN event_bus ON event_bus.name = bus.name CROSS JOIN LATERAL (
    SELECT coalesce(sum(of_org.waiting), 0)::bigint AS waiting, coalesce(sum(of_org.failed), 0)::bigint AS failed,
           min(of_org.oldest_waiting_at) AS oldest_waiting_at
    FROM org CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE status = 'waiting') AS waiting, count(*) FILTER (WHERE status = 'failed') AS failed,
               min(created_at) FILTER (WHERE status = 'waiting') AS oldest_waiting_at
        FROM delivery WHERE delivery.target = bus.name || ':' || replace(org.id::text, '-', '')
    ) AS of_org
) AS rows LEFT JOIN LATERAL (
    SELECT delivery.last_error FROM org JOIN delivery ON delivery.target = bus.name || ':' || replace(org.id::text, '-', '')
    WHERE delivery.last_error IS NOT NULL
    ORDER BY delivery.status = 'failed', delivery.created_at LIMIT 1
) AS failing ON true
WHERE event_bus.name IS NOT NULL OR rows.waiting + rows.failed > 0
ORDER BY bus.name

-- name: retry_failed
-- Makes up to $2 refused rows of one target due again.
WITH failed AS MATERIALIZED (
    SELECT event_id, number FROM delivery WHERE target = $1 AND status = 'failed' LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE delivery SET status = 'waiting', due_at = holdfast_now(), done_at = NULL, attempts = 0 FROM failed
WHERE delivery.event_id = failed.event_id AND delivery.number = failed.number AND delivery.target || '' = $1

-- name: delete_deliveries
-- Deletes up to $2 rows of one target.
WITH unwanted AS MATERIALIZED (
    SELECT event_id, number FROM delivery WHERE target = $1 LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM delivery USING unwanted
WHERE delivery.event_id = unwanted.event_id AND delivery.number = unwanted.number AND delivery.target || '' = $1
