-- Erases a person: what `holdfast erase` removes. The journal names nobody, so nothing here touches it.

-- name: contacts
-- How the person's bookings can be recognised elsewhere.
SELECT coalesce(array_agg(DISTINCT lower(email)) FILTER (WHERE email IS NOT NULL), '{}') AS emails,
       coalesce(array_agg(DISTINCT phone) FILTER (WHERE phone IS NOT NULL), '{}') AS phones
FROM booking WHERE org_id = :org AND user_id = :user

-- name: events
-- Those with a booking of the person, or with a message about a booking that the person has transferred.
SELECT event_id AS event FROM booking WHERE org_id = :org AND user_id = :user
UNION
SELECT delivery.event_id FROM event JOIN delivery ON delivery.event_id = event.id
WHERE event.org_id = :org AND (delivery.body ->> 'user' = :user OR lower(delivery.body ->> 'email') = ANY (:emails::text[]))
ORDER BY event

-- name: files
-- Stored receipts of the person that no other booking of the org has.
WITH own AS MATERIALIZED (SELECT event_id, id FROM booking WHERE org_id = :org AND user_id = :user),
stored AS MATERIALIZED (
    SELECT event_id, booking_id, hash FROM receipt_file
    UNION SELECT event_id, booking_id, hash FROM receipt WHERE content_type IS NOT NULL
)
SELECT stored.hash FROM stored JOIN event ON event.id = stored.event_id AND event.org_id = :org
GROUP BY stored.hash
HAVING bool_and((stored.event_id, stored.booking_id) IN (SELECT event_id, id FROM own))

-- name: notices
-- The webhook events that payment providers sent about the person. Holdfast keeps what it read in them.
WITH own AS MATERIALIZED (
    SELECT payment.provider, payment.provider_ref,
           'pay_' || replace(payment.event_id::text || payment.id::text, '-', '') AS name
    FROM booking JOIN payment ON payment.booking_id = booking.id AND payment.event_id = booking.event_id
    WHERE booking.org_id = :org AND booking.user_id = :user
)
UPDATE payment_notice AS notice SET body = '' WHERE notice.body <> '' AND (
    EXISTS (
        SELECT FROM own WHERE own.name = notice.payment
           OR own.provider = notice.provider AND own.provider_ref = notice.provider_ref
    ) OR EXISTS (
        SELECT FROM unnest(:contacts::text[]) AS contact WHERE position(convert_to(contact, 'UTF8') IN notice.body) > 0
    )
)

-- name: sandbox_charges
UPDATE sandbox_charge SET return_url = NULL FROM booking
JOIN payment ON payment.booking_id = booking.id AND payment.event_id = booking.event_id
WHERE booking.org_id = :org AND booking.user_id = :user
  AND sandbox_charge.payment = 'pay_' || replace(payment.event_id::text || payment.id::text, '-', '')

-- name: recovery_requests
DELETE FROM recovery_request WHERE org_id = :org AND lower(email) = ANY (:emails::text[])

-- name: recovery_links
DELETE FROM recovery_link WHERE org_id = :org AND lower(email) = ANY (:emails::text[])

-- name: telegram_persons
DELETE FROM telegram_person WHERE org_id = :org AND 'telegram:' || person_id = :user

-- name: telegram_dialogues
DELETE FROM telegram_dialogue WHERE org_id = :org AND 'telegram:' || person_id = :user

-- name: telegram_updates
-- A chat with one person has the id of that person.
DELETE FROM telegram_update
WHERE org_id = :org AND (
    'telegram:' || chat_id = :user OR 'telegram:' || (body #>> '{message,from,id}') = :user
    OR 'telegram:' || (body #>> '{callback_query,from,id}') = :user
)

-- name: telegram_messages
-- Messages to the person, and those to staff about the person's bookings.
DELETE FROM telegram_message AS message WHERE message.org_id = :org AND (
    'telegram:' || message.chat_id = :user OR EXISTS (
        SELECT FROM booking WHERE booking.event_id = message.event_id AND booking.id = message.booking_id
          AND booking.user_id = :user
    )
)

-- name: telegram_no_shows
DELETE FROM telegram_no_show WHERE org_id = :org AND 'telegram:' || person_id = :user

-- name: lock
-- The lock of the engine, so that no batch has the bookings in hand.
SELECT FROM event WHERE id = $1 FOR UPDATE

-- name: push_subscriptions
DELETE FROM push_subscription USING booking
WHERE booking.event_id = :event AND booking.user_id = :user
  AND push_subscription.event_id = :event AND push_subscription.booking_id = booking.id

-- name: telegram_receipts
DELETE FROM telegram_receipt USING booking
WHERE booking.event_id = :event AND booking.user_id = :user
  AND telegram_receipt.event_id = :event AND telegram_receipt.booking_id = booking.id

-- name: receipts
DELETE FROM receipt USING booking
WHERE booking.event_id = :event AND booking.user_id = :user
  AND receipt.event_id = :event AND receipt.booking_id = booking.id

-- name: receipt_files
DELETE FROM receipt_file USING booking
WHERE booking.event_id = :event AND booking.user_id = :user
  AND receipt_file.event_id = :event AND receipt_file.booking_id = booking.id

-- name: payments
UPDATE payment SET return_url = NULL, checkout_url = NULL, request_key = uuid_send(gen_random_uuid()),
       fingerprint = uuid_send(gen_random_uuid())
FROM booking
WHERE booking.event_id = :event AND booking.user_id = :user
  AND payment.event_id = :event AND payment.booking_id = booking.id

-- name: waiting_messages
-- Facts that your own systems have yet to hear: they arrive without the person.
UPDATE delivery SET body = jsonb_set(body::jsonb, '{user}', '"erased"')::json
WHERE event_id = :event AND status = 'waiting' AND body ->> 'user' = :user

-- name: deliveries
-- All other messages to the person or about their bookings, sent or not.
DELETE FROM delivery USING (
    SELECT array_agg(id) AS ids FROM booking WHERE event_id = :event AND user_id = :user
) AS own
WHERE delivery.event_id = :event AND (
    delivery.stream = ANY (own.ids) OR delivery.body ->> 'user' = :user
    OR lower(delivery.body ->> 'email') = ANY (:emails::text[])
) AND (delivery.status <> 'waiting' OR delivery.body ->> 'user' IS NULL)

-- name: bookings
-- The hashes are of what the person asked for.
UPDATE booking SET user_id = 'erased-' || gen_random_uuid(), name = NULL, email = NULL, phone = NULL, details = NULL,
       answers = NULL, client = NULL, request_key = uuid_send(gen_random_uuid()), fingerprint = uuid_send(gen_random_uuid())
WHERE event_id = :event AND org_id = :org AND user_id = :user
