-- rolling: no
-- The free bookings of a client in the last hour, in all events or in one. By time instead of by event, because a client
-- may have any number of older ones in other events.
DROP INDEX booking_free_of_client;
CREATE INDEX booking_free_of_client ON booking (client, created_at)
    WHERE client IS NOT NULL AND status IN ('confirmed', 'completed') AND (total = 0 OR expires_at IS NULL);
