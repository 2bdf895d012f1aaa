"""Reasons are codes. The migration translates the sentences that earlier versions stored."""

from collections.abc import Iterator

import pytest

from holdfast.core.reasons import Reason
from holdfast.core.refusals import Refusal
from tests.support.harness import query
from tests.support.old_schema import database_at_step, run_steps

OLD = {
    "The event was cancelled.": Reason.EVENT_CANCELLED,
    "The receipt was not reviewed in time.": Reason.RECEIPT_NOT_REVIEWED,
    "12 EUR came instead of 3000 USD.": Reason.WRONG_AMOUNT,
    "The provider does not pay it back: No such charge.": Reason.REFUND_REFUSED,
    "The hold has expired; its units are free for others again.": Refusal.HOLD_EXPIRED.code,
    "The booking is completed: its event is over.": Refusal.ALREADY_COMPLETED.code,
    "I typed this.": "I typed this.",
}

BOOKING = """
INSERT INTO booking (event_id, id, org_id, user_id, status, subtotal, tax, total, currency, created_at, request_key,
                     fingerprint, version, reason)
VALUES ($1, $1, $1, '', 'expired', 0, 0, 0, 'EUR', now(), 'k', '', 1, 'The receipt was not reviewed in time.')
"""
PAYMENT = """
INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, amount, currency, request_key, fingerprint,
                     created_at, reason)
VALUES ($1, gen_random_uuid(), $1, $1, 'sandbox', 'failed', 0, 'EUR', $2::text::bytea, '', now(), $3)
"""
NOTICE = (
    "INSERT INTO payment_notice (provider, id, body, news, result) VALUES ('sandbox', '1', '', 'captured', 'succeeded')"
)
ID = bytes(15) + b"\1"


@pytest.fixture
def old_database(postgres: str) -> Iterator[str]:
    """A database as the third step of the schema left it."""
    with database_at_step(postgres, 3) as url:
        yield url


def test_the_migration_translates_engine_texts_and_keeps_staff_texts(old_database: str) -> None:
    query(old_database, BOOKING, ID)
    for number, reason in enumerate(OLD):
        query(old_database, PAYMENT, ID, str(number), reason)
    query(old_database, NOTICE)
    run_steps(old_database, 4, 4)
    assert query(old_database, "SELECT reason FROM booking")[0]["reason"] == Reason.RECEIPT_NOT_REVIEWED
    payments = query(old_database, "SELECT reason FROM payment ORDER BY request_key")
    assert [row["reason"] for row in payments] == list(OLD.values())
    notice = query(old_database, "SELECT result, handled_as FROM payment_notice")[0]
    assert tuple(notice) == ("captured", "succeeded")


def test_reason_codes_and_refusal_codes_are_distinct() -> None:
    assert not {reason.value for reason in Reason} & {refusal.code for refusal in Refusal}
