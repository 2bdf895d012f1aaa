"""The lease queue of payments in one status that need a call to their provider."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from holdfast import sql
from holdfast.core.payment import PaymentStatus
from holdfast.payments.payment_rows import DuePayment
from holdfast.runtime.db import Database
from holdfast.runtime.lease_queue import LeaseQueue

# A worker calls the provider about all of them at once.
CLAIM_MAX: Final = 20
# Longer than a call to a provider takes.
LEASE_SECONDS: Final = 60


class DuePaymentQueue:
    def __init__(self, name: str, database: Database, status: PaymentStatus) -> None:
        self._database = database
        self._status = status
        self._queue = LeaseQueue(
            name=name,
            row_type=DuePayment,
            claim_statement=sql.payments.claim_payments,
            claim_max=CLAIM_MAX,
            lease_seconds=LEASE_SECONDS,
            label=lambda due: due.public_id,
        )

    async def run_once(self, work: Callable[[DuePayment], Awaitable[None]]) -> int:
        """Returns how many payments were due."""
        return (await self._queue.run_once(self._database.all_events, work, status=self._status)).rows

    async def postpone(self, due: DuePayment, due_at: datetime) -> None:
        await self._database.event(due.event).execute(
            sql.payments.postpone_payment, due.event, due.payment.id, self._status, due_at
        )
