-- What the auditor checks. It derives from live lines and from the journal what everything else should be, and relies on
-- no constraint of the schema: each statement returns the rows that contradict them.
--
-- Every statement reads one event, by indexes that start with the event's id.

-- name: events_to_audit
-- Events whose journal has grown since their last audit, the longest waiting first.
SELECT event.id FROM event LEFT JOIN audit ON audit.event_id = event.id
WHERE audit.version IS DISTINCT FROM event.version
ORDER BY greatest(audit.at, audit.failed_at) NULLS FIRST LIMIT $1

-- name: all_events
SELECT id FROM event ORDER BY id

-- name: save
-- The chain is verified up to :chain_version. If it is broken, nobody has verified more than before.
INSERT INTO audit (event_id, at, version, findings, chain_version, chain_head)
VALUES (:event, holdfast_now(), :version, :findings, coalesce(:chain_version::bigint, 0), :chain_head)
ON CONFLICT (event_id) DO UPDATE SET
    at = excluded.at, version = excluded.version, findings = excluded.findings, failed_at = NULL,
    chain_version = coalesce(:chain_version::bigint, audit.chain_version),
    chain_head = coalesce(:chain_head::bytea, audit.chain_head)

-- name: postpone
-- An event whose audit failed waits behind the others. Its version is -1 until an audit succeeds.
INSERT INTO audit (event_id, at, version, findings, failed_at) VALUES ($1, holdfast_now(), -1, '[]', holdfast_now())
ON CONFLICT (event_id) DO UPDATE SET failed_at = excluded.failed_at

-- name: summary
SELECT count(*) FILTER (WHERE version >= 0) AS events, max(at) FILTER (WHERE version >= 0) AS last_at, coalesce(sum(json_array_length(findings)), 0)::bigint AS findings FROM audit

-- name: version
SELECT version FROM event WHERE id = $1

-- name: now
SELECT holdfast_now()

-- name: journal_end
-- The version and the head of the event, and the last entry in its journal.
SELECT event.version, event.journal_head AS head, last.number AS last_number, last.hash AS last_hash
FROM event LEFT JOIN LATERAL (
    SELECT entry.number, {{entry_hash}} AS hash FROM journal AS entry
    WHERE entry.event_id = event.id ORDER BY entry.number DESC LIMIT 1
) AS last ON true
WHERE event.id = $1

-- name: verified_chain
-- How far the auditor has verified the event's chain before.
SELECT chain_version AS version, chain_head AS head FROM audit WHERE event_id = $1 AND chain_head IS NOT NULL

-- name: entry_hashes
-- The hashes of the entries from $2 to $3, and those that they carry.
SELECT entry.number, entry.previous, {{entry_hash}} AS hash FROM journal AS entry
WHERE entry.event_id = $1 AND entry.number BETWEEN $2 AND $3 ORDER BY entry.number

-- name: broken_links
-- Entries after :after that do not follow the one before them, by number or by hash. The entry :after, if there is one,
-- has the hash :head.
WITH hashed AS (
    SELECT entry.number, entry.previous, {{entry_hash}} AS hash FROM journal AS entry
    WHERE entry.event_id = :event AND entry.number > :after
), link AS (
    SELECT number, previous, lag(number) OVER (ORDER BY number) AS number_before,
           lag(hash) OVER (ORDER BY number) AS hash_before
    FROM hashed
)
SELECT number, number_before, previous <> coalesce(hash_before, :head::bytea) AS is_broken FROM link
WHERE number <> coalesce(number_before, greatest(:after, 0)) + 1 OR previous <> coalesce(hash_before, :head)
ORDER BY number LIMIT :links_max

-- name: pools
-- Pools whose counters differ from the sum of their live lines or exceed the capacity, or whose capacity is not the number
-- of their seats.
SELECT pool.code, pool.capacity, pool.held, pool.sold, coalesce(lines.held, 0)::bigint AS held_lines,
       coalesce(lines.sold, 0)::bigint AS sold_lines, CASE WHEN pool.seated THEN seats.count END AS seats
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
       OR pool.held + pool.sold > pool.capacity OR pool.seated AND pool.capacity <> seats.count)

-- name: seats
-- Seats with two live lines, or with a live line that does not fit the seat.
SELECT coalesce(seat.label, line.seat::text) AS label, count(*) AS lines, seat.label IS NULL AS is_unknown,
       coalesce(bool_or(seat.blocked), false) AS is_blocked,
       coalesce(bool_or(seat.pool <> line.pool), false) AS is_in_other_pool, max(line.quantity) AS quantity
