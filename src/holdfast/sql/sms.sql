-- Limits on SMS.

-- name: count_message
-- Counts an SMS of an org, and returns a row unless that is one too many today.
INSERT INTO sms_count AS counted (org_id, day, count)
SELECT :org, (holdfast_now() AT TIME ZONE 'UTC')::date, 1 WHERE :per_day::integer > 0
ON CONFLICT (org_id, day) DO UPDATE SET count = counted.count + 1 WHERE counted.count < :per_day::integer
RETURNING counted.count

-- name: delete_old_counts
DELETE FROM sms_count WHERE day < (holdfast_now() AT TIME ZONE 'UTC')::date - 1
