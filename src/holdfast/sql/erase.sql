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

-- name: all_bookings
-- Those of the person, and those that were theirs until `bookings` below erased them.
SELECT event_id AS event, id AS booking FROM booking WHERE org_id = :org AND user_id = :user
UNION ALL
SELECT booking.event_id, booking.id FROM booking JOIN event ON event.id = booking.event_id
WHERE booking.org_id = :org AND booking.user_id LIKE 'erased-%'
  AND booking.user_id = 'erased-' || encode(
      substr(sha256(event.actor_key || convert_to('erased:' || :user || booking.id::text, 'UTF8')), 1, 16), 'hex')::uuid

-- name: files
-- The stored receipts of these bookings, and whether other bookings of the org have the same file.
WITH own AS MATERIALIZED (
    SELECT receipt_file.event_id, receipt_file.booking_id, receipt_file.hash
    FROM unnest(:events::uuid[], :bookings::uuid[]) AS given (event_id, booking_id)
    JOIN receipt_file ON receipt_file.event_id = given.event_id AND receipt_file.booking_id = given.booking_id
)
SELECT event_id AS event, booking_id AS booking, hash, hash IN (
    SELECT other.hash FROM receipt_file AS other JOIN event ON event.id = other.event_id
    WHERE event.org_id = :org AND (other.event_id, other.booking_id) NOT IN (SELECT event_id, booking_id FROM own)
) AS is_shared
FROM own

-- name: receipt_files
DELETE FROM receipt_file
WHERE (event_id, booking_id, hash) IN (SELECT * FROM unnest(:events::uuid[], :bookings::uuid[], :hashes::bytea[]))

-- name: notices
-- The webhook events that payment providers sent about the person. Holdfast keeps what it read in them. An event that names
-- the person's address or number belongs to them only if its org is this one, or if no payment of another org is known for
-- it. A body is bytes of any kind: `encode` never fails, and leaves letters as they are. An address starts and ends where
-- no letter or digit continues it, except after an escape of JSON, of a form, or of `encode`.
WITH own AS MATERIALIZED (
    SELECT payment.provider, payment.provider_ref,
           'pay_' || replace(payment.event_id::text || payment.id::text, '-', '') AS name
    FROM unnest(:events::uuid[], :bookings::uuid[]) AS booking (event_id, id)
    JOIN payment ON payment.booking_id = booking.id AND payment.event_id = booking.event_id
),
contact AS MATERIALIZED (
    SELECT text, '((?<![a-z0-9._+-])|(?<=\\\\[bfnrt]|\\\\u[0-9a-f]{4}|%[0-9a-f]{2}|\\[0-7]{3}))'
                 || regexp_replace(text, '([^a-z0-9])', '\\\1', 'g') || '(?![a-z0-9_-]|\.[a-z0-9])' AS pattern
    FROM (
        SELECT lower(encode(convert_to(given, 'UTF8'), 'escape')) AS text FROM unnest(:contacts::text[]) AS given
    ) AS encoded
),
naming AS MATERIALIZED (
    SELECT notice.provider, notice.id FROM payment_notice AS notice
    CROSS JOIN LATERAL (SELECT lower(encode(notice.body, 'escape')) AS text OFFSET 0) AS body
    WHERE EXISTS (
        SELECT FROM contact
        WHERE CASE WHEN position(contact.text IN body.text) > 0 THEN body.text ~ contact.pattern ELSE false END
    ) AND CASE WHEN notice.org_id <> 'ffffffff-ffff-ffff-ffff-ffffffffffff' THEN notice.org_id = :org
        ELSE NOT EXISTS (
            SELECT FROM payment JOIN event ON event.id = payment.event_id
            WHERE payment.provider = notice.provider AND payment.provider_ref = notice.provider_ref
              AND event.org_id <> :org
        ) AND NOT EXISTS (
            SELECT FROM event
            WHERE event.id = CASE WHEN notice.payment ~ '^pay_[0-9a-f]{64}$' THEN substr(notice.payment, 5, 32)::uuid END
              AND event.org_id <> :org
        ) END
)
UPDATE payment_notice AS notice SET body = '' WHERE notice.body <> '' AND (
    EXISTS (
        SELECT FROM own WHERE own.name = notice.payment
           OR own.provider = notice.provider AND own.provider_ref = notice.provider_ref
    ) OR (notice.provider, notice.id) IN (SELECT provider, id FROM naming)
)

