-- rolling: no
-- The event's revision at the last change of its seats. Most changes leave the seats alone, and loading a large hall again
-- for a new title would take long.
ALTER TABLE event ADD COLUMN seats_revision bigint NOT NULL DEFAULT 1;
UPDATE event SET seats_revision = revision;
