-- rolling: no
-- Limits against hoarding.
--
-- A booking remembers the address it was placed from, as a keyed hash: of an IPv4 address, or of the /64 network of an
-- IPv6 address. It is null for secret keys, and for other callers whom the event does not limit. Every index on it is
-- partial, so that bookings without it cost nothing.

ALTER TABLE booking ADD COLUMN client bytea;

-- By client first, because it also answers what the client holds in other events. A client belongs to one org.
CREATE INDEX booking_held_by_client ON booking (client, event_id)
    WHERE client IS NOT NULL AND status IN ('held', 'payment_submitted');
-- Bookings that were confirmed without a payment.
CREATE INDEX booking_free_of_client ON booking (client, event_id, created_at)
    WHERE client IS NOT NULL AND status IN ('confirmed', 'completed') AND (total = 0 OR expires_at IS NULL);
-- Which holds ran out since the last confirmed booking. The version of a booking orders its last change.
CREATE INDEX booking_outcome_of_client ON booking (event_id, client, version)
    WHERE client IS NOT NULL AND status IN ('confirmed', 'expired', 'completed');
CREATE INDEX booking_outcome_of_guest ON booking (event_id, user_id, version)
    WHERE client IS NOT NULL AND status IN ('confirmed', 'expired', 'completed');

-- How many unpaid units one address may hold in all events of the org together.
ALTER TABLE org ADD COLUMN max_unpaid_units_per_address integer DEFAULT 120
    CHECK (max_unpaid_units_per_address > 0);
