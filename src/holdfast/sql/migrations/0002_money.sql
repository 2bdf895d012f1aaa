-- rolling: no
-- Payments, tickets and notifications.
--
-- A payment belongs to a booking, and exists before the buyer goes to the provider. Holdfast stores a provider's webhook
-- event in `payment_notice` before it acknowledges the event, and acts on it afterwards. A captured payment ends in
-- exactly one outcome; the schema enforces this by deriving `outcome` from `status`.
--
-- There is no table of tickets: a ticket is one unit of a line of a confirmed booking. Its code is signed, and becomes
-- void when the booking is no longer confirmed or is transferred. Only check-ins are stored.
--
-- Notifications to the outside are rows of `delivery`, written together with their journal entry.
--
-- Payments, receipts, check-ins and deliveries have no foreign keys, for the reason that the first step gives.

ALTER TABLE event ADD COLUMN ends_at timestamptz, ADD COLUMN timezone text NOT NULL DEFAULT 'UTC';

-- `generation` counts transfers. A transfer voids the tickets of earlier generations.
ALTER TABLE booking
    ADD COLUMN email text,
    ADD COLUMN language text,
    ADD COLUMN generation integer NOT NULL DEFAULT 0;

CREATE TABLE payment (
    event_id uuid NOT NULL,
    id uuid NOT NULL,
    org_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    provider text NOT NULL,
    -- The provider's id for the payment. Null until the provider has answered.
    provider_ref text,
    status text NOT NULL CHECK (status IN
        ('started', 'submitted', 'succeeded', 'failed', 'refund_due', 'refunded', 'review')),
    outcome text CHECK (outcome IN ('fulfilled', 'revived', 'refunded', 'review')),
    amount bigint NOT NULL CHECK (amount >= 0),
    currency text NOT NULL,
    request_key bytea NOT NULL CHECK (request_key > ''),
    fingerprint bytea NOT NULL,
    return_url text,
    checkout_url text,
    reason text,
    created_at timestamptz NOT NULL,
    captured_at timestamptz,
    -- When a worker next asks the provider about it, or refunds it. Null: there is nothing to do.
    due_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, id),
    CONSTRAINT payment_has_one_outcome CHECK (
        CASE status
            WHEN 'succeeded' THEN outcome IN ('fulfilled', 'revived')
            WHEN 'refunded' THEN outcome = 'refunded'
            WHEN 'review' THEN outcome = 'review'
            ELSE outcome IS NULL
        END
    )
);
CREATE INDEX payment_of_booking ON payment (booking_id, event_id);
CREATE UNIQUE INDEX payment_request ON payment (request_key, event_id);
CREATE UNIQUE INDEX payment_at_provider ON payment (provider, provider_ref) WHERE provider_ref IS NOT NULL;
CREATE INDEX payment_due ON payment (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE payment_notice (
    provider text NOT NULL,
    -- The provider's id of the webhook event, which makes repeated deliveries of it idempotent.
    id text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT holdfast_now(),
    body bytea NOT NULL,
    -- Captured, failed or refunded. Null: the event reports none of these.
    news text,
    provider_ref text,
    payment text,
    amount bigint,
    currency text,
    -- When a worker tries to handle it again. Null: it was handled, with this result.
    due_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    result text,
    PRIMARY KEY (provider, id)
);
CREATE INDEX payment_notice_due ON payment_notice (due_at) WHERE due_at IS NOT NULL;

-- Proof of payment that a buyer submitted: a file that is stored under its hash, or a reference to a file elsewhere.
CREATE TABLE receipt (
    event_id uuid NOT NULL,
    id uuid NOT NULL,
    org_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    at timestamptz NOT NULL,
    hash bytea NOT NULL,
    content_type text,
    size integer,
    file_ref text,
    message_ref text,
    PRIMARY KEY (event_id, id)
);
CREATE UNIQUE INDEX receipt_once_per_booking ON receipt (booking_id, event_id, hash);
CREATE INDEX receipt_hash ON receipt (org_id, hash);

-- One row for each admitted ticket, so that nobody enters with it twice.
CREATE TABLE checkin (
    event_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    line integer NOT NULL,
    unit integer NOT NULL,
    at timestamptz NOT NULL DEFAULT holdfast_now(),
    gate text,
    nonce text,
    actor text NOT NULL,
    PRIMARY KEY (event_id, booking_id, line, unit)
);

-- The keys that sign an event's tickets. The newest key signs; older ones still verify.
CREATE TABLE ticket_key (
    event_id uuid NOT NULL REFERENCES event,
    number integer NOT NULL,
    private bytea NOT NULL,
    public bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT holdfast_now(),
    revoked_at timestamptz,
    PRIMARY KEY (event_id, number)
);

CREATE TABLE webhook_endpoint (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL REFERENCES org,
    url text NOT NULL,
    -- The kinds of entries it subscribes to. Empty: all.
    kinds text[] NOT NULL,
    secret text NOT NULL,
    -- After a rotation, both secrets sign until this time.
    old_secret text,
    old_secret_until timestamptz,
    enabled boolean NOT NULL DEFAULT true,
    disabled_reason text,
    created_at timestamptz NOT NULL DEFAULT holdfast_now()
);
CREATE INDEX webhook_endpoint_of_org ON webhook_endpoint (org_id, id);

-- Notifications that the relay sends at least once. A stream is a booking, or an event as a whole. The relay sends the
-- deliveries of one stream to one target in the order of their journal entries.
CREATE TABLE delivery (
    event_id uuid NOT NULL,
    -- The number of the journal entry.
    number bigint NOT NULL,
    -- The id of a webhook endpoint, or the name of another channel, such as `mail`.
    target text NOT NULL,
    channel text NOT NULL,
    org_id uuid NOT NULL,
    stream uuid NOT NULL,
    kind text NOT NULL,
    body json NOT NULL,
    status text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'delivered', 'failed')),
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    last_error text,
    done_at timestamptz,
    PRIMARY KEY (event_id, number, target)
);
CREATE INDEX delivery_due ON delivery (target, due_at) WHERE status = 'waiting';
CREATE INDEX delivery_in_order ON delivery (stream, target, number) WHERE status = 'waiting';
CREATE INDEX delivery_log ON delivery (target, created_at);

-- The data of the sandbox, a payment provider that moves no money. Nothing else reads these tables.
CREATE TABLE sandbox_charge (
    ref text PRIMARY KEY,
    payment text NOT NULL,
    amount bigint NOT NULL,
    currency text NOT NULL,
    description text NOT NULL,
    return_url text,
    status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'paid', 'failed', 'closed', 'silent')),
    expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT holdfast_now()
);

CREATE TABLE sandbox_notice (
    id text PRIMARY KEY,
    ref text NOT NULL,
    type text NOT NULL,
    due_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    sent_at timestamptz
);
CREATE INDEX sandbox_notice_due ON sandbox_notice (due_at) WHERE sent_at IS NULL;

CREATE TABLE sandbox_refund (
    key text PRIMARY KEY,
    ref text NOT NULL,
    at timestamptz NOT NULL DEFAULT holdfast_now()
);

CREATE INDEX event_ending ON event (ends_at) WHERE status = 'active';
