-- Telegram bots: their settings, what comes in, what goes out, and what they follow.

-- fragment: telegram_bot
SELECT bot.org_id, bot.bot_id, bot.token, bot.username, bot.webhook_secret, bot.admin_chat_id, bot.channel_id,
    bot.language, bot.currency, bot.timezone, org.name AS org_name
FROM telegram_bot AS bot JOIN org ON org.id = bot.org_id

-- name: bots
{{telegram_bot}}
ORDER BY bot.created_at, bot.org_id

-- name: bot
{{telegram_bot}}
WHERE bot.org_id = $1

-- name: connect_bot
-- A new token of the same bot keeps its chats. Another bot starts without any.
INSERT INTO telegram_bot AS bot (org_id, bot_id, token, username, webhook_secret, language, currency, timezone)
VALUES (:org, :bot, :token, :username, :webhook_secret, coalesce(:language, 'en'), coalesce(:currency, 'EUR'),
    coalesce(:timezone, 'UTC'))
ON CONFLICT (org_id) DO UPDATE SET
    bot_id = excluded.bot_id, token = excluded.token, username = excluded.username,
    admin_chat_id = CASE WHEN bot.bot_id = excluded.bot_id THEN bot.admin_chat_id END,
    channel_id = CASE WHEN bot.bot_id = excluded.bot_id THEN bot.channel_id END,
    language = coalesce(:language, bot.language), currency = coalesce(:currency, bot.currency),
    timezone = coalesce(:timezone, bot.timezone)

-- name: org_of_bot
SELECT org_id FROM telegram_bot WHERE bot_id = $1

-- name: disconnect_bot
DELETE FROM telegram_bot WHERE org_id = $1

-- name: delete_updates
DELETE FROM telegram_update WHERE org_id = $1

-- name: delete_messages
DELETE FROM telegram_message WHERE org_id = $1

-- name: delete_dialogues
DELETE FROM telegram_dialogue WHERE org_id = $1

-- name: delete_cursors
DELETE FROM telegram_event WHERE org_id = $1

-- name: delete_codes
DELETE FROM telegram_code WHERE org_id = $1

-- name: insert_code
INSERT INTO telegram_code (hash, org_id, purpose, expires_at)
VALUES (:hash, :org, :purpose, holdfast_now() + make_interval(secs => :seconds))

-- name: has_code
SELECT true FROM telegram_code WHERE hash = $1 AND org_id = $2 AND purpose = $3 AND expires_at > holdfast_now()

-- name: link_admin_chat
WITH used AS (DELETE FROM telegram_code WHERE hash = :hash AND org_id = :org RETURNING true)
UPDATE telegram_bot SET admin_chat_id = :chat WHERE org_id = :org AND EXISTS (SELECT FROM used)

-- name: link_channel
WITH used AS (DELETE FROM telegram_code WHERE hash = :hash AND org_id = :org RETURNING true)
UPDATE telegram_bot SET channel_id = :chat WHERE org_id = :org AND EXISTS (SELECT FROM used)

-- name: move_admin_chat
-- Telegram gives a group another id when it becomes a supergroup.
WITH moved AS (UPDATE telegram_bot SET admin_chat_id = :chat WHERE org_id = :org AND admin_chat_id = :was RETURNING true)
UPDATE telegram_message SET chat_id = :chat
WHERE org_id = :org AND chat_id = :was AND message_id IS NULL AND EXISTS (SELECT FROM moved)

-- name: choose_booking
UPDATE telegram_update SET event_id = :event, booking_id = :booking WHERE org_id = :org AND number = :number

-- name: delete_expired_codes
DELETE FROM telegram_code WHERE expires_at <= holdfast_now()

-- name: set_language
UPDATE telegram_bot SET language = $2 WHERE org_id = $1

-- fragment: telegram_person
person_id, name, phone, language, registered_at IS NOT NULL AS is_registered, blocked_at IS NOT NULL AS is_blocked,
    unreachable_at IS NOT NULL AS is_unreachable

-- name: person
SELECT {{telegram_person}} FROM telegram_person WHERE org_id = $1 AND person_id = $2

-- name: people
SELECT {{telegram_person}} FROM telegram_person WHERE org_id = $1 AND person_id = ANY($2::bigint[])

-- name: save_person
INSERT INTO telegram_person (org_id, person_id, name, phone, language, registered_at)
VALUES (:org, :person, :name, :phone, :language, CASE WHEN :is_registered THEN holdfast_now() END)
ON CONFLICT (org_id, person_id) DO UPDATE SET
    name = excluded.name, phone = excluded.phone, language = excluded.language, unreachable_at = NULL,
    registered_at = coalesce(telegram_person.registered_at, excluded.registered_at)

