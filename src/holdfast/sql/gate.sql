-- What Redis needs to know about events. These statements read, and hold no lock.

-- name: clock
SELECT holdfast_now()

-- name: changes
-- What has happened to each of :events since the version in :versions: the state of every booking that one of the next
-- :entries_max journal entries is about. `followed` is the number of the last of those entries. Pools have the units that
-- are left; a due hold still counts, so `next_expiry` is then in the past.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT event.id AS event, event.org_id AS org, event.revision, event.version, clock.at,
       coalesce(recent.last, given.version) AS followed, (
    SELECT coalesce(json_agg(fields), '[]')
    FROM unnest(recent.bookings) AS changed (id) CROSS JOIN LATERAL (
        SELECT * FROM booking WHERE booking.event_id = event.id AND booking.id = changed.id LIMIT 1
    ) AS booking CROSS JOIN LATERAL (SELECT {{booked_seats}}) AS fields
) AS bookings, (
    SELECT json_object_agg(pool.code, pool.capacity - pool.held - pool.sold) FROM pool
    WHERE pool.event_id = event.id AND pool.seated
) AS pools, (
    SELECT booking.expires_at FROM booking
    WHERE booking.event_id = event.id AND booking.status IN ({{timed}})
    ORDER BY booking.event_id, booking.expires_at LIMIT 1
) AS next_expiry
FROM clock CROSS JOIN unnest(:events::uuid[], :versions::bigint[]) AS given (id, version) CROSS JOIN LATERAL (
    SELECT id, org_id, revision, version FROM event WHERE event.id = given.id LIMIT 1
) AS event CROSS JOIN LATERAL (
    SELECT max(entry.number) AS last, array_agg(DISTINCT entry.booking_id) AS bookings FROM (
        SELECT number, booking_id FROM journal
        WHERE journal.event_id = event.id AND journal.number > given.version
        ORDER BY journal.event_id, journal.number LIMIT :entries_max
    ) AS entry
) AS recent

-- fragment: booked_seats
-- The row `booking` as gate.changes.BookedSeats.
holdfast_base64(booking.id) AS id, booking.user_id AS "user", booking.status,
encode(booking.request_key, 'base64') AS request_key, encode(booking.client, 'base64') AS client,
booking.created_at, booking.expires_at, booking.version, (
    SELECT coalesce(json_agg(seat.label), '[]')
    FROM line CROSS JOIN LATERAL (
        SELECT label FROM seat WHERE seat.event_id = line.event_id AND seat.number = line.seat LIMIT 1
    ) AS seat
    WHERE line.event_id = booking.event_id AND line.booking_id = booking.id AND line.seat IS NOT NULL
) AS seats

-- name: event_head
SELECT holdfast_now() AS at, org_id AS org, version, revision FROM event WHERE id = $1

-- name: bookings
-- Up to :limit bookings of the event, after the booking :after.
WITH RECURSIVE {{page_of_event}}
SELECT to_json(fields) AS booking
FROM page CROSS JOIN LATERAL (
    SELECT * FROM booking WHERE booking.event_id = :event AND booking.id = page.id LIMIT 1
) AS booking CROSS JOIN LATERAL (SELECT {{booked_seats}}) AS fields
WHERE page.position > 0 ORDER BY page.position
