-- What the worker reads for the metrics. Each statement reads rows that wait for something, which are few, by a partial
-- index of such rows.

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
SELECT count(*) FROM payment_notice WHERE due_at IS NOT NULL

-- name: deliveries
SELECT channel, count(*) AS waiting,
       extract(epoch FROM (SELECT holdfast_now()) - min(created_at))::float8 AS oldest_seconds
FROM (SELECT channel, created_at FROM delivery WHERE status = 'waiting' LIMIT :counted_max) AS counted
GROUP BY channel

-- name: events_overdue
-- Events on sale more than a day after their end.
SELECT count(*) FROM event
WHERE status = 'active' AND coalesce(ends_at, starts_at) < (SELECT holdfast_now()) - interval '1 day'

-- name: audits
-- How many findings there are, and how long the event that has waited longest for its audit has waited.
SELECT coalesce(sum(json_array_length(audit.findings)), 0)::bigint AS findings,
       extract(epoch FROM (SELECT holdfast_now()) - min(audit.at) FILTER (WHERE audit.version <> event.version))::float8
           AS oldest_seconds
FROM audit JOIN event ON event.id = audit.event_id

-- name: telegram_messages
SELECT count(*) FROM telegram_message WHERE due_at IS NOT NULL AND due_at <= (SELECT holdfast_now())
