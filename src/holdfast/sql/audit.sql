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
-- Every event that any of these tables knows, so that nobody hides an event by deleting its row. Each step jumps to the next
-- event in the primary keys, so it costs a few look-ups per event, however many rows the event has.
WITH RECURSIVE step AS (
    SELECT '00000000-0000-0000-0000-000000000000'::uuid AS id
    UNION ALL
    SELECT following.id FROM step CROSS JOIN LATERAL (
        SELECT least(
            (SELECT event.id FROM event WHERE event.id > step.id ORDER BY event.id LIMIT 1),
            (SELECT event_id FROM journal WHERE event_id > step.id ORDER BY event_id LIMIT 1),
            (SELECT event_id FROM booking WHERE event_id > step.id ORDER BY event_id LIMIT 1),
            (SELECT event_id FROM line WHERE event_id > step.id ORDER BY event_id LIMIT 1),
            (SELECT event_id FROM payment WHERE event_id > step.id ORDER BY event_id LIMIT 1)
        ) AS id
    ) AS following WHERE following.id IS NOT NULL
)
SELECT id FROM step
WHERE id <> '00000000-0000-0000-0000-000000000000' OR EXISTS (SELECT FROM journal WHERE journal.event_id = step.id)
ORDER BY id

-- name: rows_of_event
-- What there is of an event whose row is gone.
SELECT (SELECT count(*) FROM journal WHERE event_id = $1) AS entries,
       (SELECT count(*) FROM booking WHERE event_id = $1) AS bookings,
       (SELECT count(*) FROM payment WHERE event_id = $1) AS payments

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
-- Entries from :first on that do not follow the one before them, by number or by hash. The entry before :first, if there is
-- one, has the hash :head.
WITH hashed AS (
    SELECT entry.number, entry.previous, {{entry_hash}} AS hash FROM journal AS entry
    WHERE entry.event_id = :event AND entry.number >= :first
), link AS (
    SELECT number, previous, lag(number) OVER (ORDER BY number) AS number_before,
           lag(hash) OVER (ORDER BY number) AS hash_before
    FROM hashed
)
SELECT number, number_before, previous <> coalesce(hash_before, :head::bytea) AS is_broken FROM link
WHERE number <> coalesce(number_before + 1, greatest(:first, 1)) OR previous <> coalesce(hash_before, :head)
ORDER BY number LIMIT :links_max

-- name: pools
-- Pools whose counters differ from the sum of their live lines or exceed the capacity, or whose capacity is not the number
-- of their seats.
SELECT pool.code, pool.capacity, pool.held, pool.sold, coalesce(lines.held, 0)::bigint AS held_lines,
       coalesce(lines.sold, 0)::bigint AS sold_lines,
       CASE WHEN pool.seated THEN coalesce(seats.count, 0) END AS seats
FROM pool LEFT JOIN (
    SELECT line.pool,
           sum(line.quantity) FILTER (WHERE booking.status IN ({{holding}})) AS held,
           sum(line.quantity) FILTER (WHERE booking.status NOT IN ({{holding}})) AS sold
    FROM line JOIN booking ON booking.event_id = line.event_id AND booking.id = line.booking_id
    WHERE line.event_id = $1 AND line.live GROUP BY line.pool
) AS lines ON lines.pool = pool.number
LEFT JOIN (
    SELECT seat.pool, count(*) FROM seat WHERE seat.event_id = $1 AND NOT seat.blocked GROUP BY seat.pool
) AS seats ON seats.pool = pool.number
WHERE pool.event_id = $1
  AND (pool.held <> coalesce(lines.held, 0) OR pool.sold <> coalesce(lines.sold, 0)
       OR pool.held + pool.sold > pool.capacity OR pool.seated AND pool.capacity <> coalesce(seats.count, 0))

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
           {{is_status_entry}} AS is_status
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
UNION ALL
SELECT 'booking_generation', booking.id, coalesce(transferred.times, 0)::text, booking.generation::text, booking.version
FROM booking LEFT JOIN (
    SELECT booking_id, count(*) AS times FROM entry WHERE kind = 'transferred' GROUP BY booking_id
) AS transferred ON transferred.booking_id = booking.id
WHERE booking.event_id = $1 AND booking.generation <> coalesce(transferred.times, 0)

