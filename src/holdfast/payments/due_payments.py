"""The queue of payments in one status that need a call to their provider. Each org has its own share of the work."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import structlog

from holdfast import sql
from holdfast.core.commands import Command
from holdfast.core.decide import Outcome
from holdfast.core.payment import PaymentStatus
from holdfast.core.refusals import Refused
from holdfast.engine.engine import Engine
from holdfast.payments.payment_rows import DuePayment
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import FairQueue
from holdfast.runtime.lease_queue import LeaseQueue

log = structlog.get_logger()

# How many payments of one org a worker works on at the same time.
CLAIM_MAX: Final = 10
# Longer than a call to a provider takes.
LEASE_SECONDS: Final = 60
# The engine refuses a command while its event is locked.
BUSY_RETRIES: Final = Backoff.exponential(5, 300)


class DuePaymentQueue:
    def __init__(
        self,
        name: str,
        database: Database,
        engine: Engine,
        status: PaymentStatus,
        work: Callable[[DuePayment], Awaitable[None]],
    ) -> None:
        self._name = name
        self._database = database
        self._engine = engine
        self._status = status
        self.rows = FairQueue(
            LeaseQueue(
                name=name,
                row_type=DuePayment,
                claim_statement=sql.payments.claim_payments,
                claim_max=CLAIM_MAX,
                lease_seconds=LEASE_SECONDS,
                label=lambda due: due.public_id,
            ),
            sql.payments.orgs_with_waiting_payments,
            database.all_events,
            work,
            status=status,
        )

    async def submit(self, due: DuePayment, command: Command) -> Outcome:
        """Run a command about the payment. If the engine refuses it, the payment becomes due again, after a longer wait
        each time. It never gets lost."""
        outcome = await self._engine.submit(command)
        if isinstance(outcome, Refused):
            write = log.error if BUSY_RETRIES.is_exhausted(due.attempts) else log.warning
            write("payment_postponed", queue=self._name, payment=due.public_id, refusal=outcome.refusal.code)
            await self.postpone(due, due.now + timedelta(seconds=BUSY_RETRIES.seconds_after(due.attempts)))
        return outcome

    async def postpone(self, due: DuePayment, due_at: datetime) -> None:
        await self._database.event(due.event).execute(
            sql.payments.postpone_payment, due.event, due.payment.id, self._status, due_at
        )
