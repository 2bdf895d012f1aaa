-- The statements of the background workers.

-- name: events_to_sweep
-- Up to $1 events after $2, except $3, that have due holds, or that have ended and still have bookings to end.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT event.id FROM clock CROSS JOIN event
WHERE event.id > $2 AND event.id <> ALL ($3::uuid[]) AND (EXISTS (
    SELECT FROM booking WHERE booking.event_id = event.id
      AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
) OR event.status IN ({{ended}}) AND EXISTS (
    SELECT FROM booking WHERE booking.event_id = event.id
      AND booking.status IN ({{live}})
      AND (event.status, booking.status) IN ({{endings}})
))
ORDER BY event.id LIMIT $1

-- name: events_to_reap
-- What sweeps would end in :event, or in every event if it is null: due holds with their units and, in an event that has
-- ended, other bookings that end with it.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT event.id, event.title, due.holds AS due_holds, due.units AS due_units, ending.bookings AS ending_bookings
FROM clock CROSS JOIN event CROSS JOIN LATERAL (
    SELECT count(DISTINCT booking.id) AS holds, coalesce(sum(line.quantity), 0)::bigint AS units
    FROM booking JOIN line ON line.event_id = booking.event_id AND line.booking_id = booking.id
    WHERE booking.event_id = event.id AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
) AS due CROSS JOIN LATERAL (
    SELECT count(*) AS bookings FROM booking
    WHERE booking.event_id = event.id AND event.status IN ({{ended}}) AND booking.status IN ({{live}})
      AND (event.status, booking.status) IN ({{endings}})
      AND NOT (booking.status IN ({{timed}}) AND booking.expires_at <= clock.at)
) AS ending
WHERE (:event::uuid IS NULL OR event.id = :event) AND due.holds + ending.bookings > 0
ORDER BY event.id

-- name: events_to_complete
-- Up to $1 events, except $2.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT id, org_id FROM event
WHERE status = 'active' AND ends_at <= (SELECT at FROM clock) AND id <> ALL ($2::uuid[])
ORDER BY ends_at LIMIT $1
