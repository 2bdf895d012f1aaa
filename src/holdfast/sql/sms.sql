-- Limits on SMS.

-- name: count_message
-- Counts an SMS of an org, and returns a row unless that is one too many today.
INSERT INTO sms_count AS counted (org_id, day, count)
SELECT :org, (holdfast_now() AT TIME ZONE 'UTC')::date, 1 WHERE :per_day::integer > 0
ON CONFLICT (org_id, day) DO UPDATE SET count = counted.count + 1 WHERE counted.count < :per_day::integer
RETURNING counted.count

-- name: delete_old_hashes
-- Forgets whom SMS went to once no limit looks back that far.
WITH old AS MATERIALIZED (
    SELECT event_id, number, target FROM delivery
    WHERE channel = 'sms' AND recipient_hash IS NOT NULL AND created_at < holdfast_now() - interval '1 day'
      AND status <> 'waiting'
    ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE delivery SET recipient_hash = NULL, buyer_hash = NULL FROM old
WHERE delivery.event_id = old.event_id AND delivery.number = old.number AND delivery.target || '' = old.target

-- name: delete_old_counts
DELETE FROM sms_count WHERE day < (holdfast_now() AT TIME ZONE 'UTC')::date - 1
