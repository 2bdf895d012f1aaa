-- Statements of the relay and the webhook channel.
--
-- `|| ''` keeps the planner on the primary key. On a small table the other indexes look just as good, but a cached plan
-- would later use them to read everything that was ever sent to the target.

-- name: targets
-- Up to $2 targets after $1 that have waiting rows, with their channel, and whether any of those rows has been due for $3
-- seconds. Each step jumps to the next target in `delivery_due`, where the first row of a target is the first one due, so
-- the number of waiting rows does not matter.
WITH RECURSIVE seen AS (
    (SELECT 1 AS step, target, channel, due_at FROM delivery
     WHERE status = 'waiting' AND target > $1 ORDER BY target, due_at LIMIT 1)
    UNION ALL
    SELECT seen.step + 1, following.target, following.channel, following.due_at FROM seen CROSS JOIN LATERAL (
        SELECT target, channel, due_at FROM delivery
        WHERE status = 'waiting' AND target > seen.target ORDER BY target, due_at LIMIT 1
    ) AS following WHERE seen.step < $2
)
SELECT target, channel, due_at <= holdfast_now() - make_interval(secs => $3) AS due FROM seen

-- name: claim
-- Takes due rows of one target. It leases a row that `is_first_in_stream`: no earlier row of its stream waits. It postpones
-- the others, so that the relay does not read them again and again: until the first row of their stream is due, or for
-- :stream_wait_seconds if a relay may be sending that one now. `finish` makes the next row of a stream due. No retry follows
-- an attempt that `is_last`, because :retry_for_seconds have passed since the row was written.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT event_id, number, stream FROM delivery
    WHERE target = :target AND status = 'waiting' AND due_at <= (SELECT at FROM clock)
    ORDER BY due_at LIMIT :claim_max FOR UPDATE SKIP LOCKED
),
candidate AS MATERIALIZED (
    SELECT due.event_id, due.number, first.due_at AS first_due_at FROM due LEFT JOIN LATERAL (
        SELECT earlier.due_at FROM delivery AS earlier
        WHERE earlier.stream = due.stream AND earlier.target = :target AND earlier.status = 'waiting'
          AND earlier.number < due.number
        ORDER BY earlier.number LIMIT 1
    ) AS first ON true
)
UPDATE delivery SET
    attempts = attempts + (candidate.first_due_at IS NULL)::integer,
    due_at = CASE
        WHEN candidate.first_due_at IS NULL THEN clock.at + make_interval(secs => :lease_seconds)
        WHEN candidate.first_due_at > clock.at + make_interval(secs => :lease_seconds) THEN candidate.first_due_at
        ELSE clock.at + make_interval(secs => :stream_wait_seconds)
    END
FROM candidate CROSS JOIN clock
WHERE delivery.event_id = candidate.event_id AND delivery.number = candidate.number AND delivery.target || '' = :target
RETURNING delivery.event_id AS event, delivery.number, delivery.target, delivery.channel, delivery.org_id AS org,
    delivery.stream, delivery.kind, delivery.body, delivery.created_at, delivery.attempts,
    candidate.first_due_at IS NULL AS is_first_in_stream,
    clock.at >= delivery.created_at + make_interval(secs => :retry_for_seconds) AS is_last

-- name: finish
-- Ends a row, and makes the next row of its stream due.
WITH done AS (
    UPDATE delivery SET status = :status, last_error = :error, done_at = holdfast_now()
    WHERE event_id = :event AND number = :number AND target || '' = :target AND status || '' = 'waiting'
    RETURNING stream
),
following AS MATERIALIZED (
    SELECT next.event_id, next.number FROM done CROSS JOIN LATERAL (
        SELECT event_id, number FROM delivery
        WHERE stream = done.stream AND target = :target AND status = 'waiting' AND number > :number
        ORDER BY number LIMIT 1
    ) AS next
)
UPDATE delivery SET due_at = least(due_at, holdfast_now()) FROM following
WHERE delivery.event_id = following.event_id AND delivery.number = following.number AND delivery.target || '' = :target

-- name: postpone
-- Makes a row due again after about :seconds, but no later than :retry_for_seconds after it was written. If the lease has
-- ended and another relay has claimed the row, its attempts are no longer :attempts, and the row is left to that relay.
UPDATE delivery SET last_error = :error, due_at = least(
    holdfast_now() + make_interval(secs => :seconds * (0.9 + 0.2 * random())),
    created_at + make_interval(secs => :retry_for_seconds)
)
WHERE event_id = :event AND number = :number AND target || '' = :target AND status || '' = 'waiting'
  AND attempts = :attempts

