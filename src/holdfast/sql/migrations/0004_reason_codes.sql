-- rolling: no
-- Bookings and payments travel between PostgreSQL and the engine as JSON, with ids and hashes as base64. These functions
-- convert ids; being plain SQL, they are inlined into the statements that call them.
CREATE FUNCTION holdfast_base64(id uuid) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT encode(uuid_send(id), 'base64') $$;

CREATE FUNCTION holdfast_uuid(base64 text) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT encode(decode(base64, 'base64'), 'hex')::uuid $$;

-- Reasons that the engine gives are codes, which pages and emails translate. Older rows hold English sentences.
CREATE TEMPORARY TABLE reason_code (sentence text PRIMARY KEY, code text NOT NULL) ON COMMIT DROP;
INSERT INTO reason_code VALUES
    ('The event was cancelled.', 'event_cancelled'),
    ('The event was cancelled before the receipt was reviewed.', 'event_cancelled'),
    ('The receipt was not reviewed in time.', 'receipt_not_reviewed'),
    ('The receipt was rejected.', 'receipt_rejected'),
    ('The booking was paid for otherwise.', 'paid_otherwise'),
    ('The booking was given up.', 'booking_given_up'),
    ('The payment was refunded by the provider.', 'refunded_by_provider'),
    ('It was paid outside: pay it back by hand, and say so.', 'refund_by_hand'),
    ('The provider could not be reached for days.', 'provider_unreachable'),
    ('The provider has not told what became of it.', 'provider_silent'),
    ('The hold has expired; its units are free for others again.', 'hold_expired'),
    ('A payment receipt for this booking is waiting for review.', 'already_submitted'),
    ('The booking is confirmed.', 'already_confirmed'),
    ('The booking was rejected.', 'already_rejected'),
    ('The booking was cancelled.', 'already_cancelled'),
    ('The booking was refunded.', 'already_refunded'),
    ('The booking is completed: its event is over.', 'already_completed');
UPDATE booking SET reason = reason_code.code FROM reason_code WHERE booking.reason = reason_code.sentence;
UPDATE payment SET reason = reason_code.code FROM reason_code WHERE payment.reason = reason_code.sentence;
UPDATE payment SET reason = 'wrong_amount' WHERE reason ~ '^[0-9]+ [A-Z]{3} came instead of [0-9]+ [A-Z]{3}\.$';
UPDATE payment SET reason = 'refund_refused' WHERE reason LIKE 'The provider does not pay it back: %';

-- A notice carries a payment's result, and is handled in one of several ways.
ALTER TABLE payment_notice RENAME COLUMN result TO handled_as;
ALTER TABLE payment_notice RENAME COLUMN news TO result;
