-- rolling: no
-- SMS, reminders before an event starts, and push messages to browsers.

-- Reminders and push messages report no journal entry, so their rows in `delivery` take numbers from here. Every number is
-- higher than any entry's: such a row waits for earlier messages about its booking, and delays none.
CREATE SEQUENCE delivery_number AS bigint START 1099511627776 MINVALUE 1099511627776;

-- The starts of events and slots that buyers are being reminded of, or have been. If an event moves, its new start has a
-- row of its own.
CREATE TABLE reminder_run (
    event_id uuid NOT NULL,
    starts_at timestamptz NOT NULL,
    -- The last booking that a worker looked at.
    last_booking_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    done_at timestamptz,
    PRIMARY KEY (event_id, starts_at)
);
CREATE INDEX pool_starting ON pool (starts_at) WHERE starts_at IS NOT NULL;

-- How many SMS each org has sent on a day (UTC). Those about free bookings have a limit of their own.
CREATE TABLE sms_count (
    org_id uuid NOT NULL REFERENCES org,
    day date NOT NULL,
    count integer NOT NULL,
    free_count integer NOT NULL,
    PRIMARY KEY (org_id, day)
);
CREATE INDEX sms_count_by_day ON sms_count (day);
ALTER TABLE delivery
    -- SMS that the buyers behind one address cause with free bookings have the same hash, except for reminders.
    ADD COLUMN client_hash bytea,
    -- Whether `sms_count` has counted the message.
    ADD COLUMN is_counted boolean NOT NULL DEFAULT false;
CREATE INDEX delivery_of_client ON delivery (client_hash, created_at) WHERE client_hash IS NOT NULL;
-- Finished deliveries are personal data: who got which message, and when. Phone numbers are short and email addresses can be
-- guessed, so anybody with the table can undo their hashes. The worker deletes the hashes after a day, and the rows after
-- 30 days. Each of its statements mentions the condition of its own index.
CREATE INDEX delivery_with_hash ON delivery (done_at) WHERE recipient_hash IS NOT NULL AND done_at IS NOT NULL;
CREATE INDEX delivery_done ON delivery (done_at) WHERE status <> 'waiting';

-- Browsers that want push messages about a booking. The row is deleted when there is nothing left to report.
CREATE TABLE push_subscription (
    event_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    -- A booking has few subscriptions. A new one replaces the oldest.
    slot smallint NOT NULL CHECK (slot BETWEEN 0 AND 2),
    org_id uuid NOT NULL,
    -- Where the browser's push service takes messages, and the keys that encrypt them for this browser.
    endpoint text NOT NULL,
    p256dh bytea NOT NULL,
    auth bytea NOT NULL,
    -- The value of the shared secret `web-push` that the browser accepts messages from.
    key_number integer NOT NULL,
    language text NOT NULL,
    created_at timestamptz NOT NULL,
    -- When a worker looks at the booking next.
    due_at timestamptz NOT NULL,
    PRIMARY KEY (event_id, booking_id, slot)
);
CREATE INDEX push_subscription_due ON push_subscription (due_at);
