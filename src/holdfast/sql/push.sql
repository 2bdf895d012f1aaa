-- Browsers that subscribed to push messages about a booking.

-- name: subscribe
-- Stores a subscription while the booking waits for something. A browser that subscribes again replaces its own row, and
-- one too many replaces the oldest. In the last :warning_seconds of a hold, a warning would come too late.
INSERT INTO push_subscription (event_id, booking_id, slot, org_id, endpoint, p256dh, auth, key_number, language, created_at, due_at)
SELECT booking.event_id, booking.id, coalesce(
           (SELECT slot FROM push_subscription AS own
            WHERE own.event_id = booking.event_id AND own.booking_id = booking.id AND own.endpoint = :endpoint LIMIT 1),
           (SELECT free.slot FROM generate_series(0, 2) AS free (slot) WHERE NOT EXISTS (
                SELECT FROM push_subscription AS used
                WHERE used.event_id = booking.event_id AND used.booking_id = booking.id AND used.slot = free.slot
            ) ORDER BY free.slot LIMIT 1),
           (SELECT slot FROM push_subscription AS oldest
            WHERE oldest.event_id = booking.event_id AND oldest.booking_id = booking.id ORDER BY created_at LIMIT 1)
       ), booking.org_id, :endpoint, :p256dh, :auth, :key_number, :language, clock.at,
       CASE WHEN booking.status = 'held' AND booking.expires_at - make_interval(secs => :warning_seconds) > clock.at
            THEN booking.expires_at - make_interval(secs => :warning_seconds) ELSE booking.expires_at END
FROM (SELECT holdfast_now() AS at) AS clock CROSS JOIN booking
WHERE booking.event_id = :event AND booking.id = :booking AND booking.status IN ({{timed}}) AND booking.expires_at > clock.at
ON CONFLICT (event_id, booking_id, slot) DO UPDATE SET
    endpoint = excluded.endpoint, p256dh = excluded.p256dh, auth = excluded.auth, key_number = excluded.key_number,
    language = excluded.language, created_at = excluded.created_at, due_at = excluded.due_at
RETURNING slot

-- name: endpoints
SELECT endpoint FROM push_subscription WHERE event_id = $1 AND booking_id = $2

-- name: subscription
SELECT endpoint, p256dh, auth, key_number, language FROM push_subscription
WHERE event_id = $1 AND booking_id = $2 AND slot = $3

-- name: delete_subscription
-- Only if it is still the one that the push service refused.
DELETE FROM push_subscription WHERE event_id = $1 AND booking_id = $2 AND slot = $3 AND endpoint = $4

-- fragment: unpaid
booking.status = 'held' AND booking.expires_at > clock.at AND NOT EXISTS (
    SELECT FROM payment WHERE payment.booking_id = booking.id AND payment.event_id = booking.event_id
      AND payment.captured_at IS NOT NULL
)

-- name: seconds_left
-- How long the hold lasts, if it is still unpaid.
SELECT extract(epoch FROM booking.expires_at - clock.at)::float
FROM (SELECT holdfast_now() AS at) AS clock CROSS JOIN booking
WHERE booking.event_id = $1 AND booking.id = $2 AND {{unpaid}}

-- name: warn
-- Looks at up to :subscriptions_max due subscriptions. It writes a message for each hold that ends within :warning_seconds,
-- looks again at the deadline in case somebody extends the hold, and deletes subscriptions with nothing left to report.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
due AS MATERIALIZED (
    SELECT event_id, booking_id, slot, org_id, 'push:' || replace(org_id::text, '-', '') AS target FROM push_subscription
    WHERE due_at <= (SELECT at FROM clock)
    ORDER BY due_at LIMIT :subscriptions_max FOR UPDATE SKIP LOCKED
),
looked AS MATERIALIZED (
    SELECT due.*, booking.expires_at, booking.expires_at - make_interval(secs => :warning_seconds) AS warn_at,
           booking.status = 'held' AS is_held,
           booking.status IN ({{timed}}) AND booking.expires_at > clock.at AS is_live,
           {{unpaid}} AS is_unpaid,
           EXISTS (
               SELECT FROM delivery WHERE delivery.stream = due.booking_id AND delivery.target = due.target
                 AND delivery.status = 'waiting'
           ) AS has_waiting
    FROM due CROSS JOIN clock CROSS JOIN LATERAL (
        SELECT event_id, id, status, expires_at FROM booking
        WHERE event_id = due.event_id AND id = due.booking_id LIMIT 1
    ) AS booking
),
warned AS (
    INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, created_at, due_at)
    SELECT looked.event_id, nextval('delivery_number'), looked.target, 'push', looked.org_id, looked.booking_id, :kind,
           json_build_object('slot', looked.slot), clock.at, clock.at
    FROM looked CROSS JOIN clock WHERE looked.is_unpaid AND looked.warn_at <= clock.at
),
kept AS (
    UPDATE push_subscription AS subscription SET due_at = CASE
        WHEN NOT looked.is_live THEN clock.at + make_interval(secs => :waiting_seconds)
        WHEN looked.is_held AND looked.warn_at > clock.at THEN looked.warn_at
        ELSE looked.expires_at
    END
    FROM looked CROSS JOIN clock
    WHERE subscription.event_id = looked.event_id AND subscription.booking_id = looked.booking_id
      AND subscription.slot = looked.slot AND (looked.is_live OR looked.has_waiting)
),
deleted AS (
    DELETE FROM push_subscription AS subscription USING looked
    WHERE subscription.event_id = looked.event_id AND subscription.booking_id = looked.booking_id
      AND subscription.slot = looked.slot AND NOT looked.is_live AND NOT looked.has_waiting
)
SELECT count(*) FROM looked

-- name: event_title
SELECT title FROM event WHERE id = $1
