-- rolling: no
-- A series groups events: the showings of a film, a shift every weekday, a tour every day. Lists of events are sorted by
-- start.

CREATE TABLE series (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL REFERENCES org,
    title text NOT NULL,
    description text,
    details json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT holdfast_now()
);
-- The condition is always true. It keeps lookups by id, which do not mention it, from using this index.
CREATE INDEX series_of_org ON series (org_id, id) WHERE title > '';

ALTER TABLE event
    ADD COLUMN series_id uuid REFERENCES series,
    -- The start of the last slot. Null: the event has no slots.
    ADD COLUMN last_slot_at timestamptz;
UPDATE event SET last_slot_at = slot.last_at
FROM (SELECT event_id, max(starts_at) AS last_at FROM pool GROUP BY event_id) AS slot
WHERE slot.event_id = event.id AND slot.last_at IS NOT NULL;

ALTER TABLE event
    -- Until then, the event is upcoming or under way, and pages list it.
    ADD COLUMN listed_until timestamptz
        GENERATED ALWAYS AS (greatest(starts_at, ends_at, sales_close_at, last_slot_at)) STORED,
    -- Where the event takes place, as lists show it and search finds it. An org may store anything as an address.
    ADD COLUMN place text GENERATED ALWAYS AS (left(coalesce(
        CASE WHEN json_typeof(details -> 'address') = 'string' THEN details ->> 'address' END, shift ->> 'address'
    ), 500)) STORED;

-- Lists of an org, and of all orgs. Events that began before the first time of a list, but last longer, come from the
-- other two indexes. Conditions that are always true keep each part of a list to its own index, and lookups by id away
-- from all of them: only the list that should use an index mentions its condition.
DROP INDEX event_of_org;
DROP INDEX event_not_ended;
CREATE INDEX event_not_ended ON event (org_id, id) WHERE status IN ('draft', 'active') AND seat_count >= 0;
CREATE INDEX event_of_org_by_start ON event (org_id, starts_at, id) WHERE starts_at > '-infinity';
CREATE INDEX event_by_start ON event (starts_at, id) WHERE tax_bps >= 0;
CREATE INDEX event_of_org_lasting ON event (org_id, listed_until) WHERE listed_until > starts_at;
CREATE INDEX event_lasting ON event (listed_until) WHERE listed_until > starts_at AND currency > '';
CREATE INDEX event_of_series ON event (series_id, starts_at, id) WHERE series_id IS NOT NULL;

-- Makes events from a template, one at a time. `starts` has the start of each event, and `position` is how many of them
-- are done. The id of an event follows from the job and the position, so a worker that repeats a step after a crash
-- changes nothing.
CREATE TABLE series_job (
    id uuid PRIMARY KEY,
    org_id uuid NOT NULL,
    series_id uuid NOT NULL REFERENCES series,
    -- Hashes of the Idempotency-Key, and of the request. Without a key, the first is the same as the second.
    request_key bytea NOT NULL,
    fingerprint bytea NOT NULL,
    -- Null once the job is done, because a template can be a megabyte.
    template json,
    starts timestamptz[] NOT NULL,
    publish boolean NOT NULL,
    actor text NOT NULL,
    position integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    -- The first failures: which event, and why.
    errors json NOT NULL DEFAULT '[]',
    created_at timestamptz NOT NULL DEFAULT holdfast_now(),
    done_at timestamptz,
    -- When a worker may continue. Null: the job is done.
    due_at timestamptz DEFAULT holdfast_now(),
    -- How often a worker has claimed the job since its last progress.
    attempts integer NOT NULL DEFAULT 0,
    CONSTRAINT series_job_position CHECK (failed <= position AND position <= cardinality(starts))
);
CREATE UNIQUE INDEX series_job_request ON series_job (series_id, request_key);
CREATE INDEX series_job_due ON series_job (org_id, due_at) WHERE due_at IS NOT NULL;