-- name: sandbox_charges
UPDATE sandbox_charge SET return_url = NULL FROM unnest(:events::uuid[], :bookings::uuid[]) AS booking (event_id, id)
JOIN payment ON payment.booking_id = booking.id AND payment.event_id = booking.event_id
WHERE sandbox_charge.return_url IS NOT NULL
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
    'telegram:' || message.chat_id = :user
    OR (message.event_id, message.booking_id) IN (SELECT * FROM unnest(:events::uuid[], :bookings::uuid[]))
)

-- name: telegram_no_shows
DELETE FROM telegram_no_show WHERE org_id = :org AND 'telegram:' || person_id = :user

-- name: version
-- The number of the event's latest entry.
SELECT version FROM event WHERE id = :event

-- name: lock
-- The lock of the engine, so that no batch has the bookings in hand. Under it, every statement finds rows by the person or
-- their bookings. Where an index by event could serve, IS NOT DISTINCT FROM keeps it out: an event may be large.
SELECT actor_key FROM event WHERE id = :event FOR UPDATE

-- name: own_bookings
SELECT id FROM booking WHERE org_id = :org AND user_id = :user AND event_id IS NOT DISTINCT FROM :event ORDER BY id

-- name: waiting_messages
-- Facts that your own systems have yet to hear: they arrive without the person. `|| ''` has the same reason as in
-- `notifications.sql`: only the primary key leads to the few rows between :after and :before.
UPDATE delivery SET body = jsonb_set(body::jsonb, '{user}', '"erased"')::json
WHERE event_id = :event AND number > :after AND number < :before AND status || '' = 'waiting'
  AND body ->> 'user' = :user

-- name: deliveries
-- All other messages to the person or about their bookings, sent or not. Other users can have the same address: an email
-- that is yet to be sent is theirs if a booking of theirs has the address.
DELETE FROM delivery
WHERE event_id = :event AND number > :after AND number < :before AND (status <> 'waiting' OR body ->> 'user' IS NULL)
  AND (
    stream = ANY (:bookings::uuid[]) OR body ->> 'user' = :user
    OR lower(body ->> 'email') = ANY (:emails::text[]) AND (
        status <> 'waiting' OR lower(body ->> 'email') IS DISTINCT FROM (
            SELECT lower(booking.email) FROM booking
            WHERE booking.event_id = delivery.event_id AND booking.id = delivery.stream
        )
    )
  )

-- name: push_subscriptions
DELETE FROM push_subscription WHERE event_id = :event AND booking_id = ANY (:bookings::uuid[])

-- name: telegram_receipts
DELETE FROM telegram_receipt WHERE event_id = :event AND booking_id = ANY (:bookings::uuid[])

-- name: receipts
DELETE FROM receipt WHERE event_id IS NOT DISTINCT FROM :event AND booking_id = ANY (:bookings::uuid[])

-- name: payments
UPDATE payment SET return_url = NULL, checkout_url = NULL, request_key = uuid_send(gen_random_uuid()),
       fingerprint = uuid_send(gen_random_uuid())
WHERE event_id IS NOT DISTINCT FROM :event AND booking_id = ANY (:bookings::uuid[])

-- name: bookings
-- `all_bookings` computes the new user again, so that an interrupted command can still find the booking. Only who knows both
-- the person and the event's key can do that, and they recognise the person's pseudonym in the journal too. The id of the
-- booking is part of it, because a person who comes back has two bookings to erase. The other hashes are of what the person
-- asked for.
UPDATE booking SET user_id = 'erased-' || encode(
           substr(sha256(:actor_key::bytea || convert_to('erased:' || :user || id::text, 'UTF8')), 1, 16), 'hex')::uuid,
       name = NULL, email = NULL, phone = NULL, details = NULL, answers = NULL, client = NULL,
       request_key = uuid_send(gen_random_uuid()), fingerprint = uuid_send(gen_random_uuid())
WHERE event_id = :event AND id = ANY (:bookings::uuid[])
