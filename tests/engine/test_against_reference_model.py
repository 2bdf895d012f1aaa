"""The engine on PostgreSQL against a reference model of a few dictionaries, in long random runs: bookings, batches,
retries, event changes, clock jumps, lost connections and crashes."""

import asyncio
import secrets
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct, json, structs

from holdfast import sql
from holdfast.core.commands import (
    Accepted,
    ActOnBooking,
    BestSeats,
    BookingAction,
    Command,
    PlaceHold,
    PoolItem,
    SeatItem,
)
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import EventChange, EventNew, PolicyChange
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.core.states import EventStatus, Verb
from holdfast.core.stock_schemas import PoolChange, PoolNew, SeatGrid, TariffNew
from holdfast.engine import event_editor
from holdfast.engine.auditor import audit_event
from holdfast.engine.engine import Engine
from holdfast.runtime import db
from holdfast.runtime.credentials import create_org
from holdfast.runtime.ids import new_id
from holdfast.worker.reaper import Reaper
from tests.support.flaky_proxy import Cut, FlakyProxy
from tests.support.harness import IS_LONG, fresh_database
from tests.support.reference_model import (
    EVENT_START,
    FLOOR_CAPACITY,
    LABELS,
    NUMBERS,
    PRICES,
    ROWS,
    SEAT_PRICE,
    START,
    TAKING,
    TAX_PERCENT,
    TIMED,
    Model,
)

T = TypeVar("T")

STATUSES = ["held", "payment_submitted", "confirmed", "rejected", "expired", "cancelled", "refunded", "completed"]
EXAMPLES, STEPS = (40 if IS_LONG else 8), 25
STEP_SECONDS = 60


class BookingRead(Struct):
    id: bytes
    total: int
    expires_at: datetime | None


class Order(Struct, frozen=True):
    """A request for a new booking."""

    user: str
    items: tuple[SeatItem | PoolItem, ...] = ()
    best_available: BestSeats | None = None
    staff: bool = True


class ActionRequest(Struct, frozen=True):
    """A request about an order that was accepted, or may yet be accepted in the same batch."""

    which: int
    verb: BookingAction
    by_owner: bool | None = None


class RepeatedOrder(Struct, frozen=True):
    """An earlier order under the same key, possibly with another body."""

    which: int
    another_body: bool = False


Request = Order | ActionRequest | RepeatedOrder

users = st.sampled_from(["ann", "bob", "cid"])
which = st.integers(0, 50)
floor_items = st.builds(PoolItem, st.just("floor"), st.integers(1, 3), st.sampled_from(sorted(PRICES)))
seat_items = st.lists(st.sampled_from([*LABELS, "Z-9"]).map(SeatItem), min_size=1, max_size=3, unique=True)
baskets = st.one_of(
    seat_items,
    floor_items.map(lambda item: [item]),
    st.tuples(seat_items, floor_items).map(lambda both: [*both[0], both[1]]),
).map(tuple)
orders = st.builds(Order, users, baskets, staff=st.booleans())
best_orders = st.builds(
    Order, users, best_available=st.builds(BestSeats, st.just("hall"), st.integers(1, 4), adjacent=st.booleans())
)
# A batch loads what these two need to revive a booking only for their own commands.
verbs = st.sampled_from([verb for verb in Verb if verb not in (Verb.SETTLE, Verb.SUBMIT)])
action_requests = st.builds(ActionRequest, which, verbs, st.sampled_from([None, None, True, False]))
repeated_orders = st.builds(RepeatedOrder, which, st.booleans())
request_lists = st.lists(
    st.one_of(orders, best_orders, action_requests, action_requests, repeated_orders), min_size=1, max_size=6
)
policies = st.builds(
    PolicyChange,
    hold_seconds=st.sampled_from([60, 600]),
    extend_seconds=st.sampled_from([0, 300]),
    max_hold_seconds=st.sampled_from([30, 900]),
    max_units_per_user=st.sampled_from([None, None, 5]),
    one_booking_per_user=st.sampled_from([False, False, True]),
    confirm_at_once=st.sampled_from([False, False, False, True]),
    min_units=st.sampled_from([None, None, None, 2]),
    max_units=st.sampled_from([None, None, None, 3]),
    box_office=st.booleans(),
)


