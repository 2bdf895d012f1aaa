-- What the worker reads for the metrics. Each statement but `audit_oldest` reads rows that wait for something, which are few,
-- by a partial index of such rows.

-- name: holds
-- Holds before their deadline, and how long ago the deadline of the oldest unrecorded expiry passed.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT count(*) FILTER (WHERE booking.expires_at > clock.at) AS live,
       extract(epoch FROM max(clock.at - booking.expires_at) FILTER (WHERE booking.expires_at <= clock.at))::float8 AS overdue_seconds
FROM booking CROSS JOIN clock WHERE booking.status IN ({{timed}})

-- name: receipts
-- Receipts that wait for review. The last change of such a booking is its receipt.
SELECT count(*) AS waiting,
       extract(epoch FROM (SELECT holdfast_now()) - min(journal.at))::float8 AS oldest_seconds
FROM booking JOIN journal ON journal.event_id = booking.event_id AND journal.number = booking.version
WHERE booking.status IN ({{timed}}) AND booking.status = 'payment_submitted'
  AND booking.expires_at > (SELECT holdfast_now())

-- name: money
-- Refunds that are due since their capture, or since the payment began if that is not known, and payments in review.
SELECT count(*) FILTER (WHERE status = 'refund_due') AS refunds,
       extract(epoch FROM (SELECT holdfast_now()) - min(coalesce(captured_at, created_at))
           FILTER (WHERE status = 'refund_due'))::float8 AS refunds_oldest_seconds,
       count(*) FILTER (WHERE status = 'review') AS in_review
FROM payment WHERE status IN ('refund_due', 'review')

-- name: notices
SELECT count(*) AS waiting, extract(epoch FROM (SELECT holdfast_now()) - min(received_at))::float8 AS oldest_seconds
FROM payment_notice WHERE due_at IS NOT NULL

-- name: recovery_requests
-- A request that somebody has tried to answer is not late, as with deliveries.
SELECT count(*) AS waiting,
       extract(epoch FROM (SELECT holdfast_now()) - min(created_at) FILTER (WHERE attempts = 0))::float8 AS oldest_seconds
FROM recovery_request

-- name: deliveries
-- For each channel, how many rows wait, counted up to :counted_max, and how long the latest of those that nobody has tried to
-- send have been due. A retry is not late: its target has failed before. Each step of `seen` jumps to the next target in
-- `delivery_due`, up to :targets_max, so the backlog of one channel does not hide the others.
WITH RECURSIVE clock AS MATERIALIZED (SELECT holdfast_now() AS at),
seen AS (
    (SELECT 1 AS step, target, channel FROM delivery WHERE status = 'waiting' ORDER BY target, due_at LIMIT 1)
    UNION ALL
    SELECT seen.step + 1, following.target, following.channel FROM seen CROSS JOIN LATERAL (
        SELECT target, channel FROM delivery
        WHERE status = 'waiting' AND target > seen.target ORDER BY target, due_at LIMIT 1
    ) AS following WHERE seen.step < :targets_max
), late AS (
    SELECT seen.channel, min(due.due_at) FILTER (WHERE due.attempts = 0) AS due_at
    FROM seen CROSS JOIN clock CROSS JOIN LATERAL (
        SELECT delivery.due_at, delivery.attempts FROM delivery
        WHERE delivery.status = 'waiting' AND delivery.target = seen.target AND delivery.due_at <= clock.at
        ORDER BY delivery.due_at LIMIT :due_max
    ) AS due
    GROUP BY seen.channel
)
SELECT found.channel, counted.waiting, extract(epoch FROM clock.at - late.due_at)::float8 AS oldest_seconds
FROM clock CROSS JOIN (SELECT DISTINCT channel FROM seen) AS found
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting FROM (
        SELECT FROM seen CROSS JOIN LATERAL (
            SELECT FROM delivery WHERE delivery.status = 'waiting' AND delivery.target = seen.target LIMIT :counted_max
        ) AS waiting WHERE seen.channel = found.channel LIMIT :counted_max
    ) AS bounded
) AS counted
LEFT JOIN late ON late.channel = found.channel

-- name: events_overdue
-- Events on sale more than a day after their end, or their start if they have no end. A worker completes only events that
-- have an end. The others count for a week, because their merchant may never end them. They are found in `event_by_start`;
-- as a condition, their missing end would lead to all active events without one.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT (SELECT count(*) FROM event WHERE status = 'active' AND ends_at < clock.at - interval '1 day')
     + (SELECT count(*) FILTER (WHERE ends_at IS NULL) FROM event
        WHERE status = 'active' AND tax_bps >= 0
          AND starts_at >= clock.at - interval '8 days' AND starts_at < clock.at - interval '1 day')
FROM clock

-- name: audit_findings
SELECT coalesce(sum(json_array_length(findings)), 0)::bigint FROM audit WHERE json_array_length(findings) > 0

-- name: audit_oldest
-- For how long the oldest change that no audit has covered has waited. An audit that fails covers nothing. This compares the
-- versions of all events, because an index of versions would make every hold dearer.
SELECT extract(epoch FROM (SELECT holdfast_now()) - min(coalesce(first.at, audit.at, event.created_at)))::float8
FROM event LEFT JOIN audit ON audit.event_id = event.id
LEFT JOIN LATERAL (
    SELECT journal.at FROM journal
    WHERE journal.event_id = event.id AND journal.number > greatest(audit.version, 0)
    ORDER BY journal.number LIMIT 1
) AS first ON true
WHERE audit.version IS DISTINCT FROM event.version

-- name: telegram_messages
-- Those that are due, and the age of the oldest that Telegram does not have yet. Retries count: there is one Telegram.
SELECT count(*) FILTER (WHERE due_at <= (SELECT holdfast_now())) AS waiting,
       extract(epoch FROM (SELECT holdfast_now()) - min(created_at) FILTER (WHERE message_id IS NULL))::float8 AS oldest_seconds
FROM telegram_message WHERE due_at IS NOT NULL
