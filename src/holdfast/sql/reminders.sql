-- Reminders of events and slots that start soon.

-- name: due_starts
-- Up to :starts_max starts within :seconds from now that are not finished, the earliest first, except of the events in
-- :waiting. Two indexes by time find them: of events, and of pools with a time of their own.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
starting AS MATERIALIZED (
    SELECT event.id AS event_id, event.starts_at FROM clock CROSS JOIN LATERAL (
        SELECT id, status, starts_at FROM event
        WHERE starts_at > clock.at AND starts_at <= clock.at + make_interval(secs => :seconds) AND tax_bps >= 0
    ) AS event
    WHERE event.status = 'active'
    UNION
    SELECT pool.event_id, pool.starts_at FROM clock CROSS JOIN LATERAL (
        SELECT event_id, starts_at FROM pool
        WHERE starts_at > clock.at AND starts_at <= clock.at + make_interval(secs => :seconds)
    ) AS pool JOIN event ON event.id = pool.event_id
    WHERE event.status = 'active'
)
SELECT starting.event_id, starting.starts_at FROM starting
LEFT JOIN reminder_run AS run ON run.event_id = starting.event_id AND run.starts_at = starting.starts_at
WHERE run.done_at IS NULL AND starting.event_id <> ALL (:waiting::uuid[])
ORDER BY starting.starts_at, starting.event_id LIMIT :starts_max

-- name: start_run
INSERT INTO reminder_run (event_id, starts_at) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: lock_run
-- Nothing if another worker is at it, or has finished.
SELECT last_booking_id FROM reminder_run
WHERE event_id = $1 AND starts_at = $2 AND done_at IS NULL FOR UPDATE SKIP LOCKED

-- name: bookings
-- The next :scanned_max bookings of an event by id, and whether their buyer gets a reminder of :starts_at: the booking is
-- confirmed, has a line at that time, and was placed more than :seconds before. `last_actor` is whoever changed the booking
-- last, as the journal names them.
SELECT booking.id, booking.org_id AS org, booking.email, booking.phone, booking.language, booking.generation, booking.total,
       booking.user_id AS user, booking.client,
       (SELECT journal.actor FROM journal
        WHERE journal.event_id = booking.event_id AND journal.number = booking.version) AS last_actor,
       booking.status = 'confirmed' AND event.status = 'active' AND (booking.email IS NOT NULL OR booking.phone IS NOT NULL)
       AND booking.created_at < :starts_at::timestamptz - make_interval(secs => :seconds)
       AND EXISTS (
           SELECT FROM line JOIN pool ON pool.event_id = line.event_id AND pool.number = line.pool
           WHERE line.event_id = booking.event_id AND line.booking_id = booking.id AND line.live
             AND coalesce(pool.starts_at, event.starts_at) = :starts_at::timestamptz
       ) AS is_reminded
FROM event JOIN LATERAL (
    SELECT * FROM booking WHERE event_id = event.id AND id > :after
    ORDER BY event_id, id LIMIT :scanned_max
) AS booking ON true
WHERE event.id = :event
ORDER BY booking.id

-- name: advance_run
UPDATE reminder_run SET last_booking_id = :last_booking, done_at = CASE WHEN :is_done THEN holdfast_now() END
WHERE event_id = :event AND starts_at = :starts_at

-- name: insert_deliveries
-- All rows of a booking get the same number.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at),
reminded AS MATERIALIZED (
    SELECT booking, nextval('delivery_number') AS number FROM unnest($2::uuid[]) AS booking
)
INSERT INTO delivery (event_id, number, target, channel, org_id, stream, kind, body, recipient_hash, buyer_hash,
                      client_hash, created_at, due_at)
SELECT $1, reminded.number, delivery.target, delivery.channel, holdfast_uuid(delivery.org), reminded.booking, delivery.kind,
       delivery.body, decode(delivery.recipient_hash, 'base64'), decode(delivery.buyer_hash, 'base64'),
       decode(delivery.client_hash, 'base64'), clock.at, clock.at
FROM clock CROSS JOIN json_to_recordset($3::json) AS delivery (
    booking text, target text, channel text, org text, kind text, body json, recipient_hash text, buyer_hash text,
    client_hash text
) JOIN reminded ON reminded.booking = holdfast_uuid(delivery.booking)

-- name: is_current
-- Whether a reminder that waits to be sent is still true: neither the booking nor its time has changed.
SELECT EXISTS (
    SELECT FROM booking JOIN event ON event.id = booking.event_id
    WHERE booking.event_id = :event AND booking.id = :booking AND booking.status = 'confirmed'
      AND booking.generation = :generation AND event.status = 'active' AND :starts_at::timestamptz > holdfast_now()
      AND EXISTS (
          SELECT FROM line JOIN pool ON pool.event_id = line.event_id AND pool.number = line.pool
          WHERE line.event_id = booking.event_id AND line.booking_id = booking.id AND line.live
            AND coalesce(pool.starts_at, event.starts_at) = :starts_at::timestamptz
      )
)
