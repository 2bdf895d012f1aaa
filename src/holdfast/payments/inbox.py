"""The inbox of what providers tell: verified on its raw bytes, stored once, answered, and then acted on.

Whatever happens after it was stored, the provider has its answer; what was not acted on is found again by a worker.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import structlog

from holdfast import sql
from holdfast.core.commands import Accepted, SettlePayment
from holdfast.core.payment import PaymentResult
from holdfast.core.refusals import Refusal
from holdfast.engine.engine import Engine
from holdfast.payments.due import subject
from holdfast.payments.provider import Notice, Provider
from holdfast.runtime import ids
from holdfast.runtime.db import Pool

log = structlog.get_logger()

# Whoever has stored a notice, or taken it up, has it to themselves for so long.
LEASE_SECONDS: Final = 5
# How long the provider waits for its answer so that the effect is there when it gets it.
EFFECT_SECONDS: Final = 2
NOTICES_MAX: Final = 100
# A notice may come before we know how the provider calls the payment. After this, nobody will know it any more.
UNMATCHED: Final = timedelta(minutes=10)


class Inbox:
    def __init__(self, pool: Pool, engine: Engine, providers: Mapping[str, Provider]) -> None:
        self._pool = pool
        self._engine = engine
        self._providers = providers
        self._acting: set[asyncio.Task[None]] = set()

    async def receive(self, provider: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Store what the provider tells; False if this was known. Raises `NoticeError` if it is not the provider's."""
        notice = self._providers[provider].verify(headers, body)
        row = await self._store(provider, notice, body)
        if row is not None and notice.result is not None:
            acting = asyncio.create_task(self._act(row))
            self._acting.add(acting)
            acting.add_done_callback(self._acting.discard)
            await asyncio.wait({acting}, timeout=EFFECT_SECONDS)
        return row is not None

    async def run_once(self) -> int:
        """Take up what was stored and not acted on. Returns how many those were."""
        rows = await self._pool.fetch(sql.payments.claim_notices, NOTICES_MAX, LEASE_SECONDS)
        for row in rows:
            await self._act(row, row["age"])
        return len(rows)

    async def close(self) -> None:
        if self._acting:
            await asyncio.wait(self._acting, timeout=EFFECT_SECONDS)

    async def _store(self, provider: str, notice: Notice, body: bytes) -> Any:
        return await self._pool.fetchrow(
            sql.payments.insert_notice, provider, notice.id, body, notice.result, notice.ref, notice.payment,
            notice.amount, notice.currency, LEASE_SECONDS,
        )  # fmt: skip

    async def _act(self, row: Any, age: timedelta = timedelta(0)) -> None:
        try:
            payment = await self._payment(row)
            if payment is None:
                await self._leave(row, age)
            else:
                await self._settle(row, payment)
        except Exception as error:
            log.error("notice_failed", provider=row["provider"], error=type(error).__name__)

    async def _payment(self, row: Any) -> Any:
        """The payment that a notice is about: by our own id, if the provider carries it, and by its reference. Where
        the two name different payments it is about neither."""
        ours = ids.parse_payment_id(row["payment"]) if row["payment"] else None
        if ours is None:
            return await self._pool.fetchrow(sql.payments.payment_at_provider, row["provider"], row["provider_ref"])
        found = await self._pool.fetchrow(sql.payments.payment, *ours)
        if found is None or found["provider"] != row["provider"]:
            return None
        return found if found["provider_ref"] in (None, row["provider_ref"]) or row["provider_ref"] is None else None

    async def _settle(self, row: Any, payment: Any) -> None:
        if payment["provider_ref"] is None and row["provider_ref"] is not None:
            # The answer to our own question was lost; what it said is needed to pay back.
            place = payment["event_id"], payment["id"]
            await self._pool.execute(sql.payments.set_reference, *place, row["provider_ref"])
        outcome = await self._engine.submit(
            SettlePayment(
                **subject(payment),
                result=PaymentResult(row["news"]),
                amount=row["amount"],
                currency=row["currency"],
                actor=f"provider:{row['provider']}",
            )
        )
        if isinstance(outcome, Accepted):
            assert outcome.payment is not None
            await self._finish(row, outcome.payment.status)
        elif outcome.refusal is Refusal.NOT_FOUND:
            await self._give_up(row)
        else:
            log.warning("notice_postponed", provider=row["provider"], refusal=outcome.refusal.code)

    async def _leave(self, row: Any, age: timedelta) -> None:
        if age < UNMATCHED:
            seconds = min(60.0, 2.0 ** row["attempts"])
            await self._pool.execute(sql.payments.postpone_notice, row["provider"], row["id"], seconds)
            return
        await self._give_up(row)

    async def _give_up(self, row: Any) -> None:
        log.error("notice_unmatched", provider=row["provider"], result=row["news"])
        await self._finish(row, "unmatched")

    async def _finish(self, row: Any, result: str) -> None:
        await self._pool.execute(sql.payments.finish_notice, row["provider"], row["id"], result)
