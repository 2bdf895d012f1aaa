"""Payments that a worker has to turn to. Each is claimed for a while, so that workers stay out of each other's way, and
comes back if the one who claimed it dies."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

import structlog

from holdfast import sql
from holdfast.core.payment import PaymentStatus
from holdfast.runtime.db import Pool

log = structlog.get_logger()

# They are turned to all at once.
CLAIM_MAX: Final = 20
# Longer than a provider is waited for.
LEASE_SECONDS: Final = 60


async def claim(pool: Pool, status: PaymentStatus) -> list[Any]:
    rows: list[Any] = await pool.fetch(sql.payments.claim_payments, status, CLAIM_MAX, LEASE_SECONDS)
    return rows


async def each(work: Callable[[Any], Awaitable[None]], rows: list[Any]) -> int:
    """Turn to all of them at once. One that breaks does not keep the others from theirs, and comes back."""
    for error in await asyncio.gather(*(work(row) for row in rows), return_exceptions=True):
        if isinstance(error, asyncio.CancelledError):
            raise error
        if isinstance(error, Exception):
            log.error("payment_failed_to_move", work=work.__qualname__, error=type(error).__name__)
    return len(rows)


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
