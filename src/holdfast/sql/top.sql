-- Statements of `holdfast top`. They run every few seconds next to a sale, so each one is made of index lookups, and reads a
-- bounded number of rows however large the tables are. They run on a connection that cannot plan anything else.

-- name: events_to_watch
-- The events that may be on sale: up to :upcoming_max that start after :since, up to :lasting_max that started before and go
-- on, and up to :holding_max others that have live holds. The last ones come from `booking_due`; each step jumps to the next
-- event.
WITH RECURSIVE holding AS (
    (SELECT 1 AS step, event_id FROM booking
     WHERE status IN ({{timed}}) ORDER BY event_id, expires_at LIMIT 1)
    UNION ALL
    SELECT holding.step + 1, following.event_id FROM holding CROSS JOIN LATERAL (
        SELECT event_id FROM booking
        WHERE status IN ({{timed}}) AND event_id > holding.event_id ORDER BY event_id, expires_at LIMIT 1
    ) AS following WHERE holding.step < :holding_max
)
(SELECT id FROM event WHERE tax_bps >= 0 AND starts_at >= :since ORDER BY starts_at, id LIMIT :upcoming_max)
UNION
(SELECT id FROM event WHERE currency > '' AND listed_until > starts_at AND listed_until >= :since
 ORDER BY listed_until LIMIT :lasting_max)
UNION
SELECT event_id FROM holding

-- name: versions
-- The versions of the events in $1 that are on sale.
SELECT event.id, event.version FROM unnest($1::uuid[]) AS watched (id) CROSS JOIN LATERAL (
    SELECT id, version, status FROM event WHERE event.id = watched.id LIMIT 1
) AS event
WHERE event.status = 'active'

-- name: activity
-- What happened in the events :ids after the journal entries :after, by kind. It reads only the last :entries_max entries of
-- each event, and `entries` says how many that were.
SELECT watched.id, latest.kind, count(*) AS entries
FROM unnest(:ids::uuid[], :after::bigint[], :until::bigint[]) AS watched (id, after, until) CROSS JOIN LATERAL (
    SELECT journal.kind FROM journal
    WHERE journal.event_id = watched.id AND journal.number > watched.after AND journal.number <= watched.until
    ORDER BY journal.number DESC LIMIT :entries_max
) AS latest
GROUP BY watched.id, latest.kind

-- name: stock
-- The stock of the events in :ids, and how many of their holds expire within :soon_seconds or are overdue, up to :holds_max.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT event.id, event.title, stock.capacity, stock.held, stock.sold, soon.holds AS expiring_soon,
       overdue.holds AS overdue
FROM clock CROSS JOIN unnest(:ids::uuid[]) AS watched (id) CROSS JOIN LATERAL (
    SELECT id, title FROM event WHERE event.id = watched.id LIMIT 1
) AS event CROSS JOIN LATERAL (
    SELECT coalesce(sum(capacity), 0)::bigint AS capacity, coalesce(sum(held), 0)::bigint AS held,
           coalesce(sum(sold), 0)::bigint AS sold
    FROM pool WHERE pool.event_id = watched.id
) AS stock CROSS JOIN LATERAL (
    SELECT count(*) AS holds FROM (
        SELECT FROM booking WHERE booking.event_id = watched.id AND booking.status IN ({{timed}})
          AND booking.expires_at > clock.at AND booking.expires_at <= clock.at + make_interval(secs => :soon_seconds)
        ORDER BY booking.expires_at LIMIT :holds_max
    ) AS each
) AS soon CROSS JOIN LATERAL (
    SELECT count(*) AS holds FROM (
        SELECT FROM booking WHERE booking.event_id = watched.id AND booking.status IN ({{timed}})
          AND booking.expires_at <= clock.at
        ORDER BY booking.expires_at LIMIT :holds_max
    ) AS each
) AS overdue

-- name: backlog
-- Notifications and refunds that wait, up to $1 of each, and the connections of Holdfast's processes.
SELECT holdfast_now() AS at,
    (SELECT count(*) FROM (
        SELECT FROM delivery WHERE status = 'waiting' ORDER BY target, due_at LIMIT $1
    ) AS each) AS deliveries_waiting,
    (SELECT count(*) FROM (
        SELECT FROM payment WHERE status = 'refund_due' AND due_at IS NOT NULL ORDER BY org_id, due_at LIMIT $1
    ) AS each) AS refunds_due,
    (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast-lane') AS lanes,
    (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast')
        AS other_connections
