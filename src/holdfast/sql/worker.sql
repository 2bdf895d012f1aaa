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

-- name: events_to_audit
-- Events whose journal has grown since their last audit, the longest waiting first.
SELECT event.id FROM event LEFT JOIN audit ON audit.event_id = event.id
WHERE audit.version IS DISTINCT FROM event.version
ORDER BY audit.at NULLS FIRST LIMIT $1

-- name: all_events
SELECT id FROM event ORDER BY id

-- name: save_audit
INSERT INTO audit (event_id, at, version, findings) VALUES ($1, holdfast_now(), $2, $3)
ON CONFLICT (event_id) DO UPDATE SET at = excluded.at, version = excluded.version, findings = excluded.findings

-- name: postpone_audit
-- An event whose audit failed waits behind the others. Its version is -1 until an audit succeeds.
INSERT INTO audit (event_id, at, version, findings) VALUES ($1, holdfast_now(), -1, '[]')
ON CONFLICT (event_id) DO UPDATE SET at = excluded.at

-- name: audit_summary
SELECT count(*) FILTER (WHERE version >= 0) AS events, max(at) AS last_at, coalesce(sum(json_array_length(findings)), 0)::bigint AS findings FROM audit

-- name: audit_version
SELECT version FROM event WHERE id = $1

-- name: audit_pools
-- Pools whose counters differ from the sum of their live lines, or whose capacity differs from their seats.
SELECT pool.code, pool.capacity, pool.held, pool.sold, coalesce(lines.held, 0) AS held_lines,
       coalesce(lines.sold, 0) AS sold_lines, seats.count AS seats
FROM pool LEFT JOIN (
    SELECT line.pool,
           sum(line.quantity) FILTER (WHERE booking.status IN ({{holding}})) AS held,
           sum(line.quantity) FILTER (WHERE booking.status NOT IN ({{holding}})) AS sold
    FROM line JOIN booking ON booking.event_id = line.event_id AND booking.id = line.booking_id
    WHERE line.event_id = $1 AND line.live GROUP BY line.pool
) AS lines ON lines.pool = pool.number
LEFT JOIN LATERAL (
    SELECT count(*) FROM seat WHERE seat.event_id = $1 AND seat.pool = pool.number AND NOT seat.blocked
) AS seats ON true
WHERE pool.event_id = $1
  AND (pool.held <> coalesce(lines.held, 0) OR pool.sold <> coalesce(lines.sold, 0)
       OR pool.held < 0 OR pool.sold < 0 OR pool.held + pool.sold > pool.capacity
       OR pool.seated AND pool.capacity <> seats.count)

-- name: audit_seats
-- Seats with two live lines, or with a live line that does not fit the seat.
SELECT coalesce(seat.label, line.seat::text) AS label, count(*) AS lines
FROM line LEFT JOIN seat ON seat.event_id = line.event_id AND seat.number = line.seat
WHERE line.event_id = $1 AND line.live AND line.seat IS NOT NULL
GROUP BY seat.label, line.seat
HAVING count(*) > 1 OR bool_or(seat.label IS NULL OR seat.blocked OR seat.pool <> line.pool OR line.quantity <> 1)

-- name: audit_lines
-- Bookings that claim units without live lines or the other way round, or whose lines do not add up to the subtotal.
SELECT booking.id, booking.status FROM booking LEFT JOIN line
    ON line.event_id = booking.event_id AND line.booking_id = booking.id
WHERE booking.event_id = $1
GROUP BY booking.event_id, booking.id
HAVING count(line.number) = 0
    OR bool_or(line.live <> (booking.status IN ({{claiming}})))
    OR sum(line.quantity * line.unit_price) <> booking.subtotal

-- name: audit_users
-- Users who have several live bookings, although the event allowed only one when the latest of them was placed. The row
-- names that booking, because users appear in no log.
SELECT (array_agg(booking.id ORDER BY booking.id DESC))[1] AS id, count(*) AS live_bookings_of_user
FROM event JOIN booking ON booking.event_id = event.id AND booking.status IN ({{live}})
WHERE event.id = $1 AND event.one_per_user_since IS NOT NULL
GROUP BY event.one_per_user_since, booking.user_id
HAVING count(*) > 1 AND max(booking.created_at) > event.one_per_user_since

