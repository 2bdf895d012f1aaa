-- What buyers see.
--
-- An org shows itself with a name, a logo and a colour, and says which sites may show its pages in a frame.

ALTER TABLE org
    ADD COLUMN colour text CHECK (colour ~ '^#[0-9a-f]{6}$'),
    ADD COLUMN logo bytea CHECK (length(logo) <= 262144),
    ADD COLUMN logo_type text CHECK ((logo_type IS NULL) = (logo IS NULL)),
    ADD COLUMN frame_origins text[] NOT NULL DEFAULT '{}';

-- What all processes of a database sign with, such as the cookies of guests. Made when it is first needed.
CREATE TABLE secret (
    name text PRIMARY KEY,
    value bytea NOT NULL
);

-- A rush of simulated buyers, which processes other than the one that shows it carry out. `report` is how far it is.
CREATE TABLE stampede (
    event_id uuid NOT NULL,
    id uuid NOT NULL,
    started_at timestamptz NOT NULL DEFAULT holdfast_now(),
    ended_at timestamptz,
    report json NOT NULL,
    PRIMARY KEY (event_id, id)
);