-- name: set_blocked
-- Somebody may have a booking without ever having talked to the bot.
INSERT INTO telegram_person (org_id, person_id, name, language, blocked_at)
VALUES (:org, :person, '', :language, CASE WHEN :is_blocked THEN holdfast_now() END)
ON CONFLICT (org_id, person_id) DO UPDATE SET blocked_at = excluded.blocked_at

-- name: set_unreachable
UPDATE telegram_person SET unreachable_at = holdfast_now() WHERE org_id = $1 AND person_id = $2

-- name: dialogue
SELECT step, data FROM telegram_dialogue WHERE org_id = $1 AND chat_id = $2 AND person_id = $3

-- name: save_dialogue
INSERT INTO telegram_dialogue (org_id, chat_id, person_id, step, data)
VALUES (:org, :chat, :person, :step, :data)
ON CONFLICT (org_id, chat_id, person_id) DO UPDATE SET step = excluded.step, data = excluded.data

-- name: end_dialogue
DELETE FROM telegram_dialogue WHERE org_id = $1 AND chat_id = $2 AND person_id = $3

-- name: insert_update
INSERT INTO telegram_update (org_id, number, chat_id, body)
SELECT :org, :number, :chat, :body
WHERE (SELECT count(*) FROM telegram_update WHERE org_id = :org AND chat_id = :chat AND due_at IS NOT NULL) < :waiting_max
ON CONFLICT DO NOTHING

-- name: claim_updates
-- The oldest update of each chat, unless somebody is at work on it.
UPDATE telegram_update AS claimed
SET due_at = holdfast_now() + make_interval(secs => :lease_seconds), attempts = claimed.attempts + 1
FROM (
    SELECT org_id, number FROM telegram_update AS row
    WHERE row.org_id = :org AND row.due_at <= holdfast_now() AND NOT EXISTS (
        SELECT FROM telegram_update AS earlier
        WHERE earlier.org_id = row.org_id AND earlier.chat_id = row.chat_id AND earlier.due_at IS NOT NULL
          AND earlier.number < row.number
    )
    ORDER BY row.number
    LIMIT :claim_max
    FOR UPDATE SKIP LOCKED
) AS due
WHERE claimed.org_id = due.org_id AND claimed.number = due.number
RETURNING claimed.number, claimed.chat_id, claimed.body::text AS body, claimed.attempts, claimed.event_id,
    claimed.booking_id

-- name: renew_updates
UPDATE telegram_update SET due_at = holdfast_now() + make_interval(secs => :lease_seconds)
WHERE org_id = :org AND number = ANY(:numbers::bigint[]) AND due_at IS NOT NULL

-- name: release_updates
UPDATE telegram_update SET due_at = holdfast_now() WHERE org_id = $1 AND due_at > holdfast_now()

-- name: finish_update
UPDATE telegram_update SET due_at = NULL, body = '{}' WHERE org_id = $1 AND number = $2 AND due_at IS NOT NULL
RETURNING true

-- name: postpone_update
UPDATE telegram_update SET due_at = holdfast_now() + make_interval(secs => :seconds)
WHERE org_id = :org AND number = :number AND due_at IS NOT NULL

-- name: delete_old_updates
-- Telegram repeats an update for a day at most.
DELETE FROM telegram_update WHERE (org_id, number) IN (
    SELECT org_id, number FROM telegram_update
    WHERE due_at IS NULL AND received_at < holdfast_now() - make_interval(secs => :seconds)
    ORDER BY received_at LIMIT :rows_max
)

-- name: delete_old_messages
-- Only those that never change again.
DELETE FROM telegram_message WHERE (org_id, key) IN (
    SELECT org_id, key FROM telegram_message
    WHERE due_at IS NULL AND kind <> 'post' AND created_at < holdfast_now() - make_interval(secs => :seconds)
    ORDER BY created_at LIMIT :rows_max
)

-- name: insert_messages
-- A chat in which many answers wait gets no more of them. News about a booking always arrive.
INSERT INTO telegram_message (org_id, key, chat_id, kind, body, event_id, booking_id, due_at)
SELECT :org, row.key, row.chat_id, row.kind, row.body, row.event_id, row.booking_id, holdfast_now()
FROM json_to_recordset(:rows) AS row (key text, chat_id bigint, kind text, body json, event_id uuid, booking_id uuid)
WHERE NOT starts_with(row.key, :answer_prefix) OR (
    SELECT count(*) FROM telegram_message AS waiting
    WHERE waiting.org_id = :org AND waiting.chat_id = row.chat_id AND waiting.due_at IS NOT NULL
      AND waiting.message_id IS NULL AND starts_with(waiting.key, :answer_prefix)
) < :waiting_max
ON CONFLICT (org_id, key) DO NOTHING

