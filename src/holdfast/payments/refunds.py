"""Refunds payments that cannot be kept. The provider gets one key for each payment, so a retry cannot refund twice."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import structlog

from holdfast.core.payment import RECEIPT, PaymentResult, PaymentStatus
from holdfast.core.reasons import Reason
from holdfast.engine.engine import Engine
from holdfast.payments.due_payments import DuePaymentQueue
from holdfast.payments.payment_rows import DuePayment
from holdfast.payments.provider import Provider, ProviderError, ProviderRefusedError, find_provider
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import FairQueue

log = structlog.get_logger()

ACTOR: Final = "refunds"

# More than a day in total; after the last attempt a person decides.
RETRIES: Final = Backoff((2, 5, 15, 60, 300, 900, 3600, 3600, 7200, 14_400, 28_800, 28_800, 28_800))


class Refunder:
    def __init__(self, database: Database, engine: Engine, providers: Mapping[str, Provider]) -> None:
        self._providers = providers
        self._queue = DuePaymentQueue(ACTOR, database, engine, PaymentStatus.REFUND_DUE, self._refund)

    @property
    def queue(self) -> FairQueue[DuePayment]:
        return self._queue.rows

    async def _refund(self, due: DuePayment) -> None:
        payment = due.payment
        if payment.amount > 0 and (payment.provider == RECEIPT or payment.provider_ref is None):
            await self._escalate_to_review(due, Reason.REFUND_BY_HAND)
            return
        try:
            if payment.amount > 0:
                await self._refund_at_provider(due)
        except ProviderRefusedError as error:
            await self._escalate_to_review(due, Reason.REFUND_REFUSED, str(error))
        except ProviderError as error:
            await self._retry_later(due, error)
        else:
            await self._queue.submit(due, due.settle_command(ACTOR, PaymentResult.REFUND_ACCEPTED))

    async def _refund_at_provider(self, due: DuePayment) -> None:
        assert due.payment.provider_ref is not None
        provider = find_provider(self._providers, due.payment.provider)
        await provider.refund(due.payment.provider_ref, f"refund:{due.public_id}")

    async def _retry_later(self, due: DuePayment, error: ProviderError) -> None:
        if RETRIES.is_exhausted(due.attempts):
            await self._escalate_to_review(due, Reason.PROVIDER_UNREACHABLE, str(error))
            return
        log.warning(
            "refund_postponed", provider=due.payment.provider, attempts=due.attempts, error=type(error).__name__
        )
        await self._queue.postpone(due, due.now + timedelta(seconds=RETRIES.seconds_after(due.attempts)))

    async def _escalate_to_review(self, due: DuePayment, reason: str, detail: str | None = None) -> None:
        """`detail` is what the provider says. It names no buyer, and only the log has it."""
        log.error("refund_needs_a_person", payment=due.public_id, reason=reason, detail=detail)
        await self._queue.submit(due, due.review_command(ACTOR, reason))
