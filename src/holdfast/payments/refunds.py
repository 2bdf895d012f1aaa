"""Paying back what cannot be kept. The provider is asked under one key for each payment, so it cannot pay twice."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import structlog

from holdfast.core.commands import Remedy, ResolvePayment, SettlePayment
from holdfast.core.payment import RECEIPT, PaymentResult, PaymentStatus
from holdfast.engine.engine import Engine
from holdfast.payments.due import claim, each, postpone, subject
from holdfast.payments.provider import Provider, ProviderError, ProviderRefusedError
from holdfast.runtime import ids
from holdfast.runtime.db import Pool

log = structlog.get_logger()

ACTOR: Final = "refunds"
WAITS_SECONDS: Final = (2, 5, 15, 60, 300, 900, 3600, 3600, 7200, 14_400, 28_800, 28_800, 28_800)


class Refunds:
    def __init__(self, pool: Pool, engine: Engine, providers: Mapping[str, Provider]) -> None:
        self._pool = pool
        self._engine = engine
        self._providers = providers

    async def run_once(self) -> int:
        """Turn to the refunds that are due. Returns how many those were."""
        rows = await claim(self._pool, PaymentStatus.REFUND_DUE)
        return await each(self._pay_back, rows)

    async def _pay_back(self, row: Any) -> None:
        provider = self._providers.get(row["provider"])
        if row["amount"] > 0 and (row["provider"] == RECEIPT or row["provider_ref"] is None):
            await self._leave_to_a_person(row, "It was paid outside: pay it back by hand, and say so.")
            return
        try:
            if row["amount"] > 0:
                if provider is None:
                    raise ProviderError("not set up in this worker")
                await provider.refund(
                    row["provider_ref"], f"refund:{ids.format_payment_id(row['event_id'], row['id'])}"
                )
        except ProviderRefusedError as error:
            await self._leave_to_a_person(row, f"The provider does not pay it back: {error}")
        except ProviderError as error:
            await self._try_later(row, error)
        else:
            await self._engine.submit(SettlePayment(**subject(row), actor=ACTOR, result=PaymentResult.REFUNDED))

    async def _try_later(self, row: Any, error: Exception) -> None:
        attempts = row["attempts"]
        if attempts > len(WAITS_SECONDS):
            await self._leave_to_a_person(row, "The provider could not be reached for days.")
            return
        log.warning("refund_postponed", provider=row["provider"], attempts=attempts, error=type(error).__name__)
        due_at = row["now"] + timedelta(seconds=WAITS_SECONDS[attempts - 1])
        await postpone(self._pool, row, PaymentStatus.REFUND_DUE, due_at)

    async def _leave_to_a_person(self, row: Any, reason: str) -> None:
        log.error("refund_needs_a_person", payment=ids.format_payment_id(row["event_id"], row["id"]))
        await self._engine.submit(ResolvePayment(**subject(row), actor=ACTOR, remedy=Remedy.REVIEW, reason=reason))