-- name: refresh_event
-- Posts keep a distance between edits, so that many changes make few edits.
UPDATE telegram_message SET changes = changes + 1, due_at = least(due_at, CASE kind
    WHEN 'post' THEN greatest(holdfast_now(), sent_at + make_interval(secs => :distance_seconds))
    ELSE holdfast_now()
END)
WHERE event_id = :event AND org_id = :org AND error IS NULL
  AND (kind = 'post' OR (kind IN ('card', 'review') AND booking_id = ANY(:bookings::uuid[])))

-- name: send_again
-- Send a message anew, below everything that was said since. The new one replaces the old one.
UPDATE telegram_message SET moved_to = :chat, changes = changes + 1, due_at = holdfast_now(), error = NULL
WHERE org_id = :org AND key = :key

-- name: claim_messages
-- New messages before those that only change.
UPDATE telegram_message AS claimed
SET leased_until = holdfast_now() + make_interval(secs => :lease_seconds), attempts = claimed.attempts + 1
FROM (
    SELECT key FROM telegram_message
    WHERE org_id = :org AND due_at <= holdfast_now() AND (leased_until IS NULL OR leased_until <= holdfast_now())
      AND coalesce(moved_to, chat_id) <> ALL(:waiting_chats::bigint[])
    ORDER BY message_id IS NOT NULL, due_at, number
    LIMIT :claim_max
    FOR UPDATE SKIP LOCKED
) AS due
WHERE claimed.org_id = :org AND claimed.key = due.key
RETURNING claimed.key, claimed.number, claimed.chat_id, claimed.kind, claimed.body::text AS body, claimed.event_id,
    claimed.booking_id, claimed.message_id, claimed.moved_to, claimed.shown, claimed.attempts, claimed.changes

-- name: release_messages
UPDATE telegram_message SET leased_until = NULL WHERE org_id = $1 AND leased_until IS NOT NULL

-- name: release_claimed
UPDATE telegram_message SET leased_until = NULL, attempts = attempts - 1 WHERE org_id = $1 AND key = ANY($2::text[])

-- name: record_message
-- If something has happened while the message was on its way, the message soon changes again.
UPDATE telegram_message SET
    chat_id = :chat, message_id = :message, shown = :shown, sent_at = holdfast_now(), leased_until = NULL, attempts = 0,
    error = :error, moved_to = CASE WHEN moved_to IS DISTINCT FROM :moved_to THEN moved_to END,
    due_at = CASE WHEN changes = :changes THEN :next_due_at
        ELSE holdfast_now() + make_interval(secs => :distance_seconds) END
WHERE org_id = :org AND key = :key

-- name: postpone_message
UPDATE telegram_message SET leased_until = NULL, due_at = holdfast_now() + make_interval(secs => :seconds)
WHERE org_id = :org AND key = :key

-- name: message_of_booking
SELECT event_id, booking_id FROM telegram_message
WHERE org_id = $1 AND chat_id = $2 AND message_id = $3 AND booking_id IS NOT NULL

-- name: discover_events
-- Shifts that the bot does not follow yet. It ignores what happened before it was connected.
INSERT INTO telegram_event (event_id, org_id, version)
SELECT event.id, event.org_id, CASE WHEN event.created_at >= bot.created_at THEN 0 ELSE event.version END
FROM telegram_bot AS bot JOIN event ON event.org_id = bot.org_id
WHERE bot.org_id = $1 AND event.status = 'active' AND event.shift IS NOT NULL
  AND NOT EXISTS (SELECT FROM telegram_event AS known WHERE known.event_id = event.id)
ON CONFLICT DO NOTHING

-- name: follow_event
INSERT INTO telegram_event (event_id, org_id, version) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING

-- name: events_behind
SELECT known.event_id, known.version FROM telegram_event AS known JOIN event ON event.id = known.event_id
WHERE known.org_id = $1 AND known.is_live AND event.version > known.version AND known.event_id <> ALL($3::uuid[])
LIMIT $2

-- name: advance_event
UPDATE telegram_event SET version = :version WHERE event_id = :event AND version = :was RETURNING true

-- name: end_events
-- An event that ended has a few more entries while its bookings end.
UPDATE telegram_event AS known SET is_live = false
FROM event
WHERE event.id = known.event_id AND known.org_id = $1 AND known.is_live AND event.version = known.version
  AND event.status IN ('completed', 'cancelled') AND NOT EXISTS (
      SELECT FROM booking WHERE booking.event_id = event.id AND booking.status IN ({{live}})
  )

-- name: reminders_due
-- Shifts that start soon. A shift that was moved is due again.
SELECT known.event_id, event.starts_at
FROM telegram_event AS known JOIN event ON event.id = known.event_id
WHERE known.org_id = :org AND known.is_live AND known.reminded_start IS DISTINCT FROM event.starts_at
  AND event.status = 'active' AND event.starts_at > holdfast_now()
  AND event.starts_at <= holdfast_now() + make_interval(secs => :seconds) AND known.event_id <> ALL(:waiting::uuid[])
