"""Asks providers about payments that they have told nothing of: before their hold ends, as soon as it has, and then
ever more seldom. What is still open once the hold has ended is closed, so that no money comes late if that can be."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from holdfast.core.commands import Remedy, ResolvePayment, SettlePayment
from holdfast.core.payment import PaymentResult, PaymentStatus
from holdfast.engine.engine import Engine
from holdfast.engine.save_payments import LOOK_SECONDS
from holdfast.payments.due import claim, each, postpone, subject
from holdfast.payments.provider import Provider, ProviderError, ProviderRefusedError, ProviderStatus
from holdfast.runtime import ids
from holdfast.runtime.db import Pool

log = structlog.get_logger()

ACTOR: Final = "reconciler"
LONGEST_WAIT_SECONDS: Final = 3600
DOUBLINGS_MAX: Final = 12
# Whoever has begun a payment may still be asking the provider for it.
ASKING: Final = timedelta(seconds=30)
# A provider that has not said for so long what became of a payment: a person has to look.
UNKNOWN: Final = timedelta(days=1)


class Reconciler:
    def __init__(self, pool: Pool, engine: Engine, providers: Mapping[str, Provider]) -> None:
        self._pool = pool
        self._engine = engine
        self._providers = providers

    async def run_once(self) -> int:
        """Turn to the payments whose time has come. Returns how many those were."""
        rows = await claim(self._pool, PaymentStatus.STARTED)
        return await each(self._look, rows)

    async def _look(self, row: Any) -> None:
        try:
            standing = await self._standing(row)
        except (ProviderError, ProviderRefusedError) as error:
            log.warning("provider_silent", provider=row["provider"], error=type(error).__name__)
            standing = None
        if standing is None or standing.result is None:
            await self._wait(row)
            return
        await self._engine.submit(
            SettlePayment(
                **subject(row), actor=ACTOR, result=standing.result, amount=standing.amount, currency=standing.currency
            )
        )

    async def _standing(self, row: Any) -> ProviderStatus | None:
        """Where the payment stands. One that never got as far as the provider cannot be paid, as nobody was told where
        to; it has failed once the hold has ended."""
        if row["provider_ref"] is None:
            being_asked = row["now"] - row["created_at"] < ASKING
            return None if row["held"] or being_asked else ProviderStatus(PaymentResult.FAILED)
        provider = self._providers.get(row["provider"])
        if provider is None:
            raise ProviderError
        return await (provider.look_up if row["held"] else provider.close)(row["provider_ref"])

    async def _wait(self, row: Any) -> None:
        if row["now"] - max(row["created_at"], row["expires_at"]) > UNKNOWN:
            log.error("payment_needs_a_person", payment=ids.format_payment_id(row["event_id"], row["id"]))
            reason = "The provider has not told what became of it."
            await self._engine.submit(ResolvePayment(**subject(row), actor=ACTOR, remedy=Remedy.REVIEW, reason=reason))
            return
        due_at = _next_look(row["now"], row["expires_at"], row["attempts"])
        await postpone(self._pool, row, PaymentStatus.STARTED, due_at)


def _next_look(now: datetime, expires_at: datetime, attempts: int) -> datetime:
    if now < expires_at:
        return min(now + timedelta(seconds=LOOK_SECONDS), expires_at)
    return now + timedelta(seconds=min(2.0 ** min(attempts, DOUBLINGS_MAX), LONGEST_WAIT_SECONDS))