FROM line LEFT JOIN seat ON seat.event_id = line.event_id AND seat.number = line.seat
WHERE line.event_id = $1 AND line.live AND line.seat IS NOT NULL
GROUP BY seat.label, line.seat
HAVING count(*) > 1 OR bool_or(seat.label IS NULL OR seat.blocked OR seat.pool <> line.pool OR line.quantity <> 1)

-- name: lines_in_unknown_pools
SELECT line.pool AS number, count(*) AS lines FROM line
WHERE line.event_id = $1 AND line.live AND NOT EXISTS (
    SELECT FROM pool WHERE pool.event_id = line.event_id AND pool.number = line.pool
)
GROUP BY line.pool

-- name: bookings
-- Bookings that claim units without live lines or the other way round, whose amounts do not add up, or whose hold lasts
-- longer than it may.
SELECT booking.id, booking.status, booking.subtotal, booking.tax, booking.total, booking.status IN ({{claiming}}) AS is_claiming,
       count(line.number) AS lines, count(*) FILTER (WHERE line.live) AS live_lines,
       coalesce(sum(line.quantity * line.unit_price), 0)::bigint AS line_total, booking.expires_at, booking.max_expires_at,
       coalesce(booking.status = 'held' AND booking.expires_at > booking.max_expires_at, false) AS is_too_long
FROM booking LEFT JOIN line ON line.event_id = booking.event_id AND line.booking_id = booking.id
WHERE booking.event_id = $1
GROUP BY booking.event_id, booking.id
HAVING count(line.number) = 0
    OR bool_or(line.live <> (booking.status IN ({{claiming}})))
    OR sum(line.quantity * line.unit_price) <> booking.subtotal
    OR booking.total <> booking.subtotal + booking.tax
    OR booking.status = 'held' AND booking.expires_at > booking.max_expires_at

-- name: users
-- Users who have several live bookings, although the event allowed only one when the latest of them was placed. The row
-- names that booking, because users appear in no log.
SELECT (array_agg(booking.id ORDER BY booking.id DESC))[1] AS id, count(*) AS bookings
FROM event JOIN booking ON booking.event_id = event.id AND booking.status IN ({{live}})
WHERE event.id = $1 AND event.one_per_user_since IS NOT NULL
GROUP BY event.one_per_user_since, booking.user_id
HAVING count(*) > 1 AND max(booking.created_at) > event.one_per_user_since

-- name: strays
-- Lines, journal entries and receipts of bookings that do not exist.
SELECT line.booking_id AS id, 'line' AS kind FROM line
WHERE line.event_id = $1 AND NOT EXISTS (
    SELECT FROM booking WHERE booking.event_id = line.event_id AND booking.id = line.booking_id
)
UNION
SELECT journal.booking_id, 'entry' FROM journal
WHERE journal.event_id = $1 AND journal.booking_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM booking WHERE booking.event_id = journal.event_id AND booking.id = journal.booking_id
)
UNION
SELECT receipt.booking_id, 'receipt' FROM receipt
WHERE receipt.event_id = $1 AND NOT EXISTS (
    SELECT FROM booking WHERE booking.event_id = receipt.event_id AND booking.id = receipt.booking_id
)

-- name: transitions
-- Changes of status that the table of states does not allow ($2 source, $3 target; '' is the start), and bookings whose
-- status or version differs from their last journal entry.
WITH entry AS MATERIALIZED (
    SELECT booking_id, number, kind,
           kind NOT IN ('extended', 'transferred') AND kind NOT LIKE 'payment.%' AS is_status
    FROM journal WHERE event_id = $1 AND booking_id IS NOT NULL
), steps AS (
    SELECT booking_id, number, kind,
           coalesce(lag(kind) OVER (PARTITION BY booking_id ORDER BY number), '') AS before
    FROM entry WHERE is_status
)
SELECT 'transition' AS what, steps.booking_id AS id, steps.before AS was, steps.kind AS became, steps.number FROM steps
WHERE NOT EXISTS (
    SELECT FROM unnest($2::text[], $3::text[]) AS allowed (source, target)
    WHERE allowed.source = steps.before AND allowed.target = steps.kind
)
UNION ALL
SELECT 'booking_status', booking.id, coalesce(latest.kind, ''), booking.status, coalesce(latest.number, 0)
FROM booking LEFT JOIN (
    SELECT DISTINCT ON (booking_id) booking_id, kind, number FROM steps ORDER BY booking_id, number DESC
) AS latest ON latest.booking_id = booking.id
WHERE booking.event_id = $1 AND latest.kind IS DISTINCT FROM booking.status
UNION ALL
SELECT 'booking_version', booking.id, latest.number::text, booking.version::text, latest.number
FROM booking JOIN (
    SELECT booking_id, max(number) AS number FROM entry GROUP BY booking_id
) AS latest ON latest.booking_id = booking.id
WHERE booking.event_id = $1 AND latest.number <> booking.version

