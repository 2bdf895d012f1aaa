"""Payments that a worker has to turn to. Each is claimed for a while, so that workers stay out of each other's way, and
comes back if the one who claimed it dies."""

from datetime import datetime
from typing import Any, Final

from holdfast import sql
from holdfast.core.money import PaymentStatus
from holdfast.db import Pool

# They are turned to all at once.
PAYMENTS_MAX: Final = 20
# Longer than a provider is waited for.
LEASE_SECONDS: Final = 60


async def claim(pool: Pool, status: PaymentStatus) -> list[Any]:
    rows: list[Any] = await pool.fetch(sql.payments.claim_payments, status, PAYMENTS_MAX, LEASE_SECONDS)
    return rows


async def postpone(pool: Pool, row: Any, status: PaymentStatus, due_at: datetime) -> None:
    await pool.execute(sql.payments.postpone_payment, row["event_id"], row["id"], status, due_at)


def subject(row: Any) -> dict[str, Any]:
    """What a command about this payment names."""
    return {
        "event": row["event_id"],
        "org": row["org_id"],
        "booking": row["booking_id"],
        "payment": row["id"],
    }
