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
from holdfast.payments.provider import Notice, Provider, ProviderError, ProviderRefusedError, find_provider
from holdfast.runtime import ids
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import FairQueue
from holdfast.runtime.lease_queue import LeaseQueue

log = structlog.get_logger()

# How long the process that stored or claimed a notice has it to itself.
LEASE_SECONDS: Final = 5
# How long we wait for the effect before we answer the provider.
EFFECT_SECONDS: Final = 2
# How many notices of one org a worker works on at the same time.
CLAIM_MAX: Final = 10
RETRIES: Final = Backoff.exponential(1, 60)
# The engine may be unable to settle a payment, for example because its event stays locked. This is about money, so the
# notice stays due until it takes effect, and after some time each attempt raises an alarm.
STUCK_RETRIES: Final = Backoff.exponential(1, 300)
STUCK_AFTER: Final = timedelta(minutes=15)
# A notice may arrive before the provider's reference of its payment is stored, but not by this much.
MATCH_TIMEOUT: Final = timedelta(minutes=10)
# How long we ask a provider that does not answer which payment a notice is about.
QUESTION_TIMEOUT: Final = timedelta(days=1)

# Notices about these may name only the provider's own charge.
_OF_CHARGES: Final = frozenset(
    {
        PaymentResult.REFUND_FAILED,
        PaymentResult.DISPUTED,
        PaymentResult.DISPUTE_WON,
        PaymentResult.DISPUTE_LOST,
    }
)


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

    @property
    def is_of_charge(self) -> bool:
        return self.payment is None and self.provider_ref is not None and self.result in _OF_CHARGES

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
        self._lease_queue = LeaseQueue(
            name="inbox",
            row_type=StoredNotice,
            claim_statement=sql.payments.claim_notices,
            claim_max=CLAIM_MAX,
            lease_seconds=LEASE_SECONDS,
            label=lambda notice: f"{notice.provider}:{notice.id}",
            order_key=_subject,
        )
        # We learn the org of a notice when we find its payment. Notices without an org share one place.
        self.queue = FairQueue(
            self._lease_queue, sql.payments.orgs_with_waiting_notices, database.shared, self._process
        )

    async def receive(self, provider: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Store a notice and act on it. Returns False if it was stored before, and raises `NoticeError` if it is not
        the provider's."""
        notice = self._providers[provider].verify(headers, body)
        stored = await self._store(provider, notice, body)
        if stored is not None and notice.result is not None:
            task = asyncio.create_task(self._lease_queue.work_on([stored], self._process))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.wait({task}, timeout=EFFECT_SECONDS)
        return stored is not None

    async def close(self) -> None:
        await self.queue.close()
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
            await self._settle_or_postpone(notice, found)
        elif notice.is_of_charge:
            await self._process_charge_notice(notice)
        elif notice.age < MATCH_TIMEOUT:
            await self._postpone(notice, RETRIES)
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

    async def _process_charge_notice(self, notice: StoredNotice) -> None:
        """Ask the provider which payment the charge is for. Another product of the merchant may have made it."""
        try:
            found = await self._find_payment_of_charge(notice)
        except (ProviderError, ProviderRefusedError) as error:
            log.warning("notice_question_failed", provider=notice.provider, error=type(error).__name__)
            if notice.age < QUESTION_TIMEOUT:
                await self._postpone(notice, RETRIES)
            else:
                await self._finish_unmatched(notice)
            return
        if found is None:
            await self._finish(notice, "unrelated")
        else:
            await self._settle_or_postpone(notice, found)

    async def _find_payment_of_charge(self, notice: StoredNotice) -> PaymentRow | None:
        assert notice.provider_ref is not None
        provider = find_provider(self._providers, notice.provider)
        payment = await provider.find_payment(notice.provider_ref)
        named = ids.parse_payment_id(payment) if payment else None
        if named is None:
            return None
        found = await self._database.event(named[0]).row(PaymentRow, sql.payments.payment, *named)
        return found if found is not None and found.payment.provider == notice.provider else None

    async def _settle_or_postpone(self, notice: StoredNotice, found: PaymentRow) -> None:
        try:
            is_settled = await self._settle(notice, found)
        except Exception:
            await self._postpone_stuck(notice, found)
            raise
        if not is_settled:
            await self._postpone_stuck(notice, found)

    async def _settle(self, notice: StoredNotice, found: PaymentRow) -> bool:
        """Return whether the notice is finished: it took effect, or it never will."""
        if found.payment.provider_ref is None and notice.provider_ref is not None:
            # The provider's answer to `start` was lost, and a refund needs the reference.
            await self._database.event(found.event).execute(
                sql.payments.set_reference, found.event, found.payment.id, notice.provider_ref
            )
        assert notice.result is not None, "only notices with a result are ever due"
        actor = f"provider:{notice.provider}"
        outcome = await self._engine.submit(found.settle_command(actor, notice.result, notice.amount, notice.currency))
        if notice.result is not PaymentResult.FAILED:
            found.alarm_if_in_review(outcome)
        if isinstance(outcome, Accepted):
            assert outcome.payment is not None
            await self._finish(notice, outcome.payment.status)
        elif outcome.refusal is Refusal.NOT_FOUND:
            await self._finish_unmatched(notice)
        else:
            log.warning("notice_postponed", provider=notice.provider, refusal=outcome.refusal.code)
            return False
        return True

    async def _postpone_stuck(self, notice: StoredNotice, found: PaymentRow) -> None:
        if notice.age >= STUCK_AFTER:
            log.error("notice_stuck", provider=notice.provider, notice=notice.id, payment=found.public_id)
        await self._postpone(notice, STUCK_RETRIES, found.org)

    async def _postpone(self, notice: StoredNotice, backoff: Backoff, org: bytes | None = None) -> None:
        seconds = backoff.seconds_after(notice.attempts + 1)
        await self._database.shared.execute(sql.payments.postpone_notice, notice.provider, notice.id, seconds, org)

    async def _finish_unmatched(self, notice: StoredNotice) -> None:
        log.error("notice_unmatched", provider=notice.provider, notice=notice.id, result=notice.result)
        await self._finish(notice, "unmatched")

    async def _finish(self, notice: StoredNotice, effect: str) -> None:
        await self._database.shared.execute(sql.payments.finish_notice, notice.provider, notice.id, effect)


def _subject(notice: StoredNotice) -> Hashable:
    """Notices about one payment take effect in the order they arrived."""
    return notice.provider, notice.payment or notice.provider_ref