-- name: audit_strays
-- Lines and journal entries of bookings that do not exist.
SELECT line.booking_id AS id, 'line' AS kind FROM line
WHERE line.event_id = $1 AND NOT EXISTS (
    SELECT FROM booking WHERE booking.event_id = line.event_id AND booking.id = line.booking_id
)
UNION
SELECT journal.booking_id, 'entry' FROM journal
WHERE journal.event_id = $1 AND journal.booking_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM booking WHERE booking.event_id = journal.event_id AND booking.id = journal.booking_id
)

-- name: audit_money
-- Payments that contradict their booking or themselves: no booking; another amount than the booking's; captured in a
-- status that does not allow it, or the other way round; kept although nobody but staff reported the capture; succeeded
-- although the booking is not confirmed, or twice.
SELECT payment.id, payment.status, payment.outcome, booking.status AS booking
FROM payment LEFT JOIN booking ON booking.event_id = payment.event_id AND booking.id = payment.booking_id
WHERE payment.event_id = $1 AND (
    booking.id IS NULL
    OR payment.amount <> booking.total OR payment.currency <> booking.currency
    OR payment.captured_at IS NOT NULL AND payment.status NOT IN ('succeeded', 'refund_due', 'refunded', 'review')
    OR payment.captured_at IS NULL AND payment.status IN ('succeeded', 'refund_due')
    OR payment.capture_assumed
       AND (payment.captured_at IS NULL OR payment.status NOT IN ('refund_due', 'refunded', 'review'))
    OR payment.status = 'succeeded' AND booking.status NOT IN ({{sold}})
    OR payment.status = 'succeeded' AND EXISTS (
        SELECT FROM payment AS other WHERE other.booking_id = payment.booking_id AND other.event_id = payment.event_id
          AND other.id <> payment.id AND other.status = 'succeeded'
    )
)

-- name: audit_journal
-- Events whose journal does not run from 1 to their version without gaps.
SELECT event.version, count(journal.number) AS entries, min(journal.number) AS first, max(journal.number) AS last
FROM event LEFT JOIN journal ON journal.event_id = event.id WHERE event.id = $1
GROUP BY event.id HAVING count(journal.number) <> event.version
    OR coalesce(min(journal.number), 1) <> 1 OR coalesce(max(journal.number), 0) <> event.version

-- name: audit_transitions
-- Changes of status that the table of states does not allow ($2 source, $3 target; '' is the start), and bookings whose
-- status differs from their last journal entry.
WITH steps AS (
    SELECT booking_id, number, kind,
           coalesce(lag(kind) OVER (PARTITION BY booking_id ORDER BY number), '') AS before
    FROM journal WHERE event_id = $1 AND booking_id IS NOT NULL
      AND kind NOT IN ('extended', 'transferred') AND kind NOT LIKE 'payment.%'
)
SELECT steps.booking_id AS id, steps.before AS was, steps.kind AS became FROM steps
WHERE NOT EXISTS (
    SELECT FROM unnest($2::text[], $3::text[]) AS allowed (source, target)
    WHERE allowed.source = steps.before AND allowed.target = steps.kind
)
UNION ALL
SELECT booking.id, latest.kind, booking.status FROM booking LEFT JOIN (
    SELECT DISTINCT ON (booking_id) booking_id, kind FROM steps ORDER BY booking_id, number DESC
) AS latest ON latest.booking_id = booking.id
WHERE booking.event_id = $1 AND latest.kind IS DISTINCT FROM booking.status

-- name: events_to_complete
-- Up to $1 events, except $2.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT id, org_id FROM event
WHERE status = 'active' AND ends_at <= (SELECT at FROM clock) AND id <> ALL ($2::uuid[])
ORDER BY ends_at LIMIT $1
