-- Stampedes of simulated buyers: their reports, and the recount at the end.

-- name: event
SELECT event.org_id, event.status,
       (SELECT coalesce(sum(capacity), 0)::bigint FROM pool WHERE pool.event_id = event.id) AS capacity
FROM event WHERE event.id = $1

-- name: lock_event
-- Two stampedes that start at once take turns, so that the second sees the first.
SELECT pg_advisory_xact_lock(hashtextextended('stampede' || $1::uuid::text, 0))

-- name: insert_record
-- Inserts nothing while another stampede runs. One that has saved no report for $4 seconds no longer runs.
INSERT INTO stampede (event_id, id, report)
SELECT $1, $2, ($3::jsonb || jsonb_build_object('updated_at', holdfast_now()))::json
WHERE NOT EXISTS (
    SELECT FROM stampede WHERE event_id = $1 AND ended_at IS NULL
      AND (report ->> 'updated_at')::timestamptz > holdfast_now() - make_interval(secs => $4)
)
RETURNING id

-- name: save_report
-- The report carries the database's time, so that every process can compute its age.
UPDATE stampede SET report = ($3::jsonb || jsonb_build_object('updated_at', holdfast_now()))::json,
                    ended_at = CASE WHEN $4 THEN holdfast_now() END
WHERE event_id = $1 AND id = $2

-- name: latest_report
SELECT report, ended_at IS NULL
       AND (report ->> 'updated_at')::timestamptz <= holdfast_now() - make_interval(secs => $2) AS is_silent
FROM stampede WHERE event_id = $1 ORDER BY started_at DESC, id DESC LIMIT 1

-- name: units_left
SELECT coalesce(sum(capacity - held - sold), 0)::bigint FROM pool WHERE event_id = $1

-- name: now
SELECT holdfast_now()

-- name: pool_counts
-- Counts units from live lines and capacity from seats, and ignores the counters that the engine keeps.
SELECT pool.code, coalesce(taken.units, 0)::bigint AS taken,
       CASE WHEN pool.seated THEN seats.count ELSE pool.capacity END AS capacity
FROM pool LEFT JOIN (
    SELECT pool, sum(quantity) AS units FROM line WHERE event_id = $1 AND live GROUP BY pool
) AS taken ON taken.pool = pool.number
CROSS JOIN LATERAL (
    SELECT count(*) FROM seat WHERE seat.event_id = $1 AND seat.pool = pool.number AND NOT seat.blocked
) AS seats
WHERE pool.event_id = $1 ORDER BY pool.number

-- name: claims
-- The live lines of buyers whose names start with $2.
SELECT booking.id AS booking, booking.user_id AS user, pool.code AS pool, seat.label AS seat, line.quantity
FROM booking JOIN line ON line.event_id = booking.event_id AND line.booking_id = booking.id
     JOIN pool ON pool.event_id = line.event_id AND pool.number = line.pool
     LEFT JOIN seat ON seat.event_id = line.event_id AND seat.number = line.seat
WHERE booking.event_id = $1 AND starts_with(booking.user_id, $2) AND line.live
