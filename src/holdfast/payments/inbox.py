"""The inbox of webhook events from payment providers, called notices here.

Holdfast verifies a notice on its raw bytes, stores it once, acts on it and answers. If acting takes too long, fails or
the process dies, the provider still has its answer, and a worker retries the stored notice.
"""

import asyncio
from collections.abc import Hashable, Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.commands import Accepted
from holdfast.core.payment import Payment, PaymentResult
from holdfast.core.refusals import Refusal
from holdfast.engine.engine import Engine
from holdfast.payments.payment_rows import PaymentRow
from holdfast.payments.provider import Notice, Provider
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database
from holdfast.runtime.lease_queue import LeaseQueue

log = structlog.get_logger()

# How long the process that stored or claimed a notice has it to itself.
LEASE_SECONDS: Final = 5
# How long we wait for the effect before we answer the provider.
EFFECT_SECONDS: Final = 2
CLAIM_MAX: Final = 100
RETRIES: Final = Backoff.exponential(1, 60)
# A notice may arrive before the provider's reference of its payment is stored, but not by this much.
MATCH_TIMEOUT: Final = timedelta(minutes=10)


class StoredNotice(Struct, frozen=True, kw_only=True):
    """`attempts` counts claims, so it is zero for the request that stored the notice."""

    provider: str
    id: str
    result: PaymentResult | None
    provider_ref: str | None
    payment: str | None
    amount: int | None
    currency: str | None
    attempts: int
    received_at: datetime
    age: timedelta = timedelta(0)

    def matches(self, payment: Payment) -> bool:
        """Whether the provider and its reference, as far as both sides know it, are those of the payment."""
        is_same_ref = None in (payment.provider_ref, self.provider_ref) or payment.provider_ref == self.provider_ref
        return payment.provider == self.provider and is_same_ref


class Inbox:
    def __init__(self, database: Database, engine: Engine, providers: Mapping[str, Provider]) -> None:
        self._database = database
        self._engine = engine
        self._providers = providers
        self._tasks: set[asyncio.Task[object]] = set()
        self._queue = LeaseQueue(
            name="inbox",
            row_type=StoredNotice,
            claim_statement=sql.payments.claim_notices,
            claim_max=CLAIM_MAX,
            lease_seconds=LEASE_SECONDS,
            label=lambda notice: f"{notice.provider}:{notice.id}",
            order_key=_subject,
        )

    async def receive(self, provider: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Store a notice and act on it. Returns False if it was stored before, and raises `NoticeError` if it is not
        the provider's."""
        notice = self._providers[provider].verify(headers, body)
        stored = await self._store(provider, notice, body)
        if stored is not None and notice.result is not None:
            task = asyncio.create_task(self._queue.work_on([stored], self._process))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.wait({task}, timeout=EFFECT_SECONDS)
        return stored is not None

    async def run_once(self) -> int:
        """Retry stored notices. Returns how many were due."""
        notices = await self._queue.claim(self._database.shared)
        in_order = sorted(notices, key=lambda notice: notice.received_at)
        return (await self._queue.work_on(in_order, self._process)).rows

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=EFFECT_SECONDS)

    async def _store(self, provider: str, notice: Notice, body: bytes) -> StoredNotice | None:
        return await self._database.shared.row(
            StoredNotice,
            *sql.payments.insert_notice(
                provider=provider,
                id=notice.id,
                body=body,
                result=notice.result,
                provider_ref=notice.ref,
                payment=notice.payment,
                amount=notice.amount,
                currency=notice.currency,
                lease_seconds=LEASE_SECONDS,
            ),
        )

    async def _process(self, notice: StoredNotice) -> None:
        found = await self._find_payment(notice)
        if found is not None:
            await self._settle(notice, found)
        elif notice.age < MATCH_TIMEOUT:
            await self._postpone(notice)
        else:
            await self._finish_unmatched(notice)

    async def _find_payment(self, notice: StoredNotice) -> PaymentRow | None:
        """By our own id if the provider carries it, else by the provider's reference. If the two name different
        payments, the notice matches neither."""
        named = ids.parse_payment_id(notice.payment) if notice.payment else None
        if named is None:
            return await self._database.all_events.row(
                PaymentRow, sql.payments.payment_at_provider, notice.provider, notice.provider_ref
            )
        found = await self._database.event(named[0]).row(PaymentRow, sql.payments.payment, *named)
        return found if found is not None and notice.matches(found.payment) else None

    async def _settle(self, notice: StoredNotice, found: PaymentRow) -> None:
        if found.payment.provider_ref is None and notice.provider_ref is not None:
            # The provider's answer to `start` was lost, and a refund needs the reference.
            await self._database.event(found.event).execute(
                sql.payments.set_reference, found.event, found.payment.id, notice.provider_ref
            )
        assert notice.result is not None, "only notices with a result are ever due"
        actor = f"provider:{notice.provider}"
        outcome = await self._engine.submit(found.settle_command(actor, notice.result, notice.amount, notice.currency))
        if isinstance(outcome, Accepted):
            assert outcome.payment is not None
            await self._finish(notice, outcome.payment.status)
        elif outcome.refusal is Refusal.NOT_FOUND:
            await self._finish_unmatched(notice)
        else:
            # The lease ends soon, and a worker retries.
            log.warning("notice_postponed", provider=notice.provider, refusal=outcome.refusal.code)

    async def _postpone(self, notice: StoredNotice) -> None:
        seconds = RETRIES.seconds_after(notice.attempts + 1)
        await self._database.shared.execute(sql.payments.postpone_notice, notice.provider, notice.id, seconds)

    async def _finish_unmatched(self, notice: StoredNotice) -> None:
        log.error("notice_unmatched", provider=notice.provider, notice=notice.id, result=notice.result)
        await self._finish(notice, "unmatched")

    async def _finish(self, notice: StoredNotice, effect: str) -> None:
        await self._database.shared.execute(sql.payments.finish_notice, notice.provider, notice.id, effect)


def _subject(notice: StoredNotice) -> Hashable:
    """Notices about one payment take effect in the order they arrived."""
    return notice.provider, notice.payment or notice.provider_ref
