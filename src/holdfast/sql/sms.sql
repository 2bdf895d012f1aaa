-- Limits on SMS.

-- name: earlier_messages
-- How many SMS were written before this one with the same hash of the number, of the buyer or of the client. It counts at
-- most :counted_max of each, the newest first. `|| ''` has the same reason as in `notifications.sql`.
WITH own AS MATERIALIZED (
    SELECT event_id, number, created_at, recipient_hash, buyer_hash, client_hash FROM delivery
    WHERE event_id = :event AND number = :number AND target || '' = :target
)
SELECT to_number.in_hour AS to_number_in_hour, to_number.in_day AS to_number_in_day,
       of_buyer.in_hour AS of_buyer_in_hour,
       of_client.in_hour AS of_client_in_hour, of_client.in_day AS of_client_in_day
FROM own CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE created_at > own.created_at - interval '1 hour') AS in_hour, count(*) AS in_day
    FROM (
        SELECT created_at FROM delivery
        WHERE recipient_hash = own.recipient_hash AND created_at > own.created_at - interval '1 day'
          AND (created_at, event_id, number) < (own.created_at, own.event_id, own.number)
        ORDER BY created_at DESC LIMIT :counted_max
    ) AS earlier
) AS to_number CROSS JOIN LATERAL (
    SELECT count(*) AS in_hour
    FROM (
        SELECT FROM delivery
        WHERE buyer_hash = own.buyer_hash AND created_at > own.created_at - interval '1 hour'
          AND (created_at, event_id, number) < (own.created_at, own.event_id, own.number)
        ORDER BY created_at DESC LIMIT :counted_max
    ) AS earlier
) AS of_buyer CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE created_at > own.created_at - interval '1 hour') AS in_hour, count(*) AS in_day
    FROM (
        SELECT created_at FROM delivery
        WHERE client_hash = own.client_hash AND created_at > own.created_at - interval '1 day'
          AND (created_at, event_id, number) < (own.created_at, own.event_id, own.number)
        ORDER BY created_at DESC LIMIT :counted_max
    ) AS earlier
) AS of_client

-- name: count_message
-- Counts an SMS of an org, and whether it may be sent. An SMS over a limit is not counted. The same statement marks the
-- delivery, so that each SMS counts once, however often it is retried and whatever process dies.
WITH own AS MATERIALIZED (
    SELECT event_id, number, target, org_id, is_counted FROM delivery
    WHERE event_id = :event AND number = :number AND target || '' = :target FOR UPDATE
),
counted AS (
    INSERT INTO sms_count AS today (org_id, day, count, free_count)
    SELECT org_id, (holdfast_now() AT TIME ZONE 'UTC')::date, 1, (:is_free::boolean)::integer FROM own
    WHERE NOT is_counted AND :per_day::integer > 0 AND NOT (:is_free::boolean AND :free_per_day::integer <= 0)
    ON CONFLICT (org_id, day) DO UPDATE
    SET count = today.count + 1, free_count = today.free_count + excluded.free_count
    WHERE today.count < :per_day::integer
      AND NOT (excluded.free_count > 0 AND today.free_count >= :free_per_day::integer)
    RETURNING count
),
marked AS (
    UPDATE delivery SET is_counted = true FROM own CROSS JOIN counted
    WHERE delivery.event_id = own.event_id AND delivery.number = own.number AND delivery.target || '' = own.target
)
SELECT own.is_counted OR EXISTS (SELECT FROM counted) FROM own

-- name: delete_old_counts
DELETE FROM sms_count WHERE day < (holdfast_now() AT TIME ZONE 'UTC')::date - 1
