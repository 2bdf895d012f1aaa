"""Payments without HTTP: an engine, a fake gateway, and the worker's jobs, run when the test says so."""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct, json, structs

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, BookingAction, Command, Remedy, ResolvePayment, SettlePayment, StartPayment
from holdfast.core.payment import Payment, PaymentResult
from holdfast.engine.engine import Engine
from holdfast.payments.inbox import Inbox
from holdfast.payments.provider import CheckoutRequest, Notice, NoticeError, Provider, ProviderStatus, StartedCheckout
from holdfast.payments.reconciler import Reconciler
from holdfast.payments.refunds import Refunder
from holdfast.runtime import db, ids
from holdfast.runtime.fair_queue import FairQueue
from tests.support import engine_harness
from tests.support.engine_harness import ACTOR, EventHandle, lane_connection, new_event

POOLS: Final = [
    {"code": "stalls", "seats": {"rows": ["A"], "numbers": 10}, "tariffs": [{"code": "full", "price": 3000}]},
    {"code": "places", "capacity": 100, "tariffs": [{"code": "full", "price": 1500}]},
]


class NoticeBody(Struct, frozen=True, kw_only=True):
    """The body of a notice from the fake gateway."""

    id: str
    result: PaymentResult | None = PaymentResult.CAPTURED
    ref: str | None = None
    payment: str | None = None
    amount: int | None = None
    currency: str | None = None


class FakeGateway:
    """A provider in memory. `failures` lists the errors of the next calls by name; a failure of `refund after` happens
    once the refund is under way. After `break_on_next_call` every call about the next payment fails. Refunds of
    `hanging_refs` wait for `release`."""

    def __init__(self) -> None:
        self.requests: dict[str, CheckoutRequest] = {}
        self.results: dict[str, PaymentResult | None] = {}
        self.amounts: dict[str, tuple[int, str]] = {}
        self.refunds: dict[str, str] = {}
        self.payments_of_charges: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.failures: dict[str, list[BaseException]] = defaultdict(list)
        self.break_on_next_call = False
        self.broken_ref: str | None = None
        self.is_closed = False
        self.hanging_refs: set[str | None] = set()
        self.release = asyncio.Event()

    async def start(self, request: CheckoutRequest) -> StartedCheckout:
        ref = f"gw_{request.payment.rpartition('_')[2]}"
        self.requests[ref] = request
        self.results.setdefault(ref, None)
        self.amounts.setdefault(ref, (request.amount, request.currency))
        return StartedCheckout(ref, f"https://gateway.example/{ref}")

    def capture(self, ref: str, amount: int | None = None) -> None:
        self.results[ref] = PaymentResult.CAPTURED
        if amount is not None:
            self.amounts[ref] = (amount, self.amounts[ref][1])

    async def look_up(self, ref: str) -> ProviderStatus:
        self._record_call("look_up", ref)
        return self._status(ref)

    async def close(self, ref: str) -> ProviderStatus:
        self._record_call("close", ref)
        self.results[ref] = self.results[ref] or PaymentResult.FAILED
        return self._status(ref)

    async def refund(self, ref: str, key: str) -> None:
        self._record_call("refund", ref)
        if ref in self.hanging_refs:
            await self.release.wait()
        assert self.refunds.setdefault(key, ref) == ref
        self._record_call("refund after", ref)

    async def find_payment(self, ref: str) -> str | None:
        self._record_call("find_payment", ref)
        return self.payments_of_charges.get(ref)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notice:
        if headers.get("signed") != "by the gateway":
            raise NoticeError("not signed")
        return Notice(**json.decode(body))

    async def aclose(self) -> None:
        self.is_closed = True

    def refs_of_calls(self, name: str) -> list[str]:
        return [ref for call, ref in self.calls if call == name]

    def _record_call(self, name: str, ref: str) -> None:
        self.calls.append((name, ref))
        if self.break_on_next_call:
            self.break_on_next_call, self.broken_ref = False, ref
        if ref == self.broken_ref:
            raise RuntimeError("the library of this gateway has a bug")
        if self.failures[name]:
            raise self.failures[name].pop(0)

    def _status(self, ref: str) -> ProviderStatus:
        return ProviderStatus(self.results[ref], *self.amounts[ref])


class QueueDriver:
    """Runs a queue of the worker to its end when the test says so."""

    def __init__(self, queue: FairQueue[Any]) -> None:
        self._queue = queue

    async def run_once(self) -> int:
        """Work on everything that is due, and return how many rows that were."""
        before = self._queue.rows_ended
        await self._queue.run_once()
        await self._queue.wait()
        return self._queue.rows_ended - before