-- name: event_status
-- The status of the event, and the last entry about it.
SELECT event.status, latest.kind, latest.number FROM event CROSS JOIN LATERAL (
    SELECT kind, number FROM journal
    WHERE event_id = event.id AND kind IN ('event_created', 'event_published', 'event_completed', 'event_cancelled')
    ORDER BY number DESC LIMIT 1
) AS latest
WHERE event.id = $1

-- name: recorded_pools
-- Pools that are not as the last journal entry about them leaves them. A field that the entry does not have is not compared.
-- An entry may be about every pool of the event, so it is expanded once and not once per pool.
SELECT latest.code, latest.number, recorded.capacity AS recorded_capacity, recorded.held AS recorded_held,
       recorded.sold AS recorded_sold, pool.capacity, pool.held, pool.sold
FROM (
    SELECT DISTINCT ON (changed.code COLLATE "C") changed.code, changed.state, entry.number
    FROM journal AS entry CROSS JOIN LATERAL json_each({{entry_pools}}) AS changed (code, state)
    WHERE entry.event_id = $1
    ORDER BY changed.code COLLATE "C", entry.number DESC
) AS latest
CROSS JOIN LATERAL (
    SELECT latest.state ->> 'capacity' AS capacity, latest.state ->> 'held' AS held, latest.state ->> 'sold' AS sold
) AS recorded
LEFT JOIN pool ON pool.event_id = $1 AND pool.code = latest.code
WHERE pool.code IS NULL OR recorded.capacity <> pool.capacity::text OR recorded.held <> pool.held::text
   OR recorded.sold <> pool.sold::text

-- name: recorded_seats
-- Bookings with other seats than in the last journal entry about their status. Each such entry names all of them, and their
-- pools. An event without seats costs nothing: its pools would contradict their seats.
WITH latest AS MATERIALIZED (
    SELECT booking_id, max(number) AS number FROM journal
    WHERE event_id = $1 AND booking_id IS NOT NULL AND {{is_status_entry}}
    GROUP BY booking_id
)
SELECT latest.booking_id AS id, latest.number, recorded.labels AS recorded, own.labels
FROM latest
JOIN booking ON booking.event_id = $1 AND booking.id = latest.booking_id
JOIN journal AS entry ON entry.event_id = $1 AND entry.number = latest.number
CROSS JOIN LATERAL (
    SELECT count(*) AS lines,
           coalesce(array_agg(place.label ORDER BY place.label) FILTER (WHERE place.label IS NOT NULL), '{}') AS labels
    FROM (
        -- A look-up for each line. A join would depend on statistics.
        SELECT coalesce((SELECT seat.label FROM seat WHERE seat.event_id = $1 AND seat.number = line.seat), line.seat::text)
               COLLATE "C" AS label
        FROM line WHERE line.event_id = $1 AND line.booking_id = latest.booking_id
    ) AS place
) AS own
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(label COLLATE "C" ORDER BY label COLLATE "C"), '{}') AS labels
    FROM json_object_keys({{entry_seats}}) AS label
) AS recorded
WHERE EXISTS (SELECT FROM seat WHERE seat.event_id = $1)
  AND strpos(entry.data::text, '"pools"') > 0 AND own.lines > 0 AND recorded.labels <> own.labels

-- name: recorded_blocks
-- Seats that are blocked or on sale although the last change of the event says otherwise.
SELECT latest.label, latest.number, seat.blocked FROM (
    SELECT DISTINCT ON (changed.label COLLATE "C") changed.label, changed.state, entry.number
    FROM journal AS entry CROSS JOIN LATERAL json_each_text({{entry_seats}}) AS changed (label, state)
    WHERE entry.event_id = $1 AND entry.booking_id IS NULL AND entry.kind = 'event_changed'
    ORDER BY changed.label COLLATE "C", entry.number DESC
) AS latest JOIN seat ON seat.event_id = $1 AND seat.label = latest.label
WHERE seat.blocked <> (latest.state = 'blocked')

