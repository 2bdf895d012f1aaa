-- rolling: no
-- Telegram bots. The bot keeps nothing in memory: a process that dies loses no update, no answer and no dialogue.
--
-- Updates come in through `telegram_update`, which has a row for each, so that the bot handles an update once however
-- often Telegram delivers it. Messages go out through `telegram_message`. The transaction that ends an update also
-- writes its messages, so neither exists without the other.

-- One bot for each org.
CREATE TABLE telegram_bot (
    org_id uuid PRIMARY KEY REFERENCES org,
    -- The bot's own id at Telegram, which is also the start of its token.
    bot_id bigint NOT NULL UNIQUE,
    token text NOT NULL,
    username text NOT NULL,
    -- Telegram sends it with every webhook request.
    webhook_secret text NOT NULL,
    -- Members of this chat are the org's staff.
    admin_chat_id bigint,
    -- The channel in which the bot posts shifts.
    channel_id bigint,
    -- What staff read, and what new shifts start with.
    language text NOT NULL,
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    timezone text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT holdfast_now()
);

-- One-time codes that link a chat to an org. Subscribers of a channel may see its code, so it opens nothing else.
CREATE TABLE telegram_code (
    hash bytea PRIMARY KEY,
    org_id uuid NOT NULL REFERENCES org,
    purpose text NOT NULL CHECK (purpose IN ('staff', 'channel')),
    expires_at timestamptz NOT NULL
);

-- Workers and staff of an org who use its bot. Workers have a phone number once they have registered.
CREATE TABLE telegram_person (
    org_id uuid NOT NULL REFERENCES org,
    person_id bigint NOT NULL,
    name text NOT NULL,
    phone text,
    language text NOT NULL,
    registered_at timestamptz,
    -- Staff have blocked this worker.
    blocked_at timestamptz,
    -- The person has blocked the bot.
    unreachable_at timestamptz,
    PRIMARY KEY (org_id, person_id)
);

-- Where each person is in a dialogue. A group has a dialogue for each of its members.
CREATE TABLE telegram_dialogue (
    org_id uuid NOT NULL REFERENCES org,
    chat_id bigint NOT NULL,
    person_id bigint NOT NULL,
    step text NOT NULL,
    data json NOT NULL,
    PRIMARY KEY (org_id, chat_id, person_id)
);

CREATE TABLE telegram_update (
    org_id uuid NOT NULL REFERENCES org,
    number bigint NOT NULL,
    -- Updates of one chat are handled one after another.
    chat_id bigint NOT NULL,
    body json NOT NULL,
    received_at timestamptz NOT NULL DEFAULT holdfast_now(),
    due_at timestamptz DEFAULT holdfast_now(),
    attempts integer NOT NULL DEFAULT 0,
    -- The booking that a receipt is for. The bot decides that once, however often it handles the update.
    event_id uuid,
    booking_id uuid,
    -- Null in `due_at` means that the bot is done with the update.
    PRIMARY KEY (org_id, number)
);
CREATE INDEX telegram_update_due ON telegram_update (org_id, chat_id, number) WHERE due_at IS NOT NULL;
CREATE INDEX telegram_update_done ON telegram_update (received_at) WHERE due_at IS NULL;

-- A message that the bot sends, and edits while what it shows changes. `key` keeps the bot from writing it twice.
CREATE TABLE telegram_message (
    org_id uuid NOT NULL REFERENCES org,
    key text NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    chat_id bigint NOT NULL,
    -- How to make the message: from `body` alone, or from the event or booking at the moment of sending.
    kind text NOT NULL,
    body json NOT NULL,
    event_id uuid,
    booking_id uuid,
    -- The message at Telegram, once there is one, and a hash of what it shows.
    message_id bigint,
    shown bytea,
    -- Send it again at the end of this chat, and delete the older copy.
    moved_to bigint,
    -- When to send or edit it next. Null: not until something happens.
    due_at timestamptz,
    leased_until timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    -- Counts what happened to what the message shows, so that the sender notices a change while it sends.
    changes bigint NOT NULL DEFAULT 0,
    error text,
    created_at timestamptz NOT NULL DEFAULT holdfast_now(),
    sent_at timestamptz,
    PRIMARY KEY (org_id, key)
);
CREATE INDEX telegram_message_due ON telegram_message (org_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX telegram_message_waiting ON telegram_message (org_id, chat_id) WHERE due_at IS NOT NULL;
CREATE INDEX telegram_message_of_event ON telegram_message (event_id, kind) WHERE event_id IS NOT NULL;
CREATE INDEX telegram_message_of_chat ON telegram_message (org_id, chat_id, message_id) WHERE booking_id IS NOT NULL;
CREATE INDEX telegram_message_done ON telegram_message (created_at) WHERE due_at IS NULL AND kind <> 'post';

-- How far the bot has followed the journal of each event of its org.
CREATE TABLE telegram_event (
    event_id uuid PRIMARY KEY REFERENCES event,
    org_id uuid NOT NULL REFERENCES org,
    version bigint NOT NULL,
    -- Whether the event can still change.
    is_live boolean NOT NULL DEFAULT true,
    -- The start that workers were reminded of.
    reminded_start timestamptz
);
CREATE INDEX telegram_event_live ON telegram_event (org_id) WHERE is_live;

-- The files that workers sent as receipts. Telegram gives the same file another `file_id` each time, but always the same
-- `file_unique_id`.
CREATE TABLE telegram_receipt (
    event_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    file_unique_id text NOT NULL,
    org_id uuid NOT NULL,
    file_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT holdfast_now(),
    PRIMARY KEY (event_id, booking_id, file_unique_id)
);
CREATE INDEX telegram_receipt_of_file ON telegram_receipt (org_id, file_unique_id);

-- Workers who did not turn up.
CREATE TABLE telegram_no_show (
    event_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    org_id uuid NOT NULL,
    person_id bigint NOT NULL,
    actor text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT holdfast_now(),
    PRIMARY KEY (event_id, booking_id)
);
CREATE INDEX telegram_no_show_of_person ON telegram_no_show (org_id, person_id);

-- The shifts of an org: those that are open, by start, and the latest.
CREATE INDEX event_open_shift ON event (org_id, id) WHERE shift IS NOT NULL AND status = 'active';
CREATE INDEX event_shift_by_start ON event (org_id, starts_at, id) WHERE shift IS NOT NULL;
CREATE INDEX event_shift ON event (org_id, id) WHERE shift IS NOT NULL;
