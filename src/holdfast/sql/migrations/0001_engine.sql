-- rolling: no
-- Holdfast keeps all of its state in PostgreSQL.
--
-- An org sells events. An event has pools of units; a pool is either a plain number (standing room, places in a shift, a
-- time slot) or a set of named seats. A booking claims units through its lines. Live lines are the only record of what is
-- taken: the counters of a pool repeat the sum of its live lines, so that checking availability reads one row. Every
-- change to an event's stock holds the lock of the event's row, and there is no other lock.
--
-- The schema enforces the promise on its own, so that no bug in the code above can sell a unit twice: counters cannot
-- leave their bounds, and a seat cannot have two live lines. The code never catches a violated constraint to go on.
--
-- Tables that belong to an event start their key with its id, so that events can be spread over several servers. Pools,
-- tariffs and seats are numbered within their event from 0. Nothing is ever deleted.
--
-- Two rules keep query plans independent of statistics. No table has two indexes that could serve the same look-up by
-- key: on an empty table they cost the same, and PostgreSQL might settle on the wrong one. And bookings, lines and the
-- journal have no foreign keys, because PostgreSQL plans their checks where our settings do not reach. Instead, one
-- statement writes those rows and the engine checks its row counts, and the auditor looks for strays.

-- The only clock. Tests replace this function to travel in time.
CREATE FUNCTION holdfast_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT clock_timestamp()';

CREATE TABLE org (
    id uuid PRIMARY KEY,
    slug text NOT NULL UNIQUE CHECK (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name text NOT NULL,
    -- Signs the tokens of this org's customers.
    token_secret bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT holdfast_now()
);

CREATE TABLE api_key (
    -- SHA-256 of the key. The key has 256 random bits and is shown once.
    hash bytea PRIMARY KEY,
    org_id uuid NOT NULL REFERENCES org,
    -- The first characters of the key, to recognise it in lists and in the journal.
    prefix text NOT NULL,
    role text NOT NULL CHECK (role IN ('admin', 'sales', 'review', 'door')),
    created_at timestamptz NOT NULL DEFAULT holdfast_now(),
    revoked_at timestamptz
);

CREATE TABLE event (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL REFERENCES org,
    status text NOT NULL CHECK (status IN ('draft', 'active', 'completed', 'cancelled')),
    -- The number of the last entry in the event's journal.
    version bigint NOT NULL DEFAULT 0,
    -- Rises whenever the layout changes, so that caches notice.
    revision bigint NOT NULL DEFAULT 1,
    title text NOT NULL,
    preset text,
    starts_at timestamptz NOT NULL,
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    tax_bps integer NOT NULL CHECK (tax_bps BETWEEN 0 AND 10000),
    policy json NOT NULL,
    details json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT holdfast_now(),
    -- From this time on, people other than staff can see the event.
    published_at timestamptz
) WITH (fillfactor = 50);
CREATE INDEX event_of_org ON event (org_id, id);

CREATE TABLE pool (
    event_id uuid NOT NULL REFERENCES event,
    number integer NOT NULL,
    code text NOT NULL,
    name text NOT NULL,
    seated boolean NOT NULL,
    capacity integer NOT NULL CHECK (capacity >= 0),
    held integer NOT NULL DEFAULT 0,
    sold integer NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, number),
    UNIQUE (code, event_id),
    CONSTRAINT pool_never_oversold CHECK (held >= 0 AND sold >= 0 AND held + sold <= capacity)
) WITH (fillfactor = 50);

CREATE TABLE tariff (
    event_id uuid NOT NULL,
    pool integer NOT NULL,
    number integer NOT NULL,
    code text NOT NULL,
    name text NOT NULL,
    price bigint NOT NULL CHECK (price >= 0),
    PRIMARY KEY (event_id, pool, number),
    UNIQUE (code, event_id, pool),
    FOREIGN KEY (event_id, pool) REFERENCES pool
);

-- Only the layout: selling a seat does not change its row.
CREATE TABLE seat (
    event_id uuid NOT NULL,
    number integer NOT NULL,
    pool integer NOT NULL,
    label text NOT NULL,
    row text NOT NULL,
    place integer,
    x double precision,
    y double precision,
    blocked boolean NOT NULL DEFAULT false,
    PRIMARY KEY (event_id, number),
    UNIQUE (label, event_id),
    FOREIGN KEY (event_id, pool) REFERENCES pool
);

CREATE TABLE booking (
    event_id uuid NOT NULL,
    id uuid NOT NULL,
    org_id uuid NOT NULL,
    user_id text NOT NULL,
    status text NOT NULL CHECK (status IN
        ('held', 'payment_submitted', 'confirmed', 'rejected', 'expired', 'cancelled', 'refunded', 'completed')),
    -- Amounts never change after the booking is placed.
    subtotal bigint NOT NULL CHECK (subtotal >= 0),
    tax bigint NOT NULL CHECK (tax >= 0),
    total bigint NOT NULL,
    currency text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    max_expires_at timestamptz,
    -- Hashes of the caller with their Idempotency-Key, and of the request.
    request_key bytea NOT NULL CHECK (request_key > ''),
    fingerprint bytea NOT NULL,
    cart_hash bytea,
    details json,
    reason text,
    -- The number of the last journal entry about this booking.
    version bigint NOT NULL,
    PRIMARY KEY (event_id, id),
    CONSTRAINT booking_total CHECK (total = subtotal + tax),
    CONSTRAINT booking_deadline CHECK (expires_at IS NOT NULL OR status NOT IN ('held', 'payment_submitted'))
);
-- The condition is always true. It keeps look-ups by id, which do not mention it, from using this index.
CREATE UNIQUE INDEX booking_request ON booking (event_id, request_key) WHERE request_key > '';
CREATE INDEX booking_due ON booking (event_id, expires_at) WHERE status IN ('held', 'payment_submitted');
CREATE INDEX booking_live_of_user ON booking (event_id, user_id) WHERE status IN ('held', 'payment_submitted', 'confirmed');
CREATE INDEX booking_of_user ON booking (org_id, user_id, id);

CREATE TABLE line (
    event_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    number integer NOT NULL,
    pool integer NOT NULL,
    tariff integer NOT NULL,
    seat integer,
    quantity integer NOT NULL CHECK (quantity > 0),
    unit_price bigint NOT NULL CHECK (unit_price >= 0),
    live boolean NOT NULL,
    PRIMARY KEY (event_id, booking_id, number),
    CONSTRAINT line_of_one_seat CHECK (seat IS NULL OR quantity = 1)
);
CREATE UNIQUE INDEX line_seat_taken_once ON line (event_id, seat) WHERE live AND seat IS NOT NULL;

CREATE TABLE journal (
    event_id uuid NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    booking_id uuid,
    actor text NOT NULL,
    data json NOT NULL,
    PRIMARY KEY (event_id, number)
);

-- The auditor's latest findings about each event.
CREATE TABLE audit (
    event_id uuid PRIMARY KEY REFERENCES event,
    at timestamptz NOT NULL,
    version bigint NOT NULL,
    findings json NOT NULL
);
