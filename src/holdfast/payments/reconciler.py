"""Polls providers about payments they have not reported on: every minute while the hold runs, when it ends, and with a
growing back-off after that. Once the hold has ended it closes open checkouts, so that buyers cannot pay late."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog

from holdfast.core.payment import PaymentResult, PaymentStatus
from holdfast.core.reasons import Reason
from holdfast.engine.engine import Engine
from holdfast.engine.save_payments import CHECK_SECONDS
from holdfast.payments.due_payments import DuePayments
from holdfast.payments.payment_rows import DuePayment
from holdfast.payments.provider import Provider, ProviderError, ProviderRefusedError, ProviderStatus, find_provider
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database

log = structlog.get_logger()

ACTOR: Final = "reconciler"

POLLS: Final = Backoff.exponential(2, 3600)
# A request that has just started the payment may still wait for the provider's answer.
START_TIMEOUT: Final = timedelta(seconds=30)
# A person decides about a payment whose provider stays silent for longer.
SILENCE_MAX: Final = timedelta(days=1)


class Reconciler:
    def __init__(self, database: Database, engine: Engine, providers: Mapping[str, Provider]) -> None:
        self._engine = engine
        self._providers = providers
        self._due = DuePayments(ACTOR, database, PaymentStatus.STARTED)

    async def run_once(self) -> int:
        """Returns how many payments were due."""
        return await self._due.run_once(self._reconcile)

    async def _reconcile(self, payment: DuePayment) -> None:
        try:
            status = await self._poll(payment)
        except (ProviderError, ProviderRefusedError) as error:
            log.warning("provider_poll_failed", provider=payment.provider, error=type(error).__name__)
            status = ProviderStatus(None)
        if status.result is None:
            await self._poll_later(payment)
        else:
            await self._engine.submit(payment.settle(ACTOR, status.result, status.amount, status.currency))

    async def _poll(self, payment: DuePayment) -> ProviderStatus:
        """Without a reference the buyer never got a checkout to pay at, so the payment fails when the hold ends."""
        if payment.provider_ref is None:
            is_starting = payment.now - payment.created_at < START_TIMEOUT
            return ProviderStatus(None if payment.held or is_starting else PaymentResult.FAILED)
        provider = find_provider(self._providers, payment.provider)
        return await (provider.look_up if payment.held else provider.close)(payment.provider_ref)

    async def _poll_later(self, payment: DuePayment) -> None:
        ended_at = max(payment.created_at, payment.expires_at or payment.created_at)
        if payment.now - ended_at > SILENCE_MAX:
            await self._escalate_to_review(payment)
        else:
            await self._due.postpone(payment, _next_poll_at(payment.now, ended_at, payment.attempts))

    async def _escalate_to_review(self, payment: DuePayment) -> None:
        log.error("payment_needs_a_person", payment=payment.public_id, reason=Reason.PROVIDER_SILENT)
        await self._engine.submit(payment.escalate_to_review(ACTOR, Reason.PROVIDER_SILENT))


def _next_poll_at(now: datetime, ended_at: datetime, attempts: int) -> datetime:
    if now < ended_at:
        return min(now + timedelta(seconds=CHECK_SECONDS), ended_at)
    return now + timedelta(seconds=POLLS.seconds_after(attempts))