-- name: disable_endpoint
UPDATE webhook_endpoint SET enabled = false, disabled_reason = $2
WHERE id = CASE WHEN $1 ~ '^[0-9a-f]{32}$' THEN $1::text::uuid END AND enabled RETURNING id

-- name: fail_waiting
-- Fails up to $3 waiting rows of a target that is gone. Rows that another relay has locked are left to it.
WITH waiting AS MATERIALIZED (
    SELECT event_id, number FROM delivery WHERE target = $1 AND status = 'waiting'
    ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE delivery SET status = 'failed', last_error = $2, done_at = holdfast_now() FROM waiting
WHERE delivery.event_id = waiting.event_id AND delivery.number = waiting.number AND delivery.target || '' = $1

-- name: delete_old_hashes
-- Forgets whom up to $2 messages went to, $1 seconds after they were sent. A limit counts the messages of the day before a
-- message was written, so a backlog from before this time still counts the messages that were sent since.
WITH old AS MATERIALIZED (
    SELECT event_id, number, target FROM delivery
    WHERE recipient_hash IS NOT NULL AND done_at IS NOT NULL AND done_at < holdfast_now() - make_interval(secs => $1)
    ORDER BY done_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE delivery SET recipient_hash = NULL, buyer_hash = NULL, client_hash = NULL FROM old
WHERE delivery.event_id = old.event_id AND delivery.number = old.number AND delivery.target || '' = old.target

-- name: delete_done
-- Deletes up to $2 rows that ended more than $1 seconds ago.
WITH old AS MATERIALIZED (
    SELECT event_id, number, target FROM delivery
    WHERE status <> 'waiting' AND done_at < holdfast_now() - make_interval(secs => $1)
    ORDER BY done_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM delivery USING old
WHERE delivery.event_id = old.event_id AND delivery.number = old.number AND delivery.target || '' = old.target

-- name: delete_unclaimed
-- Deletes up to $3 rows of the target $1 that have been due for $2 seconds.
WITH old AS MATERIALIZED (
    SELECT event_id, number FROM delivery
    WHERE target = $1 AND status = 'waiting' AND due_at <= holdfast_now() - make_interval(secs => $2)
    ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM delivery USING old
WHERE delivery.event_id = old.event_id AND delivery.number = old.number AND delivery.target || '' = $1

-- name: endpoint
-- The URL and the secrets that sign. After a rotation the old secret signs too until it expires.
SELECT url, secret, CASE WHEN old_secret_until > holdfast_now() THEN old_secret END AS old_secret
FROM webhook_endpoint
WHERE id = CASE WHEN $1 ~ '^[0-9a-f]{32}$' THEN $1::text::uuid END AND org_id = $2 AND enabled

-- name: earlier_emails
-- How many emails were written before this one, with the same hash of the recipient or of the buyer. It counts at most
-- :counted_max of each, the newest first.
WITH own AS MATERIALIZED (
    SELECT event_id, number, kind, created_at, recipient_hash, buyer_hash FROM delivery
    WHERE event_id = :event AND number = :number AND target || '' = :target
)
SELECT to_recipient.in_hour, to_recipient.in_day, to_recipient.of_kind_and_event_in_hour,
       of_buyer.in_hour AS of_buyer_in_hour
FROM own CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE created_at > own.created_at - interval '1 hour') AS in_hour, count(*) AS in_day,
           count(*) FILTER (WHERE created_at > own.created_at - interval '1 hour'
                            AND event_id = own.event_id AND kind = own.kind) AS of_kind_and_event_in_hour
    FROM (
        SELECT event_id, kind, created_at FROM delivery
        WHERE recipient_hash = own.recipient_hash AND created_at > own.created_at - interval '1 day'
          AND (created_at, event_id, number) < (own.created_at, own.event_id, own.number)
        ORDER BY created_at DESC LIMIT :counted_max
    ) AS earlier
) AS to_recipient CROSS JOIN LATERAL (
    SELECT count(*) AS in_hour
    FROM (
        SELECT FROM delivery
        WHERE buyer_hash = own.buyer_hash AND created_at > own.created_at - interval '1 hour'
          AND (created_at, event_id, number) < (own.created_at, own.event_id, own.number)
        ORDER BY created_at DESC LIMIT :counted_max
    ) AS earlier
) AS of_buyer
