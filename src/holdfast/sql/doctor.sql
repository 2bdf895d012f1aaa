-- Statements of `holdfast doctor`. All of them only read.

-- name: schema_exists
SELECT to_regclass('schema_version') IS NOT NULL

-- name: schema_version
SELECT max(number) FROM schema_version

-- name: may_create_tables
-- False also if the search path leads to no schema.
SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)

-- name: server
-- The server as Holdfast's own connections see it.
SELECT current_setting('server_version_num')::integer / 10000 AS major_version,
       current_setting('server_version') AS version,
       current_setting('server_encoding') AS encoding,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('transaction_read_only')::boolean AS is_read_only

-- name: connections
-- `open` includes the connections of this command. A limit of the database or of the role is -1 if there is none.
SELECT current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true)::integer, 0) AS server_limit,
       (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::integer AS open,
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS database_limit,
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role_limit

-- name: missing_rights
-- Of the tables in $1, those on which this role lacks the privilege in $2. Tables that do not exist are left out.
SELECT needed.name AS table_name, needed.privilege FROM unnest($1::text[], $2::text[]) AS needed (name, privilege)
WHERE to_regclass(needed.name) IS NOT NULL AND NOT has_table_privilege(to_regclass(needed.name), needed.privilege)
ORDER BY needed.name, needed.privilege

-- name: unpayable_event
-- An event that buyers see and that costs money, although it offers none of the providers in $1, which are set up, and nothing
-- else says how to pay. An event with an empty list of providers chose so itself.
SELECT event.id, event.title, event.providers FROM event JOIN org ON org.id = event.org_id
WHERE event.status = 'active' AND event.seat_count >= 0 AND event.published_at IS NOT NULL
  AND event.listed_until > holdfast_now()
  AND event.policy ->> 'review' IS DISTINCT FROM 'manual'
  AND event.providers IS DISTINCT FROM '{}' AND NOT coalesce(event.providers, $1::text[]) && $1::text[]
  AND coalesce(event.payment_instructions, org.payment_instructions) IS NULL
  AND EXISTS (SELECT FROM tariff WHERE tariff.event_id = event.id AND tariff.price > 0)
LIMIT 1

-- name: clock
SELECT holdfast_now()

-- name: overdue_holds
-- How many events have holds that nobody has expired in time, and for how long the oldest of them has been overdue. It reads
-- one index entry per event, as a worker does every second.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT count(*) AS waiting, extract(epoch FROM max(clock.at - first.expires_at))::float8 AS overdue_seconds
FROM clock CROSS JOIN event CROSS JOIN LATERAL (
    SELECT booking.expires_at FROM booking
    WHERE booking.event_id = event.id AND booking.status IN ({{timed}}) AND booking.expires_at <= clock.at
    ORDER BY booking.expires_at LIMIT 1
) AS first

-- name: overdue_deliveries
-- The same for notifications, by channel and counted in targets. Each step jumps to the next target in `delivery_due`, up to
-- 1,000 of them.
WITH RECURSIVE clock AS MATERIALIZED (SELECT holdfast_now() AS at),
seen AS (
    (SELECT 1 AS step, target, due_at, channel FROM delivery
     WHERE status = 'waiting' ORDER BY target, due_at LIMIT 1)
    UNION ALL
    SELECT seen.step + 1, following.target, following.due_at, following.channel FROM seen CROSS JOIN LATERAL (
        SELECT target, due_at, channel FROM delivery
        WHERE status = 'waiting' AND target > seen.target ORDER BY target, due_at LIMIT 1
    ) AS following WHERE seen.step < 1000
)
SELECT seen.channel, count(*) AS waiting, extract(epoch FROM max(clock.at - seen.due_at))::float8 AS overdue_seconds
FROM seen CROSS JOIN clock WHERE seen.due_at <= clock.at GROUP BY seen.channel ORDER BY seen.channel

-- name: overdue_payments
-- The same for refunds and for payments whose provider is to be asked, up to 1,000 of them.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT count(*) AS waiting, extract(epoch FROM max(clock.at - due.due_at))::float8 AS overdue_seconds
FROM clock CROSS JOIN LATERAL (
    SELECT payment.due_at FROM payment WHERE payment.due_at IS NOT NULL AND payment.due_at <= clock.at LIMIT 1000
) AS due

-- name: bots
-- Up to $1 bots.
SELECT org.slug, bot.token FROM telegram_bot AS bot JOIN org ON org.id = bot.org_id ORDER BY org.slug LIMIT $1