-- name: payments
-- Payments that contradict their booking or themselves.
SELECT payment.id, payment.status, payment.outcome, payment.amount, payment.currency,
       payment.captured_at IS NOT NULL AS is_captured, payment.capture_assumed,
       booking.status AS booking_status, booking.total, booking.currency AS booking_currency,
       booking.status IN ({{sold}}) AS is_sold, payment.status = 'refund_due' AND payment.due_at IS NULL AS is_forgotten,
       coalesce(other.is_kept, false) AS is_kept_twice
FROM payment LEFT JOIN booking ON booking.event_id = payment.event_id AND booking.id = payment.booking_id
LEFT JOIN LATERAL (
    SELECT true AS is_kept FROM payment AS other
    WHERE other.booking_id = payment.booking_id AND other.event_id IS NOT DISTINCT FROM payment.event_id
      AND other.id <> payment.id AND other.status = 'succeeded' AND payment.status = 'succeeded'
    LIMIT 1
) AS other ON true
WHERE payment.event_id = $1 AND (
    booking.id IS NULL
    OR payment.amount <> booking.total OR payment.currency <> booking.currency
    OR payment.captured_at IS NOT NULL AND payment.status NOT IN ('succeeded', 'refund_due', 'refunded', 'review')
    OR payment.captured_at IS NULL AND payment.status IN ('succeeded', 'refund_due')
    OR payment.capture_assumed
       AND (payment.captured_at IS NULL OR payment.status NOT IN ('refund_due', 'refunded', 'review'))
    OR payment.status = 'succeeded' AND booking.status NOT IN ({{sold}})
    OR payment.status = 'refund_due' AND payment.due_at IS NULL
    OR other.is_kept
    OR payment.outcome IS DISTINCT FROM CASE payment.status
        WHEN 'succeeded' THEN CASE payment.outcome WHEN 'revived' THEN 'revived' ELSE 'fulfilled' END
        WHEN 'refunded' THEN 'refunded' WHEN 'review' THEN 'review' END
)

-- name: recorded_payments
-- Payments whose status differs from the last journal entry about them, and payments that only one of both has.
SELECT coalesce(payment.id, recorded.id) AS id, recorded.status AS recorded, payment.status
FROM (
    SELECT DISTINCT ON (data ->> 'payment') (data ->> 'payment')::uuid AS id, substr(kind, length('payment.') + 1) AS status
    FROM journal WHERE event_id = $1 AND kind LIKE 'payment.%' AND data ->> 'payment' ~ '^[0-9a-f]{32}$'
    ORDER BY data ->> 'payment', number DESC
) AS recorded FULL JOIN (
    SELECT id, status FROM payment WHERE event_id = $1
) AS payment ON payment.id = recorded.id
WHERE payment.status IS DISTINCT FROM recorded.status

-- name: checkins
-- Check-ins without a ticket: the booking has never been confirmed, or has no such unit.
SELECT checkin.booking_id AS id, checkin.line, checkin.unit, booking.status, line.quantity
FROM checkin
LEFT JOIN booking ON booking.event_id = checkin.event_id AND booking.id = checkin.booking_id
LEFT JOIN line ON line.event_id = checkin.event_id AND line.booking_id = checkin.booking_id AND line.number = checkin.line
WHERE checkin.event_id = $1
  AND (booking.id IS NULL OR booking.status NOT IN ({{once_confirmed}})
       OR line.quantity IS NULL OR checkin.unit NOT BETWEEN 0 AND line.quantity - 1)

-- name: deliveries
-- Notifications about journal entries that do not exist. Those about no entry take their numbers from a sequence that
-- starts here.
SELECT delivery.number, count(*) AS deliveries FROM delivery
WHERE delivery.event_id = $1 AND delivery.number < 1099511627776 AND NOT EXISTS (
    SELECT FROM journal WHERE journal.event_id = delivery.event_id AND journal.number = delivery.number
)
GROUP BY delivery.number ORDER BY delivery.number LIMIT 100
