-- rolling: no
-- Rules that some businesses need: slots with their own time, sales that open and close, contact details and questions,
-- and one live booking per user as a constraint.

ALTER TABLE event
    -- Null: sales open when the event is published, and close when it starts.
    ADD COLUMN sales_open_at timestamptz,
    ADD COLUMN sales_close_at timestamptz,
    -- The contact details and the questions that the organiser asks buyers for.
    ADD COLUMN contact json NOT NULL DEFAULT '{}',
    ADD COLUMN questions json NOT NULL DEFAULT '[]',
    ADD COLUMN payment_instructions text,
    -- The payment providers that the event offers. Null: all that are set up.
    ADD COLUMN providers text[],
    ADD COLUMN shift json,
    -- The order number in `shift`, as text.
    ADD COLUMN order_number text,
    -- Since when users can have only one live booking. Null while they can have several.
    ADD COLUMN one_per_user_since timestamptz;
CREATE UNIQUE INDEX event_order_number ON event (org_id, order_number) WHERE order_number IS NOT NULL;

ALTER TABLE org ADD COLUMN payment_instructions text;

-- A pool with a start is a slot.
ALTER TABLE pool
    ADD COLUMN starts_at timestamptz,
    ADD COLUMN ends_at timestamptz,
    ADD COLUMN sales_open_at timestamptz,
    ADD COLUMN sales_close_at timestamptz;

ALTER TABLE tariff ADD COLUMN needs_companion boolean NOT NULL DEFAULT false;

ALTER TABLE booking
    ADD COLUMN name text,
    ADD COLUMN phone text,
    ADD COLUMN answers json,
    -- Whether the event allowed one booking per user when this booking was placed, revived or transferred. An index cannot
    -- look at the event's policy.
    ADD COLUMN one_per_user boolean NOT NULL DEFAULT false;

-- Users who have several live bookings got them while the event allowed it.
UPDATE booking SET one_per_user = true
FROM event
WHERE event.id = booking.event_id AND (event.policy ->> 'one_booking_per_user')::boolean
  AND booking.status IN ('held', 'payment_submitted', 'confirmed')
  AND NOT EXISTS (
      SELECT FROM booking AS other
      WHERE other.event_id = booking.event_id AND other.user_id = booking.user_id AND other.id <> booking.id
        AND other.status IN ('held', 'payment_submitted', 'confirmed')
  );
UPDATE event SET one_per_user_since = holdfast_now() WHERE (policy ->> 'one_booking_per_user')::boolean;

CREATE UNIQUE INDEX booking_one_per_user ON booking (event_id, user_id)
    WHERE one_per_user AND status IN ('held', 'payment_submitted', 'confirmed');
