-- rolling: no
-- The journal becomes a chain: each entry carries the hash of the entry before it, and the event has the hash of the last
-- one. Whoever changes, deletes or inserts an entry breaks the chain, and the auditor names the place.
--
-- What is hashed can never change, so the journal must not name people. It has had customers and staff in Telegram as
-- `user:` or `telegram:` and their id; now it has a pseudonym in place of the id. This step computes pseudonyms and
-- hashes as `core/actors.py` and `core/journal_chain.py` do.
--
-- The step copies the journal, which is faster than updating it and leaves no dead rows: about 45 seconds for a million
-- entries on our test machine. The free space on the disk must be as large as the journal.

ALTER TABLE event
    -- The hash of the last entry in the event's journal.
    ADD COLUMN journal_head bytea NOT NULL DEFAULT '',
    -- Keys the pseudonyms of people in the journal. Another key in its place makes everyone in the journal so far
    -- unrecognisable for good.
    ADD COLUMN actor_key bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());

-- Writers have waited for the event's row since the statement above. Nobody reads the old journal from here on.
LOCK TABLE journal IN ACCESS EXCLUSIVE MODE;

CREATE TABLE chained_journal (
    event_id uuid NOT NULL,
    number bigint NOT NULL CONSTRAINT journal_number CHECK (number > 0),
    -- Every reader can take this time, and the hash can have it as a number of microseconds.
    at timestamptz NOT NULL CONSTRAINT journal_time CHECK (at >= '1970-01-01 00:00:00+00' AND at < '9999-01-01 00:00:00+00'),
    kind text NOT NULL,
    booking_id uuid,
    actor text NOT NULL,
    data json NOT NULL,
    -- The hash of the entry before this one.
    previous bytea NOT NULL CONSTRAINT journal_previous CHECK (octet_length(previous) = 32)
);

CREATE FUNCTION holdfast_append(previous bytea, content bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS 'SELECT sha256(previous || content)';
CREATE AGGREGATE holdfast_chain(bytea) (SFUNC = holdfast_append, STYPE = bytea, INITCOND = '');

WITH named AS (
    SELECT journal.event_id, journal.number, journal.at, journal.kind, journal.booking_id,
           CASE WHEN journal.actor ~ '^(user:|telegram:[0-9]+$)'
                THEN split_part(journal.actor, ':', 1) || ':' || encode(
                    substr(sha256(coalesce(event.actor_key, '') || convert_to(journal.actor, 'UTF8')), 1, 16), 'hex')
                ELSE journal.actor
           END AS actor,
           journal.data, sha256('holdfast journal'::bytea || uuid_send(journal.event_id)) AS start
    FROM journal LEFT JOIN event ON event.id = journal.event_id
), content AS (
    SELECT named.*, int8send((extract(epoch FROM at) * 1000000)::bigint)
               || coalesce(uuid_send(booking_id), '\x00000000000000000000000000000000')
               || convert_to(kind, 'UTF8') || '\x00' || convert_to(actor, 'UTF8') || '\x00'
               || convert_to(data::text, 'UTF8') AS hashed_part,
           row_number() OVER (PARTITION BY event_id ORDER BY number) AS place
    FROM named
), hashed AS (
    SELECT content.*,
           holdfast_chain(CASE WHEN place = 1 THEN start || hashed_part ELSE hashed_part END)
               OVER (PARTITION BY event_id ORDER BY number ROWS UNBOUNDED PRECEDING) AS hash
    FROM content
)
INSERT INTO chained_journal (event_id, number, at, kind, booking_id, actor, data, previous)
SELECT event_id, number, at, kind, booking_id, actor, data,
       coalesce(lag(hash) OVER (PARTITION BY event_id ORDER BY number), start)
FROM hashed
ORDER BY event_id, number;

DROP TABLE journal;
ALTER TABLE chained_journal RENAME TO journal;
ALTER TABLE journal ADD CONSTRAINT journal_pkey PRIMARY KEY (event_id, number);

DROP AGGREGATE holdfast_chain(bytea);
DROP FUNCTION holdfast_append(bytea, bytea);

UPDATE event SET journal_head = coalesce((
    SELECT sha256(
        entry.previous || int8send((extract(epoch FROM entry.at) * 1000000)::bigint)
        || coalesce(uuid_send(entry.booking_id), '\x00000000000000000000000000000000')
        || convert_to(entry.kind, 'UTF8') || '\x00' || convert_to(entry.actor, 'UTF8') || '\x00'
        || convert_to(entry.data::text, 'UTF8')
    )
    FROM journal AS entry WHERE entry.event_id = event.id ORDER BY entry.number DESC LIMIT 1
), sha256('holdfast journal'::bytea || uuid_send(event.id)));

-- How far the auditor has verified the chain of each event: up to the entry with this number, which has this hash.
ALTER TABLE audit
    ADD COLUMN chain_version bigint NOT NULL DEFAULT 0,
    ADD COLUMN chain_head bytea;