LIMIT :events_max

-- name: record_reminder
UPDATE telegram_event SET reminded_start = $2 WHERE event_id = $1

-- fragment: attendee
booking.id, booking.user_id, booking.status, booking.name, booking.phone,
    EXISTS (SELECT FROM telegram_no_show AS absent WHERE absent.event_id = booking.event_id AND absent.booking_id = booking.id)
        AS is_no_show

-- name: attendees
SELECT {{attendee}} FROM booking
WHERE booking.event_id = $1 AND booking.org_id = $2 AND booking.status = ANY($3::text[])
ORDER BY booking.event_id, booking.id
LIMIT $4

-- name: attendee
SELECT {{attendee}} FROM booking WHERE booking.event_id = $1 AND booking.org_id = $2 AND booking.id = $3

-- name: bookings_by_id
SELECT id, user_id, total FROM booking WHERE event_id = $1 AND id = ANY($2::uuid[])

-- name: submissions
-- Receipts that wait for a decision, with the time of the submission.
SELECT booking.event_id, booking.id, booking.user_id, booking.name, max(journal.number) AS number,
    floor(extract(epoch FROM holdfast_now() - max(journal.at)) / 60)::integer AS minutes
FROM telegram_event AS known
JOIN booking ON booking.event_id = known.event_id AND booking.status = 'payment_submitted'
JOIN journal ON journal.event_id = booking.event_id AND journal.booking_id = booking.id
    AND journal.kind = 'payment_submitted'
WHERE known.org_id = $1 AND known.is_live
GROUP BY booking.event_id, booking.id, booking.user_id, booking.name
ORDER BY max(journal.at)
LIMIT $2

-- name: decision
-- The member of staff who decided about a receipt in Telegram. The journal has a pseudonym, as core.actors.journal_actor.
WITH decision AS MATERIALIZED (
    SELECT journal.actor, event.actor_key, event.org_id
    FROM journal JOIN event ON event.id = journal.event_id
    WHERE journal.event_id = :event AND journal.booking_id = :booking AND journal.kind = :kind
    ORDER BY journal.number DESC LIMIT 1
)
SELECT {{telegram_person}} FROM decision JOIN telegram_person ON telegram_person.org_id = decision.org_id
WHERE decision.actor LIKE :staff || '%' AND decision.actor = :staff || encode(
    substr(sha256(decision.actor_key || convert_to(:staff || person_id::text, 'UTF8')), 1, 16), 'hex')

-- name: save_receipt
INSERT INTO telegram_receipt (event_id, booking_id, file_unique_id, org_id, file_id)
VALUES (:event, :booking, :file_unique_id, :org, :file_id)
ON CONFLICT DO NOTHING

-- name: has_receipt
SELECT true FROM telegram_receipt WHERE event_id = $1 AND booking_id = $2 AND file_unique_id = $3

-- name: receipt_seen
SELECT count(DISTINCT other.booking_id) FROM telegram_receipt AS own
JOIN telegram_receipt AS other ON other.org_id = own.org_id AND other.file_unique_id = own.file_unique_id
WHERE own.event_id = $1 AND own.booking_id = $2 AND other.booking_id <> $2

-- name: save_no_show
INSERT INTO telegram_no_show (event_id, booking_id, org_id, person_id, actor)
VALUES (:event, :booking, :org, :person, :actor)
ON CONFLICT DO NOTHING

-- name: delete_no_show
DELETE FROM telegram_no_show WHERE event_id = $1 AND booking_id = $2

-- name: no_shows
SELECT count(*) FROM telegram_no_show WHERE org_id = $1 AND person_id = $2

-- name: shifts
-- Shifts that start in this period, soonest first.
SELECT id, order_number FROM event
WHERE org_id = :org AND starts_at > '-infinity' AND starts_at >= :earliest AND starts_at < coalesce(:before::timestamptz, 'infinity')
  AND shift IS NOT NULL AND status = ANY(:statuses::text[])
ORDER BY starts_at, id
LIMIT :shifts_max

-- name: shift_by_order_number
SELECT id, order_number FROM event WHERE org_id = $1 AND order_number = $2

-- name: latest_shifts
-- The shifts that were made last. Ids grow with time.
SELECT id, order_number FROM event WHERE org_id = $1 AND shift IS NOT NULL ORDER BY org_id DESC, id DESC LIMIT $2

-- name: try_lead
SELECT pg_try_advisory_lock($1, $2)

-- name: ping
SELECT 1

-- name: connected_bots
SELECT org.slug, bot.username FROM telegram_bot AS bot JOIN org ON org.id = bot.org_id ORDER BY org.slug

-- name: notice_loss
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false)
