"""Polls providers about payments they have not reported on: every minute while the hold is active, when it ends, and
with a growing backoff after that. Once the hold has ended it closes open checkouts, so that buyers cannot pay late."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog

from holdfast.core.payment import PaymentResult, PaymentStatus
from holdfast.core.reasons import Reason
from holdfast.engine.engine import Engine
from holdfast.engine.save_payments import CHECK_SECONDS
from holdfast.payments.due_payments import DuePaymentQueue
from holdfast.payments.payment_rows import DuePayment
from holdfast.payments.provider import Provider, ProviderError, ProviderRefusedError, ProviderStatus, find_provider
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import FairQueue

log = structlog.get_logger()

ACTOR: Final = "reconciler"

POLLS: Final = Backoff.exponential(2, 3600)
# A request that has just started the payment may still wait for the provider's answer.
START_TIMEOUT: Final = timedelta(seconds=30)
# A person decides about a payment whose provider stays silent for longer.
SILENCE_MAX: Final = timedelta(days=1)


class Reconciler:
    def __init__(self, database: Database, engine: Engine, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._queue = DuePaymentQueue(ACTOR, database, engine, PaymentStatus.STARTED, self._reconcile)

    @property
    def queue(self) -> FairQueue[DuePayment]:
        return self._queue.rows

    async def _reconcile(self, due: DuePayment) -> None:
        try:
            status = await self._poll(due)
        except (ProviderError, ProviderRefusedError) as error:
            log.warning("provider_poll_failed", provider=due.payment.provider, error=type(error).__name__)
            status = ProviderStatus(None)
        if status.result is None:
            await self._poll_later(due)
        else:
            command = due.settle_command(ACTOR, status.result, status.amount, status.currency)
            due.alarm_if_in_review(await self._queue.submit(due, command))

    async def _poll(self, due: DuePayment) -> ProviderStatus:
        """Without a reference the buyer never got a checkout to pay at, so the payment fails when the hold ends."""
        payment = due.payment
        if payment.provider_ref is None:
            is_starting = due.now - payment.created_at < START_TIMEOUT
            return ProviderStatus(None if due.held or is_starting else PaymentResult.FAILED)
        provider = find_provider(self._providers, payment.provider)
        return await (provider.look_up if due.held else provider.close)(payment.provider_ref)

    async def _poll_later(self, due: DuePayment) -> None:
        ended_at = max(due.payment.created_at, due.expires_at or due.payment.created_at)
        if due.now - ended_at > SILENCE_MAX:
            await self._escalate_to_review(due)
        else:
            await self._queue.postpone(due, _next_poll_at(due.now, ended_at, due.attempts))

    async def _escalate_to_review(self, due: DuePayment) -> None:
        log.error("payment_needs_a_person", payment=due.public_id, reason=Reason.PROVIDER_SILENT)
        await self._queue.submit(due, due.review_command(ACTOR, Reason.PROVIDER_SILENT))


def _next_poll_at(now: datetime, ended_at: datetime, attempts: int) -> datetime:
    if now < ended_at:
        return min(now + timedelta(seconds=CHECK_SECONDS), ended_at)
    return now + timedelta(seconds=POLLS.seconds_after(attempts))
