-- rolling: no
-- Payments that wait for a refund or for a person. The worker counts them for the metrics.
CREATE INDEX payment_waiting ON payment (status, created_at) WHERE status IN ('refund_due', 'review');

-- When the latest audit of the event failed. It is no audit, so `at` and `version` stay as they were.
ALTER TABLE audit ADD COLUMN failed_at timestamptz;
-- Nearly all audits find nothing. The worker counts the findings of the others.
CREATE INDEX audit_with_findings ON audit (event_id) WHERE json_array_length(findings) > 0;
