-- Tickets: the keys that sign them, and check-ins at the door.

-- name: keys
SELECT number, public, created_at, revoked_at FROM ticket_key WHERE event_id = $1 ORDER BY number

-- name: signing_key
-- The newest valid key signs.
SELECT number, private, public FROM ticket_key WHERE event_id = $1 AND revoked_at IS NULL ORDER BY number DESC LIMIT 1

-- name: insert_key
-- If two processes insert the same number at once, the first one wins and both use its key.
INSERT INTO ticket_key (event_id, number, private, public) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING

-- name: last_key_number
SELECT coalesce(max(number), 0) FROM ticket_key WHERE event_id = $1

-- name: revoke_keys
UPDATE ticket_key SET revoked_at = holdfast_now() WHERE event_id = $1 AND number < $2 AND revoked_at IS NULL

-- name: verification_key
-- The key that signed a ticket, if the event belongs to the org and the key is not revoked.
SELECT ticket_key.public FROM ticket_key JOIN event ON event.id = ticket_key.event_id
WHERE ticket_key.event_id = $1 AND ticket_key.number = $2 AND ticket_key.revoked_at IS NULL AND event.org_id = $3

-- name: check_in
-- Checks a ticket in, once, if its booking is valid. The lock keeps a refund from committing between the check and the
-- insert. Returns the state of the booking, and `at` only if this call checked the ticket in.
WITH found AS MATERIALIZED (
    SELECT booking.status, booking.generation, event.status = 'cancelled' AS is_event_cancelled
    FROM booking JOIN event ON event.id = booking.event_id
    WHERE booking.event_id = :event AND booking.id = :booking FOR SHARE OF booking
), admitted AS (
    INSERT INTO checkin (event_id, booking_id, line, unit, gate, nonce, actor)
    SELECT :event, :booking, :line, :unit, :gate, :nonce, :actor FROM found
    WHERE found.status IN ({{sold}}) AND found.generation = :generation AND NOT found.is_event_cancelled
    ON CONFLICT DO NOTHING
    RETURNING at
)
SELECT found.status, found.generation, found.is_event_cancelled, admitted.at FROM found LEFT JOIN admitted ON true

-- name: checkin
SELECT at, gate, nonce, actor FROM checkin WHERE event_id = $1 AND booking_id = $2 AND line = $3 AND unit = $4

-- name: checkins
SELECT line, unit FROM checkin WHERE event_id = $1 AND booking_id = $2

-- name: booking_details
-- The text about a booking on tickets and in emails. They have room for $3 characters of the address.
SELECT event.title, event.timezone, left(coalesce(event.details ->> 'address', event.shift ->> 'address'), $3) AS address,
       event.shift, event.revision, org.name AS org_name, to_json(fields) AS booking
FROM event JOIN org ON org.id = event.org_id JOIN booking ON booking.event_id = event.id
     CROSS JOIN LATERAL (SELECT {{booking_fields}}) AS fields
WHERE event.id = $1 AND booking.event_id = $1 AND booking.id = $2
