-- rolling: no
-- The pages that buyers see.
--
-- An org has a name, a logo and a colour, and lists the sites that may show its pages in a frame.

ALTER TABLE org
    ADD COLUMN colour text CHECK (colour ~ '^#[0-9a-f]{6}$'),
    ADD COLUMN logo bytea CHECK (length(logo) <= 262144),
    ADD COLUMN logo_type text CHECK ((logo_type IS NULL) = (logo IS NULL)),
    ADD COLUMN frame_origins text[] NOT NULL DEFAULT '{}';

-- Secrets that all processes share, such as the one that signs guest cookies. Created on first use.
CREATE TABLE secret (
    name text PRIMARY KEY,
    value bytea NOT NULL
);

-- A run of simulated buyers in processes of their own. `report` is its progress.
CREATE TABLE stampede (
    event_id uuid NOT NULL,
    id uuid NOT NULL,
    started_at timestamptz NOT NULL DEFAULT holdfast_now(),
    ended_at timestamptz,
    report json NOT NULL,
    PRIMARY KEY (event_id, id)
);
