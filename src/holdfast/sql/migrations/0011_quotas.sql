-- rolling: no
-- An org can have only so many events and seats at a time. Both limits leave out events that have ended.
--
-- The number of seats is stored with the event, because counting the seats of a large org would read millions of rows.
-- Only edits of the event change it.
ALTER TABLE event ADD COLUMN seat_count integer NOT NULL DEFAULT 0;
UPDATE event SET seat_count = counted.seats
FROM (SELECT event_id, count(*) AS seats FROM seat GROUP BY event_id) AS counted
WHERE counted.event_id = event.id;
CREATE INDEX event_not_ended ON event (org_id, id) WHERE status IN ('draft', 'active');

CREATE INDEX api_key_of_org ON api_key (org_id);
