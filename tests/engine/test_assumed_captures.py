"""Payments that staff refunded before their capture was known. The migration finds those of earlier versions."""

from collections.abc import Iterator

import pytest

from tests.support.harness import query
from tests.support.old_schema import database_at_step, run_steps

# The status of a payment, and the journal entry at the time of its capture: its kind and its actor.
ASSUMED = {
    "refunded by hand": ("refunded", "payment.refunded", "key:hf_sk_abc123"),
    "refund requested": ("refund_due", "payment.refund_due", "key:hf_sk_abc123"),
    "refund refused": ("review", "payment.refund_due", "key:hf_sk_abc123"),
}
KNOWN = {
    "refunded by the provider": ("refunded", "payment.refunded", "provider:stripe"),
    "refund requested, then made": ("refunded", "payment.refund_due", "key:hf_sk_abc123"),
    "too late": ("refund_due", "payment.refund_due", "provider:stripe"),
    "wrong amount": ("review", "payment.review", "provider:stripe"),
    "kept": ("succeeded", "payment.succeeded", "reconciler"),
}
PAYMENT = """
WITH made AS (
    INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, outcome, amount, currency, request_key,
                         fingerprint, created_at, captured_at, reason)
    VALUES ($1, gen_random_uuid(), $1, $1, 'stripe', $2,
            CASE $2 WHEN 'succeeded' THEN 'fulfilled' WHEN 'refund_due' THEN NULL ELSE $2 END, 1, 'EUR',
            $3::text::bytea, '', now(), now() + $4 * interval '1 second', $3)
    RETURNING *
)
INSERT INTO journal (event_id, number, at, kind, booking_id, actor, data)
SELECT $1, $4, captured_at, $5, booking_id, $6,
       json_build_object('payment', replace(id::text, '-', '')) FROM made
"""
ID = bytes(15) + b"\1"


@pytest.fixture
def old_database(postgres: str) -> Iterator[str]:
    with database_at_step(postgres, 7) as url:
        yield url


def test_the_migration_marks_the_payments_whose_capture_only_staff_reported(old_database: str) -> None:
    for number, (name, (status, kind, actor)) in enumerate({**ASSUMED, **KNOWN}.items(), 1):
        query(old_database, PAYMENT, ID, status, name, number, kind, actor)
    run_steps(old_database, 8, 8)
    rows = query(old_database, "SELECT reason FROM payment WHERE capture_assumed ORDER BY created_at, captured_at")
    assert [row["reason"] for row in rows] == list(ASSUMED)
