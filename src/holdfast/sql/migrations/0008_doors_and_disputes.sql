-- rolling: no
-- A door key can be bound to events, whose tickets alone it reads and checks in. Null: every event of the org.
ALTER TABLE api_key
    ADD COLUMN events uuid[],
    ADD CONSTRAINT api_key_bound_to_events CHECK (events IS NULL OR role = 'door' AND cardinality(events) > 0);

-- Staff can refund a payment, or record that they did, before any provider has reported its capture. The payment then
-- counts as captured, and remembers that this is only assumed, so that a late report of the capture is not lost.
ALTER TABLE payment ADD COLUMN capture_assumed boolean NOT NULL DEFAULT false;

-- Until now, the time of such a decision became the time of the capture.
UPDATE payment SET capture_assumed = true FROM journal
WHERE journal.event_id = payment.event_id AND journal.booking_id = payment.booking_id
  AND journal.at = payment.captured_at AND journal.actor LIKE 'key:%'
  AND journal.data ->> 'payment' = encode(uuid_send(payment.id), 'hex')
  AND (payment.status = 'refunded' AND journal.kind = 'payment.refunded'
       OR payment.status IN ('refund_due', 'review') AND journal.kind = 'payment.refund_due');

ALTER TABLE payment ADD CONSTRAINT payment_keeps_no_assumed_money CHECK (
    NOT capture_assumed OR captured_at IS NOT NULL AND status IN ('refund_due', 'refunded', 'review')
);