class PaymentHarness:
    """An engine, a fake gateway, and the payment jobs of a worker, which run when the test calls them."""

    def __init__(self, database: str, connection: db.Connection, pool: db.Pool, event: EventHandle) -> None:
        self.database = database
        self.connection = connection
        self.pool = pool
        self.event = event
        self.gateway = FakeGateway()
        self.engine = Engine(database, 1)
        self.engine.start()
        self.connect_providers({"gateway": self.gateway})

    def connect_providers(self, providers: Mapping[str, Provider]) -> None:
        database = db.Database(self.pool)
        self.providers = providers
        self.inbox = Inbox(database, self.engine, providers)
        self.notice_retries = self.new_notice_retries()
        self.refunds = self.new_refunds()
        self.reconciler = QueueDriver(Reconciler(database, self.engine, providers).queue)

    def new_notice_retries(self) -> QueueDriver:
        return QueueDriver(Inbox(db.Database(self.pool), self.engine, self.providers).queue)

    def new_refunds(self) -> QueueDriver:
        return QueueDriver(Refunder(db.Database(self.pool), self.engine, self.providers).queue)

    async def restart_engine(self) -> None:
        await self.engine.close()
        self.engine = Engine(self.database, 1)
        self.engine.start()
        self.connect_providers({"gateway": self.gateway})

    async def hold(self, *seats: str, user: str = "u-1", email: str | None = "buyer@example.org") -> Booking:
        command = structs.replace(engine_harness.new_hold_command(self.event, *seats, user=user), email=email)
        return (await self.execute(command)).booking

    async def execute(self, command: Command) -> Accepted:
        outcome = await self.engine.submit(command)
        assert isinstance(outcome, Accepted), outcome
        return outcome

    async def apply(self, booking: Booking, verb: BookingAction) -> Booking:
        return (await self.execute(engine_harness.new_action_command(self.event, booking.id, verb))).booking

    async def start_payment(self, booking: Booking, *, at_provider: bool = True) -> Payment:
        """Start a payment of the booking. Unless `at_provider`, it gets no provider reference."""
        id_ = ids.new_id()
        command = StartPayment(
            event=self.event.id,
            org=self.event.org,
            booking=booking.id,
            payment=id_,
            provider="gateway",
            actor=ACTOR,
            request_key=id_,
            fingerprint=id_,
        )
        payment = (await self.execute(command)).payment
        assert payment is not None
        if not at_provider:
            return payment
        started = await self.gateway.start(self._checkout_request(payment))
        await self.pool.execute(sql.payments.set_started, self.event.id, id_, started.ref, started.checkout_url)
        return structs.replace(payment, provider_ref=started.ref)

    def _checkout_request(self, payment: Payment) -> CheckoutRequest:
        id_ = self.payment_text(payment)
        return CheckoutRequest(
            payment=id_, amount=payment.amount, currency=payment.currency, description="", return_url=""
        )

    def payment_text(self, payment: Payment) -> str:
        return ids.format_payment_id(self.event.id, payment.id)

    async def deliver_notice(
        self, payment: Payment, result: PaymentResult = PaymentResult.CAPTURED, /, **changes: Any
    ) -> bool:
        """Deliver the gateway's notice about the payment, under the gateway's own reference."""
        fields: dict[str, Any] = {"ref": payment.provider_ref, "amount": payment.amount, "currency": payment.currency}
        body = NoticeBody(**{"id": secrets.token_hex(8), "result": result, **fields, **changes})
        return await self.inbox.receive("gateway", {"signed": "by the gateway"}, json.encode(body))

    async def settle(
        self, payment: Payment, booking: Booking, result: PaymentResult = PaymentResult.CAPTURED
    ) -> Payment:
        """Settle the payment directly, without the inbox."""
        command = SettlePayment(
            event=self.event.id, org=self.event.org, booking=booking.id, payment=payment.id, actor=ACTOR, result=result,
            amount=payment.amount, currency=payment.currency,
        )  # fmt: skip
        settled = (await self.execute(command)).payment
        assert settled is not None
        return settled

    async def resolve(self, payment: Payment, booking: Booking, remedy: Remedy) -> Payment:
        command = ResolvePayment(
            event=self.event.id, org=self.event.org, booking=booking.id, payment=payment.id, actor=ACTOR, remedy=remedy
        )
        resolved = (await self.execute(command)).payment
        assert resolved is not None
        return resolved

    async def row(self, payment: Payment) -> Any:
        return await self.connection.fetchrow(
            "SELECT *, extract(epoch FROM due_at - holdfast_now())::float AS due_seconds FROM payment WHERE id = $1",
            payment.id,
        )

    async def payment_state(self, payment: Payment) -> tuple[str, str | None]:
        row = await self.row(payment)
        return row["status"], row["outcome"]

    async def status(self, booking: Booking) -> str:
        status: str = await self.connection.fetchval("SELECT status FROM booking WHERE id = $1", booking.id)
        return status

    async def journal_kinds(self, booking: Booking) -> list[str]:
        rows = await self.connection.fetch("SELECT kind FROM journal WHERE booking_id = $1 ORDER BY number", booking.id)
        return [row["kind"] for row in rows]

    async def notices(self) -> list[Any]:
        found: list[Any] = await self.connection.fetch("SELECT * FROM payment_notice ORDER BY received_at")
        return found

    async def now(self) -> datetime:
        at: datetime = await self.connection.fetchval("SELECT holdfast_now()")
        return at

    async def advance_clock(self, seconds: float) -> None:
        """Advance the frozen clock."""
        await freeze_clock(self.connection, await self.now() + timedelta(seconds=seconds))

    async def freeze_clock(self, at: datetime) -> None:
        await freeze_clock(self.connection, at)


async def freeze_clock(connection: db.Connection, at: datetime) -> None:
    """Freeze the clock of the database at this moment."""
    await connection.execute(
        "CREATE OR REPLACE FUNCTION holdfast_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
        f"AS 'SELECT timestamptz ''{at.isoformat()}'''"
    )


@asynccontextmanager
async def payment_harness(database: str, **changes: Any) -> AsyncIterator[PaymentHarness]:
    """A harness around an event of ten seats and a hundred places, with a frozen clock."""
    policy = {"hold_seconds": 60, "extend_seconds": 0, "late_grace_seconds": 120, **changes.pop("policy", {})}
    pool = await db.create_pool(database, 4)
    async with lane_connection(database) as connection:
        event = await new_event(connection, **{"pools": POOLS, "policy": policy, **changes})
        harness = PaymentHarness(database, connection, pool, event)
        await harness.freeze_clock(await harness.now())
        try:
            yield harness
        finally:
            await harness.engine.close()
            async with asyncio.timeout(10):
                await pool.close()
