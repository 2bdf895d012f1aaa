-- rolling: no
-- Payments that wait for a refund or for a person. The worker counts them for the metrics.
CREATE INDEX payment_waiting ON payment (status, created_at) WHERE status IN ('refund_due', 'review');