-- name: payments
-- Payments that contradict their booking or themselves, or that nobody works on: a worker asks about a started payment at
-- least once in :poll_seconds_max, and tries a refund at least once in :refund_seconds_max.
SELECT payment.id, payment.status, payment.outcome, payment.amount, payment.currency,
       payment.captured_at IS NOT NULL AS is_captured, payment.capture_assumed,
       booking.status AS booking_status, booking.total, booking.currency AS booking_currency,
       booking.status IN ({{sold}}) AS is_sold,
       plan.is_forgotten,
       coalesce(other.is_kept, false) AS is_kept_twice
FROM payment LEFT JOIN booking ON booking.event_id = payment.event_id AND booking.id = payment.booking_id
CROSS JOIN LATERAL (
    SELECT coalesce(CASE payment.status
        WHEN 'refund_due' THEN payment.due_at IS NULL
            OR payment.due_at > :now::timestamptz + make_interval(secs => :refund_seconds_max)
        WHEN 'started' THEN payment.due_at IS NULL AND payment.provider <> 'receipt'
            OR payment.due_at > :now::timestamptz + make_interval(secs => :poll_seconds_max)
    END, false) AS is_forgotten
) AS plan
LEFT JOIN LATERAL (
    SELECT true AS is_kept FROM payment AS other
    WHERE other.booking_id = payment.booking_id AND other.event_id IS NOT DISTINCT FROM payment.event_id
      AND other.id <> payment.id AND other.status = 'succeeded' AND payment.status = 'succeeded'
    LIMIT 1
) AS other ON true
WHERE payment.event_id = :event AND (
    booking.id IS NULL
    OR payment.amount <> booking.total OR payment.currency <> booking.currency
    OR payment.captured_at IS NOT NULL AND payment.status NOT IN ('succeeded', 'refund_due', 'refunded', 'review')
    OR payment.captured_at IS NULL AND payment.status IN ('succeeded', 'refund_due')
    OR payment.capture_assumed
       AND (payment.captured_at IS NULL OR payment.status NOT IN ('refund_due', 'refunded', 'review'))
    OR payment.status = 'succeeded' AND booking.status NOT IN ({{sold}})
    OR plan.is_forgotten
    OR other.is_kept
    OR payment.outcome IS DISTINCT FROM CASE payment.status
        WHEN 'succeeded' THEN CASE payment.outcome WHEN 'revived' THEN 'revived' ELSE 'fulfilled' END
        WHEN 'refunded' THEN 'refunded' WHEN 'review' THEN 'review' END
)

-- name: recorded_payments
-- Payments whose status differs from the last journal entry about them, payments that only one of both has, and refunds that
-- the journal asked for longer than :refund_seconds ago. The pattern finds the id in any data, also in data that is no valid
-- document: nobody can keep the others from being compared.
SELECT coalesce(payment.id, recorded.id) AS id, recorded.status AS recorded, payment.status, recorded.at
FROM (
    SELECT DISTINCT ON (entry.payment) entry.payment::uuid AS id, entry.status, entry.at FROM (
        SELECT substring(data::text FROM '"payment" *: *"([0-9a-f]{32})"') AS payment,
               substr(kind, length('payment.') + 1) AS status, at, number
        FROM journal WHERE event_id = :event AND kind LIKE 'payment.%'
    ) AS entry WHERE entry.payment IS NOT NULL
    ORDER BY entry.payment, entry.number DESC
) AS recorded FULL JOIN (
    SELECT id, status FROM payment WHERE event_id = :event
) AS payment ON payment.id = recorded.id
WHERE payment.status IS DISTINCT FROM recorded.status
   OR payment.status = 'refund_due' AND recorded.at < :now::timestamptz - make_interval(secs => :refund_seconds)

-- name: unhandled_captures
-- Payments whose capture a provider has reported longer than :notice_seconds ago, in a notice that is still waiting.
SELECT payment.id, payment.status, notice.received_at
FROM payment_notice AS notice JOIN payment ON payment.event_id = :event AND payment.provider = notice.provider
    AND (payment.provider_ref = notice.provider_ref
         OR notice.payment = 'pay_' || encode(uuid_send(payment.event_id) || uuid_send(payment.id), 'hex'))
WHERE notice.due_at IS NOT NULL AND notice.result = 'captured'
  AND notice.received_at < :now::timestamptz - make_interval(secs => :notice_seconds)

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
