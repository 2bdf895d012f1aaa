"""Saves payments and receipts. Most batches have none of them."""

from datetime import datetime, timedelta
from typing import Final

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.commands import Receipt
from holdfast.core.event_state import EventState
from holdfast.core.payment import RECEIPT, Payment, PaymentStatus
from holdfast.core.states import PAYABLE
from holdfast.engine.load import LoadedBatch
from holdfast.engine.rows import RowDocument, check_counts, document
from holdfast.runtime.db import Connection

# When a worker first asks a provider about a payment that the provider has not reported on.
CHECK_SECONDS: Final = 60


class NewPaymentRow(RowDocument):
    """`was` is the status that the payment was loaded with; a new one has none."""

    event: bytes
    org: bytes
    booking: bytes
    payment: Payment
    was: PaymentStatus | None
    due_at: datetime | None


class NewReceiptRow(RowDocument):
    event: bytes
    org: bytes
    booking: bytes
    receipt: Receipt


async def save_payments(connection: Connection, loaded: LoadedBatch) -> None:
    payments = [row for state in loaded.states.values() for row in _payment_rows(state)]
    receipts = [row for state in loaded.states.values() for row in _receipt_rows(state)]
    if payments or receipts:
        saved = await connection.fetchrow(sql.engine.save_payments, document(payments), document(receipts), loaded.now)
        new = sum(row.was is None for row in payments)
        check_counts(
            "save_payments",
            saved,
            new_payments=new,
            changed_payments=len(payments) - new,
            new_receipts=len(receipts),
        )


def _payment_rows(state: EventState) -> list[NewPaymentRow]:
    rows = []
    for id_, change in state.changed_payments.items():
        booking = state.bookings[change.booking]
        payment = booking.payment(id_)
        assert payment is not None
        due_at = _due_at(state, booking, payment)
        rows.append(NewPaymentRow(booking.event, booking.org, booking.id, payment, change.was, due_at))
    return rows


def _receipt_rows(state: EventState) -> list[NewReceiptRow]:
    layout = state.layout
    return [NewReceiptRow(layout.event, layout.org, booking, receipt) for booking, receipt in state.new_receipts]


def _due_at(state: EventState, booking: Booking, payment: Payment) -> datetime | None:
    """When a worker processes the payment: it refunds at once, and it asks the provider before the hold expires and
    again as soon as the hold has ended."""
    if payment.status is PaymentStatus.REFUND_DUE:
        return state.now
    if payment.status is not PaymentStatus.STARTED or payment.provider == RECEIPT:
        return None
    if booking.status not in PAYABLE or booking.expires_at is None:
        return state.now
    return min(state.now + timedelta(seconds=CHECK_SECONDS), booking.expires_at)
