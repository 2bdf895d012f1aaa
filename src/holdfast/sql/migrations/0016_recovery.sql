-- rolling: no
-- Guests recover their bookings with a link that Holdfast emails them.
--
-- A request waits here until a worker has looked up the bookings and sent the email. The page that stores it reads no
-- booking, so its response cannot depend on whether there are any. A request and its address live for a day at most, and
-- normally for a second.
CREATE TABLE recovery_request (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL REFERENCES org,
    email text NOT NULL,
    language text NOT NULL,
    created_at timestamptz NOT NULL,
    -- When a worker sends the email, or tries again.
    due_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0
);
CREATE INDEX recovery_request_due ON recovery_request (org_id, due_at);
CREATE INDEX recovery_request_age ON recovery_request (created_at);

-- Links that nobody has used yet, by the hash of their token. A worker that dies while it sends an email leaves the request
-- to another, so a request may have several links. The first use of one deletes them all.
CREATE TABLE recovery_link (
    token_hash bytea PRIMARY KEY,
    request_id uuid NOT NULL,
    org_id uuid NOT NULL REFERENCES org,
    -- The address in the bookings.
    email text NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX recovery_link_of_request ON recovery_link (request_id);
CREATE INDEX recovery_link_expired ON recovery_link (expires_at);

-- How many requests or emails there were in the hour or day that starts at a time. `key` is a hash of a client's address or
-- of a recipient, or the id of an org.
CREATE TABLE recovery_count (
    kind text NOT NULL CHECK (kind IN ('address_hour', 'org_hour', 'recipient_hour', 'recipient_day')),
    key bytea NOT NULL,
    starts_at timestamptz NOT NULL,
    count integer NOT NULL,
    PRIMARY KEY (kind, key, starts_at)
);
CREATE INDEX recovery_count_age ON recovery_count (starts_at);

-- The bookings that a guest can recover. Holds are not among them, so a hold costs no more than before. The collation folds
-- only the case of ASCII letters. Others would also fold lookalikes, such as the Kelvin sign and K, and mail to a
-- lookalike goes elsewhere.
CREATE INDEX booking_of_email ON booking (org_id, lower(email COLLATE "C"), id)
    WHERE email IS NOT NULL AND user_id ~ '^guest-[0-9a-f]{32}$'
      AND status IN ('payment_submitted', 'confirmed', 'refunded', 'completed');
