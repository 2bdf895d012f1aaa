-- rolling: no
-- Work for one org must not wait for the work of another, and nobody can use Holdfast to flood a mailbox.

-- Workers take due payments org by org.
DROP INDEX payment_due;
CREATE INDEX payment_due ON payment (status, org_id, due_at) WHERE due_at IS NOT NULL;

-- The org of the notice's payment, as soon as a process has found the payment. All ones: nobody knows yet.
ALTER TABLE payment_notice ADD COLUMN org_id uuid NOT NULL DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff';
DROP INDEX payment_notice_due;
CREATE INDEX payment_notice_due ON payment_notice (org_id, due_at) WHERE due_at IS NOT NULL;

-- Each org has its own queue of emails. The old one is empty, except for what an older version still writes.
UPDATE delivery SET target = 'email:' || replace(org_id::text, '-', '') WHERE target = 'email' AND status = 'waiting';

-- Hashes of the recipient and of the buyer, for emails that have a limit.
ALTER TABLE delivery ADD COLUMN recipient_hash bytea, ADD COLUMN buyer_hash bytea;
CREATE INDEX delivery_to_recipient ON delivery (recipient_hash, created_at) WHERE recipient_hash IS NOT NULL;
CREATE INDEX delivery_of_buyer ON delivery (buyer_hash, created_at) WHERE buyer_hash IS NOT NULL;
