-- rolling: no
-- What is left of every pool, for operators with psql and for reports. See docs/operating.md.
--
-- Holdfast itself never reads this view: batches read the counters under the event's lock, and the API answers from
-- memory. The view gives the same numbers as GET /v1/events/{id}/availability. A hold past its deadline counts as free at
-- once, whether or not a worker has expired it yet, and a blocked seat is not part of the capacity.
--
-- The numbers describe the moment of the query. They may be out of date when you read them, so do not use them to decide
-- whether to sell a unit.
CREATE VIEW remaining AS
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS at)
SELECT pool.event_id, event.org_id, event.title, pool.code AS pool, pool.capacity,
       pool.held - due.units AS held, pool.sold, pool.capacity - pool.held - pool.sold + due.units AS remaining
FROM clock CROSS JOIN pool JOIN event ON event.id = pool.event_id CROSS JOIN LATERAL (
    SELECT coalesce(sum(line.quantity), 0)::integer AS units
    FROM booking JOIN line ON line.event_id = booking.event_id AND line.booking_id = booking.id
    WHERE booking.event_id = pool.event_id AND booking.status IN ('held', 'payment_submitted')
      AND booking.expires_at <= clock.at AND line.pool = pool.number
) AS due;
