-- Tickets: the keys that sign them, and who was let in.

-- name: keys
SELECT number, public, created_at, revoked_at FROM ticket_key WHERE event_id = $1 ORDER BY number

-- name: signing_key
-- The newest one signs.
SELECT number, private, public FROM ticket_key WHERE event_id = $1 AND revoked_at IS NULL ORDER BY number DESC LIMIT 1

-- name: insert_key
-- $2 is the number it gets; two who make the first key at once find the same one.
INSERT INTO ticket_key (event_id, number, private, public) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING

-- name: last_key
SELECT coalesce(max(number), 0) FROM ticket_key WHERE event_id = $1

-- name: revoke_keys
UPDATE ticket_key SET revoked_at = holdfast_now() WHERE event_id = $1 AND number < $2 AND revoked_at IS NULL

-- name: public_key
-- The key of a ticket that is shown, if the event is of the org and the key was not revoked.
SELECT ticket_key.public FROM ticket_key JOIN event ON event.id = ticket_key.event_id
WHERE ticket_key.event_id = $1 AND ticket_key.number = $2 AND ticket_key.revoked_at IS NULL AND event.org_id = $3

-- name: check_in
-- Lets in whoever shows a ticket of a booking that is valid, once. The booking is locked meanwhile, so that it is not
-- refunded between the look and the leap. Returns what the booking is like, and the row if it is a new one.
WITH shown AS MATERIALIZED (
    SELECT booking.status, booking.generation, event.status = 'cancelled' AS called_off
    FROM booking JOIN event ON event.id = booking.event_id
    WHERE booking.event_id = $1 AND booking.id = $2 FOR SHARE OF booking
), admitted AS (
    INSERT INTO checkin (event_id, booking_id, line, unit, gate, nonce, actor)
    SELECT $1, $2, $3, $4, $6, $7, $8 FROM shown
    WHERE shown.status IN ('confirmed', 'completed') AND shown.generation = $5 AND NOT shown.called_off
    ON CONFLICT DO NOTHING
    RETURNING at
)
SELECT shown.status, shown.generation, shown.called_off, admitted.at FROM shown LEFT JOIN admitted ON true

-- name: checkin
SELECT at, gate, nonce FROM checkin WHERE event_id = $1 AND booking_id = $2 AND line = $3 AND unit = $4

-- name: checkins
SELECT line, unit FROM checkin WHERE event_id = $1 AND booking_id = $2

-- name: print
-- What is printed on tickets and told in letters.
SELECT event.title, event.starts_at, event.ends_at, event.timezone, event.details ->> 'address' AS address,
       event.revision, org.name AS org_name, to_json(fields) AS booking
FROM event JOIN org ON org.id = event.org_id JOIN booking ON booking.event_id = event.id
     CROSS JOIN LATERAL (SELECT {{booking_fields}}) AS fields
WHERE event.id = $1 AND booking.event_id = $1 AND booking.id = $2
