-- rolling: no
-- Sign-ins and secrets that can be replaced, and a limit on stored files that parallel uploads cannot pass.

-- Customer tokens that have signed a browser in, by the hash of what they sign. No token does so twice.
CREATE TABLE used_token (
    hash bytea PRIMARY KEY,
    expires_at timestamptz NOT NULL
);
CREATE INDEX used_token_expired ON used_token (expires_at);

-- A secret can have several values. The newest one whose time has come signs, and the others still verify until they
-- expire. A new value verifies before it signs, so that every process knows it before the first signature.
ALTER TABLE secret
    ADD COLUMN number integer NOT NULL DEFAULT 1,
    ADD COLUMN signs_from timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN valid_until timestamptz,
    DROP CONSTRAINT secret_pkey,
    ADD PRIMARY KEY (name, number);

-- Customer tokens name the number of the secret that signed them. Tokens without a number are from before there were
-- several, when every org had only its first secret.
ALTER TABLE org ADD COLUMN token_secret_number integer NOT NULL DEFAULT 1;
CREATE TABLE old_token_secret (
    org_id uuid NOT NULL REFERENCES org,
    number integer NOT NULL,
    secret bytea NOT NULL,
    valid_until timestamptz NOT NULL,
    PRIMARY KEY (org_id, number)
);

-- The files that a booking may store, written before the file. A row stays even if the receipt is refused afterwards or
-- the process dies, so a booking never stores more files than it may have receipts.
CREATE TABLE receipt_file (
    event_id uuid NOT NULL,
    booking_id uuid NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (event_id, booking_id, hash)
);
INSERT INTO receipt_file (event_id, booking_id, hash)
SELECT event_id, booking_id, hash FROM receipt WHERE content_type IS NOT NULL;