class EventLifecycle(RuleBasedStateMachine):
    """One event of an org of its own, from its creation to its audit."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.orders: list[PlaceHold] = []
        self.refused: set[bytes] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work with a timeout."""

        async def bounded() -> T:
            async with asyncio.timeout(STEP_SECONDS):
                return await work

        return self.runner.run(bounded())

    @initialize(
        policy=policies,
        published=st.sampled_from([*[True] * 7, False]),
        opens_after=st.sampled_from([None, None, None, 60]),
    )
    def create_event(self, policy: PolicyChange, published: bool, opens_after: int | None) -> None:
        opens_at = None if opens_after is None else START + timedelta(seconds=opens_after)
        self.model = Model(policy, opens_at)
        self.run(self._create_event(policy))
        if published:
            self.publish_event()

    async def _create_event(self, policy: PolicyChange) -> None:
        self.observer = await db.connect(self.url)
        self.locker = await db.connect(self.url)
        await self._set_clock()
        org = await create_org(db.Database(self.observer), f"org-{secrets.token_hex(8)}")
        assert org is not None
        self.org = org
        factor = 0 if self.model.is_free else 1
        tariffs = [TariffNew(code=code, price=price * factor) for code, price in PRICES.items()]
        new_event = EventNew(
            title="Friday night",
            starts_at=EVENT_START,
            sales_open_at=self.model.opens_at,
            currency="EUR",
            tax_bps=TAX_PERCENT * 100,
            policy=policy,
            pools=[
                PoolNew(
                    code="hall",
                    seats=SeatGrid(rows=ROWS, numbers=NUMBERS),
                    tariffs=[TariffNew(code="full", price=SEAT_PRICE * factor)],
                ),
                PoolNew(code="floor", capacity=FLOOR_CAPACITY, tariffs=tariffs),
            ],
        )
        self.event = await event_editor.create_event(db.Database(self.observer), org, new_event, "the org")
        await self._start_engine()

    async def _start_engine(self) -> None:
        self.proxy = FlakyProxy(self.url)
        self.engine = Engine(await self.proxy.open(), lanes=1)
        before = asyncio.all_tasks()
        self.engine.start()
        self.engine_tasks = asyncio.all_tasks() - before

    async def _crash(self, waiting: Sequence["asyncio.Future[Outcome]"]) -> None:
        """End the process in the middle of its work, and start another one."""
        await self.proxy.close()
        for future in (*self.engine_tasks, *waiting):
            future.cancel()
        await asyncio.gather(*self.engine_tasks, *waiting, return_exceptions=True)
        await self._start_engine()

    async def _set_clock(self) -> None:
        await self.observer.execute(
            "CREATE OR REPLACE FUNCTION holdfast_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
            f"AS $$ SELECT timestamptz '{self.model.now.isoformat()}' $$"
        )

    def command(self, request: Request) -> Command:
        if isinstance(request, Order):
            key, body = secrets.token_bytes(16), secrets.token_bytes(16)
            order = PlaceHold(
                event=self.event,
                org=self.org,
                booking=new_id(),
                user=request.user,
                actor="a buyer",
                request_key=key,
                fingerprint=body,
                items=request.items,
                best_available=request.best_available,
                staff=request.staff,
            )
            self.orders.append(order)
            return order
        known = [
            order for order in self.orders if isinstance(request, RepeatedOrder) or order.booking not in self.refused
        ]
        if not known:
            return ActOnBooking(event=self.event, org=self.org, booking=new_id(), verb=Verb.CONFIRM, actor="a clerk")
        order = known[request.which % len(known)]
        if isinstance(request, RepeatedOrder):
            body = secrets.token_bytes(16) if request.another_body else order.fingerprint
            return structs.replace(order, booking=new_id(), fingerprint=body)
        owner = {None: None, True: order.user, False: "somebody else"}[request.by_owner]
        return ActOnBooking(
            event=self.event, org=self.org, booking=order.booking, verb=request.verb, actor="a clerk", owner=owner
        )

    def send(self, *requests: Request) -> None:
        commands = [self.command(request) for request in requests]
        self.compare(commands, self.run(self._outcomes(commands)))

    def submit(self, commands: Sequence[Command]) -> list["asyncio.Future[Outcome]"]:
        return [asyncio.ensure_future(self.engine.submit(command)) for command in commands]

    async def _outcomes(self, commands: Sequence[Command]) -> list[Outcome]:
        return await asyncio.gather(*self.submit(commands))

    def compare(self, commands: Sequence[Command], outcomes: Sequence[Outcome], *, times: int = 1) -> None:
        """`times` says how often the engine decided the batch before its answers arrived."""
        for _ in range(times):
            expected = self.model.run_batch(commands, outcomes)
        assert [_booking_or_refusal(outcome) for outcome in outcomes] == expected
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, Accepted):
                self._check_answer(command, outcome)
        self.refused = {order.booking for order in self.orders} - set(self.model.bookings)

    def _check_answer(self, command: Command, outcome: Accepted) -> None:
        expected = self.model.bookings[outcome.booking.id]
        assert (outcome.booking.user, outcome.booking.total) == (expected.user, expected.total)
        assert outcome.replayed is (isinstance(command, PlaceHold) and command.booking != outcome.booking.id)
        assert outcome.now == self.model.now

    @rule(order=orders)
    def hold(self, order: Order) -> None:
        self.send(order)

    @rule(order=best_orders)
    def hold_the_best(self, order: Order) -> None:
        self.send(order)

    @precondition(lambda self: self.model.bookings)
    @rule(which=which, by_owner=st.sampled_from([None, True, False]))
    def extend(self, which: int, by_owner: bool | None) -> None:
        self.send(ActionRequest(which, Verb.EXTEND, by_owner))

    @precondition(lambda self: self.model.bookings)
    @rule(which=which)
    def confirm(self, which: int) -> None:
        self.send(ActionRequest(which, Verb.CONFIRM))

    @precondition(lambda self: self.model.bookings)
    @rule(which=which, by_owner=st.sampled_from([None, True, False]))
    def cancel(self, which: int, by_owner: bool | None) -> None:
        self.send(ActionRequest(which, Verb.CANCEL, by_owner))

    @precondition(lambda self: self.model.bookings)
    @rule(which=which)
    def refund(self, which: int) -> None:
        self.send(ActionRequest(which, Verb.REFUND))

    @precondition(lambda self: self.orders)
    @rule(repeated=repeated_orders)
    def repeat_an_order_under_the_same_key(self, repeated: RepeatedOrder) -> None:
        self.send(repeated)

    @rule(requests=request_lists)
    def send_many_requests_at_once(self, requests: list[Request]) -> None:
        self.send(*requests)

    @rule(requests=request_lists, cut=st.sampled_from([Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT]))
    def lose_the_connection_at_the_commit(self, requests: list[Request], cut: Cut) -> None:
        commands = [self.command(request) for request in requests]
        self.proxy.cut_next(cut)
        outcomes = self.run(self._outcomes(commands))
        assert self.proxy.was_cut.is_set()
        self.compare(commands, outcomes, times=2 if cut is Cut.AFTER_COMMIT else 1)

    @rule(requests=request_lists)
    def lose_the_connection_while_waiting_for_the_lock(self, requests: list[Request]) -> None:
        commands = [self.command(request) for request in requests]
        self.compare(commands, self.run(self._outcomes_after_kill(commands)))

    async def _outcomes_after_kill(self, commands: Sequence[Command]) -> list[Outcome]:
        async with self.locker.transaction():
            await self.locker.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", self.event)
            futures = self.submit(commands)
            for backend in await self._blocked_backends():
                await self.observer.execute("SELECT pg_terminate_backend($1)", backend)
        return await asyncio.gather(*futures)

    async def _blocked_backends(self) -> list[int]:
        while True:
            rows = await self.observer.fetch(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'holdfast-lane' AND wait_event_type = 'Lock'"
            )
            if rows:
                return [row["pid"] for row in rows]
            await asyncio.sleep(0.002)

    @rule(requests=request_lists)
    def crash_while_waiting_for_the_lock_and_retry(self, requests: list[Request]) -> None:
        commands = [self.command(request) for request in requests]
        self.run(self._crash_waiting(commands))
        self.compare(commands, self.run(self._outcomes(commands)))

    async def _crash_waiting(self, commands: Sequence[Command]) -> None:
        async with self.locker.transaction():
            await self.locker.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", self.event)
            futures = self.submit(commands)
            await self._blocked_backends()
            await self._crash(futures)

    @rule(requests=request_lists)
    def crash_after_the_commit_and_retry(self, requests: list[Request]) -> None:
        commands = [self.command(request) for request in requests]
        self.run(self._crash_committed(commands))
        self.compare(commands, self.run(self._outcomes(commands)), times=2)

    async def _crash_committed(self, commands: Sequence[Command]) -> None:
        self.proxy.cut_next(Cut.SILENCE_AFTER_COMMIT)
        futures = self.submit(commands)
        await self.proxy.was_cut.wait()
        assert not any(future.done() for future in futures)
        await self._crash(futures)

    @rule()
    def restart(self) -> None:
        self.run(self._crash([]))

    @rule(seconds=st.sampled_from([1, 30, 59, 60, 300, 600, 900]))
    def let_time_pass(self, seconds: int) -> None:
        self.model.now += timedelta(seconds=seconds)
        self.run(self._set_clock())

    @rule()
    def sweep(self) -> None:
        assert self.run(self.engine.sweep(self.event)) == self.model.sweep()

    @rule()
    def run_the_reaper(self) -> None:
        self.run(self._reap())
        self.model.sweep()

    async def _reap(self) -> None:
        reaper = Reaper(lambda: db.connect_lane(self.url))
        await reaper.run_once()
        await reaper.close()

    @rule()
    def publish_event(self) -> None:
        self._set_status(EventStatus.ACTIVE, allowed={"draft", "active"})

    @precondition(lambda self: len(self.orders) > 6)
    @rule()
    def complete_event(self) -> None:
        self._set_status(EventStatus.COMPLETED, allowed={"active", "completed"})

    @precondition(lambda self: len(self.orders) > 6)
    @rule()
    def cancel_event(self) -> None:
        self._set_status(EventStatus.CANCELLED, allowed={"draft", "active", "cancelled"})

    def _set_status(self, status: EventStatus, allowed: set[str]) -> None:
        refusal = self.attempt(
            event_editor.set_status(db.Database(self.observer), self.org, self.event, status, "the org")
        )
        expected = Refusal.EVENT_NOT_ON_SALE if self.model.event == "draft" else Refusal.EVENT_ENDED
        assert refusal is (None if self.model.event in allowed else expected)
        if refusal is None and self.model.event != status:
            self.model.event = status.value
            self.model.entries += 1

    @rule(capacity=st.integers(0, 9))
    def change_the_capacity(self, capacity: int) -> None:
        self.sweep()
        in_use = self.model.taken(*TAKING)[1] > capacity
        self._change(
            EventChange(pools=[PoolChange(code="floor", capacity=capacity)]), in_use and Refusal.CAPACITY_IN_USE
        )
        if not in_use and self.model.event in ("draft", "active"):
            self.model.capacity = capacity

    @rule(label=st.sampled_from(LABELS))
    def block_a_seat(self, label: str) -> None:
        self.sweep()
        taken = label in self.model.taken(*TAKING)[0]
        self._change(EventChange(block_seats=[label]), taken and Refusal.SEAT_TAKEN)
        if not taken and self.model.event in ("draft", "active"):
            self.model.blocked.add(label)

    @rule(is_limited=st.booleans())
    def limit_users_to_one_booking(self, is_limited: bool) -> None:
        self._change(EventChange(policy=PolicyChange(one_booking_per_user=is_limited)), False)
        if self.model.event in ("draft", "active"):
            self.model.policy = structs.replace(self.model.policy, one_booking_per_user=is_limited)

    @precondition(lambda self: self.model.blocked)
    @rule()
    def unblock_the_seats(self) -> None:
        self._change(EventChange(unblock_seats=sorted(self.model.blocked)), False)
        if self.model.event in ("draft", "active"):
            self.model.blocked.clear()

    def _change(self, change: EventChange, refusal_if_open: Refusal | bool) -> None:
        database = db.Database(self.observer)
        refusal = self.attempt(event_editor.change_event(database, self.org, self.event, change, "the org"))
        expected = (refusal_if_open or None) if self.model.event in ("draft", "active") else Refusal.EVENT_ENDED
        assert refusal is expected
        self.model.entries += refusal is None

    def attempt(self, work: Awaitable[None]) -> Refusal | None:
        async def run_or_refuse() -> Refusal | None:
            try:
                await work
            except RefusedError as error:
                return error.refused.refusal
            return None

        return self.run(run_or_refuse())

    @invariant()
    def bookings_match_the_model(self) -> None:
        for status in STATUSES:
            rows = self.run(
                self.observer.fetch(
                    *sql.reads.bookings(
                        org=self.org,
                        event=self.event,
                        user=None,
                        status=status,
                        after=None,
                        limit=200,
                        lines_max=10_000,
                        reference=None,
                    )
                )
            )
            read = [json.decode(row["booking"], type=BookingRead) for row in rows]
            found = {booking.id: (booking.total, booking.expires_at) for booking in read}
            assert found == {
                id_: (booking.total, booking.expires_at)
                for id_, booking in self.model.bookings.items()
                if self.model.visible_status(booking) == status
            }

    @invariant()
    def pool_counters_match_the_model(self) -> None:
        stored = "SELECT code, capacity, held, sold FROM pool WHERE event_id = $1"
        held, sold = self.model.taken(*TIMED), self.model.taken("confirmed", "completed")
        assert self._counts(stored) == self._expected(held, sold)
        due = [booking for booking in self.model.bookings.values() if self.model.is_due(booking)]
        due_seats, due_floor = {seat for booking in due for seat in booking.seats()}, sum(b.floor() for b in due)
        assert self._counts(sql.reads.availability) == self._expected((held[0] - due_seats, held[1] - due_floor), sold)

    def _counts(self, statement: str) -> dict[str, tuple[int, int, int]]:
        rows = self.run(self.observer.fetch(statement, self.event))
        return {row["code"]: (row["capacity"], row["held"], row["sold"]) for row in rows}

    def _expected(self, held: tuple[set[str], int], sold: tuple[set[str], int]) -> dict[str, tuple[int, int, int]]:
        hall = len(LABELS) - len(self.model.blocked)
        return {"hall": (hall, len(held[0]), len(sold[0])), "floor": (self.model.capacity, held[1], sold[1])}

    @invariant()
    def seat_states_match_the_model(self) -> None:
        rows = self.run(self.observer.fetch(sql.reads.seats, self.event))
        states = dict.fromkeys(LABELS, "free") | dict.fromkeys(self.model.blocked, "blocked")
        for booking in self.model.bookings.values():
            status = self.model.visible_status(booking)
            state = "held" if status in TIMED else "sold" if status in TAKING else None
            states |= dict.fromkeys(booking.seats(), state) if state else {}
        assert {row["label"]: row["state"] for row in rows} == states

    @invariant()
    def the_journal_has_one_entry_for_every_change(self) -> None:
        statement = "SELECT event.version, (SELECT count(*) FROM journal WHERE event_id = $1) FROM event WHERE id = $1"
        (row,) = self.run(self.observer.fetch(statement, self.event))
        assert tuple(row) == (self.model.entries, self.model.entries)

    def teardown(self) -> None:
        try:
            if hasattr(self, "proxy"):
                self.run(self._end())
        finally:
            self.runner.close()

    async def _end(self) -> None:
        await self.engine.close()
        await self.proxy.close()
        findings = (await audit_event(db.Database(self.observer), self.event)).findings
        await self.observer.close()
        await self.locker.close()
        assert findings == []


def _booking_or_refusal(outcome: Outcome) -> object:
    return outcome.refusal if isinstance(outcome, Refused) else outcome.booking.id


@pytest.fixture(scope="module")
def shared_database(postgres: str) -> Iterator[str]:
    with fresh_database(postgres) as url:
        yield url


def test_the_engine_always_agrees_with_the_model(shared_database: str) -> None:
    class LifecycleInDatabase(EventLifecycle):
        url = shared_database

    run_settings = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(LifecycleInDatabase, settings=run_settings)
