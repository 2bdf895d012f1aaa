"""Each metric changes by what has happened, and by nothing else."""

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial

import asyncpg
import httpx
import pytest
from msgspec import convert
from websockets.sync.client import connect as connect_socket

from holdfast import sql
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, Receipt, SubmitReceipt, TransferBooking
from holdfast.core.event_schemas import EventChange, EventNew
from holdfast.core.event_state import OversoldError
from holdfast.core.payment import PaymentResult
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import EventStatus, Verb
from holdfast.engine import lane as lanes
from holdfast.engine.batch import sweep
from holdfast.engine.event_editor import change_event, create_event, set_status
from holdfast.engine.layout_cache import LayoutCache
from holdfast.gate import comparison
from holdfast.gate.entries import EventKeys
from holdfast.notifications.channel import Delivery, UndeliveredError
from holdfast.runtime import db, ids, metrics, supervision
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.instruments import Counter, Gauge, Histogram, Label
from holdfast.runtime.supervision import TaskHealth, keep_running
from holdfast.worker.figures import Figures
from holdfast.worker.gate_check import GateCheck
from holdfast.worker.job import Job, JobLoop
from tests.support.engine_harness import (
    async_test,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_payment_command,
    one_pool,
    poll_until,
)
from tests.support.gate_harness import running_gate
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    running_server,
    wait_until,
)
from tests.support.lane_harness import refusals_of, running_lane, submit_all
from tests.support.payment_harness import PaymentHarness, payment_harness
from tests.support.redis_process import RedisServer, running_redis
from tests.support.relay_harness import insert_deliveries, new_relay

TOKEN = "a-token-for-prometheus"
PATIENCE_SECONDS = 60
# Each buyer has an address, but for a stranger who sends too much.
RATE = 1
STRANGER = "203.0.113.1"

Key = tuple[Label, ...]


class Recorded:
    """What was recorded in this process since the start."""

    def __init__(self) -> None:
        for instrument in metrics.ALL:
            if isinstance(instrument, Counter | Histogram):
                instrument.take()

    def counts(self, counter: Counter) -> Mapping[Key, float]:
        """By labels, and without those that have stayed zero."""
        return {labels: count for labels, count in counter.take().items() if count}

    def observed(self, histogram: Histogram) -> Mapping[Key, tuple[int, float]]:
        """How many values, and their sum."""
        return {labels: (sum(each.counts), each.total) for labels, each in histogram.take().items()}


def value(gauge: Gauge, *labels: str) -> float:
    return gauge.read()[labels]


async def confirm(payments: PaymentHarness, booking: Booking) -> Booking:
    return await payments.apply(booking, Verb.CONFIRM)


def receipt_command(payments: PaymentHarness, booking: Booking) -> SubmitReceipt:
    receipt = Receipt(id=ids.new_id(), hash=ids.new_id(), content_type="image/png", size=1)
    return SubmitReceipt(
        event=payments.event.id, org=payments.event.org, booking=booking.id, payment=ids.new_id(), receipt=receipt,
        actor="user:u-1",
    )  # fmt: skip


@async_test
async def test_bookings_and_payments(database: str) -> None:
    async with payment_harness(database) as payments:
        recorded = Recorded()
        kept = await payments.hold("A-1", "A-2", "A-3")
        failed, expired, transferred = [await payments.hold() for _ in range(3)]
        await payments.advance_clock(20)
        paid = await payments.start_payment(kept)
        await payments.settle(paid, kept)
        await payments.settle(await payments.start_payment(failed), failed, PaymentResult.FAILED)
        await confirm(payments, transferred)
        await payments.execute(
            TransferBooking(
                event=payments.event.id,
                org=payments.event.org,
                booking=transferred.id,
                generation=0,
                user="u-2",
                actor="key:test",
            )
        )
        late = await payments.start_payment(expired)
        await payments.advance_clock(100)
        async with lane_connection(database) as connection:
            assert await sweep(connection, LayoutCache(), payments.event.id) == 2
        await payments.settle(late, expired)
        assert recorded.counts(metrics.TRANSITIONS) == {("held",): 4, ("confirmed",): 3, ("expired",): 2}
        assert recorded.counts(metrics.UNITS) == {("held",): 6, ("confirmed",): 5}
        assert recorded.counts(metrics.TRANSFERS) == {(): 1}
        assert recorded.counts(metrics.PAYMENTS) == {("started",): 3, ("succeeded",): 2, ("failed",): 1}
        # One paid after twenty seconds, and staff confirmed another then. The late payment found no hold.
        assert recorded.observed(metrics.TIME_TO_PAYMENT) == {(): (2, 40)}
        assert recorded.observed(metrics.TIME_TO_REVIEW) == {}
        assert recorded.counts(metrics.HOLD_EXTENSIONS) == {}


@async_test
async def test_refunds_receipts_and_expiries_that_wait(database: str) -> None:
    async with payment_harness(database, policy={"review": "manual", "review_seconds": 3600}) as payments:
        figures = Figures(db.Database(payments.pool), ())
        refunded, disputed, reviewed, waiting, forgotten = [await payments.hold() for _ in range(5)]
        payment = await payments.start_payment(refunded)
        await payments.settle(payment, refunded)
        await payments.apply(refunded, Verb.REFUND)
        await payments.deliver_notice(await payments.start_payment(disputed), PaymentResult.CAPTURED, amount=1)
        recorded = Recorded()
        await payments.advance_clock(10)
        for booking in (reviewed, waiting):
            await payments.execute(receipt_command(payments, booking))
        await payments.advance_clock(30)
        await payments.apply(reviewed, Verb.APPROVE)
        await payments.advance_clock(100)
        await payments.pool.execute(
            "INSERT INTO payment_notice (provider, id, body, due_at) VALUES ('gateway', 'n', '', holdfast_now())"
        )
        await payments.advance_clock(30)
        await figures.run_once()
        assert recorded.observed(metrics.TIME_TO_PAYMENT) == {(): (2, 20)}
        assert recorded.observed(metrics.TIME_TO_REVIEW) == {(): (1, 30)}
        assert (value(metrics.REFUNDS_DUE), value(metrics.REFUNDS_OLDEST)) == (1, 170)
        assert value(metrics.PAYMENTS_IN_REVIEW) == 1
        assert (value(metrics.NOTICES_WAITING), value(metrics.NOTICES_OLDEST)) == (1, 30)
        assert (value(metrics.RECEIPTS_WAITING), value(metrics.RECEIPTS_OLDEST)) == (1, 160)
        # The hold that nobody paid for lasted a minute. Nobody has swept it.
        assert await payments.status(forgotten) == "held"
        assert (value(metrics.REAPER_LAG), value(metrics.LIVE_HOLDS)) == (110, 1)


@async_test
async def test_units_confirmed_at_once_are_no_conversion(database: str) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, preset="registration", pools=[{"code": "places", "capacity": 9}])
        recorded = Recorded()
        assert refusals_of(await submit_all(lane, [new_hold_command(event), new_hold_command(event)])) == []
        assert recorded.counts(metrics.UNITS) == {("confirmed_at_once",): 2}


@async_test
async def test_an_extension_counts_once_if_the_deadline_moves(database: str) -> None:
    async with payment_harness(database, policy={"extend_seconds": 40, "max_hold_seconds": 100}) as payments:
        recorded = Recorded()
        booking, late = [await payments.hold() for _ in range(2)]
        command = new_payment_command(payments.event, booking.id)
        for _ in range(4):
            await payments.execute(command)
        assert recorded.counts(metrics.HOLD_EXTENSIONS) == {("extended",): 1}
        # It has reached the longest time that the policy allows.
        await payments.apply(booking, Verb.EXTEND)
        assert recorded.counts(metrics.HOLD_EXTENSIONS) == {}
        await payments.advance_clock(70)
        await payments.engine.submit(new_payment_command(payments.event, late.id))
        await payments.engine.submit(new_action_command(payments.event, late.id, Verb.EXTEND))
        await confirm(payments, booking)
        # This booking needs no payment any more, and no extension.
        await payments.engine.submit(new_payment_command(payments.event, booking.id))
        await payments.engine.submit(new_action_command(payments.event, booking.id, Verb.EXTEND))
        assert recorded.counts(metrics.HOLD_EXTENSIONS) == {("expired_before_checkout",): 2, ("refused",): 1}
        await payments.engine.close()
        await payments.engine.submit(new_payment_command(payments.event, booking.id))
        assert recorded.counts(metrics.HOLD_EXTENSIONS) == {("failed",): 1}


@async_test
async def test_lanes_batches_and_commits(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", 0.3)
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, pools=one_pool(3))
        recorded = Recorded()
        await submit_all(lane, [new_hold_command(event) for _ in range(3)])
        # These are sold out, so their batch commits nothing.
        await submit_all(lane, [new_hold_command(event) for _ in range(4)])
        assert recorded.observed(metrics.BATCH_COMMANDS) == {(): (2, 7)}
        assert recorded.observed(metrics.LANE_WAIT_SECONDS)[()][0] == 2
        assert recorded.observed(metrics.COMMIT_SECONDS)[()][0] == 1
        async with connection.transaction():
            await connection.fetch(sql.engine.lock, [event.id])
            outcomes = await submit_all(lane, [new_hold_command(event) for _ in range(5)])
        assert refusals_of(outcomes) == [Refusal.BUSY] * 5
        assert recorded.counts(metrics.LOCK_TIMEOUTS) == {(): 5}


@async_test
async def test_batches_of_an_event_that_another_process_has_locked(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a connection of its own, apart from its lane, and half a second for each attempt."""
    monkeypatch.setattr(lanes, "LOCKED_SECONDS", PATIENCE_SECONDS)
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, pools=one_pool(9))
        recorded = Recorded()
        commands: list[tuple[int, float]] = []
        waits: list[tuple[int, float]] = []

        async def has_batches(count: int) -> bool:
            commands.extend(recorded.observed(metrics.BATCH_COMMANDS).values())
            waits.extend(recorded.observed(metrics.LANE_WAIT_SECONDS).values())
            assert sum(batches for batches, _ in commands) == sum(batches for batches, _ in waits)
            return sum(batches for batches, _ in waits) >= count

        async with connection.transaction():
            await connection.fetch(sql.engine.lock, [event.id])
            first = lane.submit(new_hold_command(event))
            await poll_until(partial(has_batches, 2), PATIENCE_SECONDS)
            later = [lane.submit(new_hold_command(event)) for _ in range(3)]
            await poll_until(partial(has_batches, 3), PATIENCE_SECONDS)
        assert refusals_of(await asyncio.gather(first, *later)) == []
        # The lane had the first command, and the event had it twice, the second time with the others.
        assert sum(count for _, count in commands) >= 1 + 1 + 4
        assert sum(seconds for _, seconds in waits) >= 0.5


# Makes the first batch fail, or every batch that has a booking of the user `bad`.
TROUBLE = """
    CREATE SEQUENCE attempts;
    CREATE FUNCTION make_trouble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {action}; RETURN new; END $$;
    CREATE TRIGGER trouble BEFORE INSERT ON booking FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION make_trouble();"""
ONCE = "IF nextval('attempts') = 1 THEN {action}; END IF"
BAD = "new.user_id = 'bad'"


@pytest.mark.parametrize(
    ("condition", "action", "failures", "violations"),
    [
        ("true", ONCE.format(action="RAISE EXCEPTION USING ERRCODE = '40P01'"), {("conflict",): 1}, 0),
        ("true", ONCE.format(action="PERFORM pg_terminate_backend(pg_backend_pid())"), {("connection_lost",): 1}, 0),
        ("true", "RAISE EXCEPTION USING ERRCODE = '53100'", {("exhausted",): 1}, 0),
        # The batch of four, one of its halves, and the command itself.
        (BAD, "RAISE EXCEPTION 'a bug'", {("error",): 3}, 0),
        (BAD, "RAISE EXCEPTION USING ERRCODE = '23514'", {("error",): 3}, 3),
        (BAD, "UPDATE pool SET held = 1000", {("error",): 3}, 3),
    ],
    ids=["conflict", "lost", "exhausted", "error", "check", "never_oversold"],
)
@async_test
async def test_failures_of_batches(
    database: str, condition: str, action: str, failures: dict[Key, float], violations: int
) -> None:
    async with lane_connection(database) as connection, running_lane(lambda: db.connect_lane(database)) as lane:
        event = await new_event(connection, pools=one_pool(100))
        await connection.execute(TROUBLE.format(condition=condition, action=action))
        recorded = Recorded()
        commands = [new_hold_command(event, user=user) for user in ("u-1", "u-2", "bad", "u-4")]
        await submit_all(lane, commands)
        assert recorded.counts(metrics.BATCH_FAILURES) == failures
        assert recorded.counts(metrics.INVARIANT_VIOLATIONS) == ({(): violations} if violations else {})


@async_test
async def test_what_the_engine_finds_impossible_counts_outside_of_batches_too(database: str) -> None:
    async with payment_harness(database) as payments:
        await payments.hold()
        await payments.advance_clock(100)
        await payments.pool.execute("UPDATE pool SET held = 0")
        recorded = Recorded()
        async with lane_connection(database) as connection:
            with pytest.raises(OversoldError):
                await sweep(connection, LayoutCache(), payments.event.id)
        assert recorded.counts(metrics.INVARIANT_VIOLATIONS) == {(): 1}


IMPOSSIBLE_ENTRY = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION USING ERRCODE = '23514'; END $$;
    CREATE TRIGGER refusal BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION refuse();"""


@async_test
async def test_changes_of_events_that_would_break_a_promise(database: str) -> None:
    async with lane_connection(database) as connection:
        event, opened = await new_event(connection), db.Database(connection)
        await connection.execute(IMPOSSIBLE_ENTRY)
        recorded = Recorded()
        for change in (
            create_event(opened, event.org, convert(example_event(), EventNew), "key:test"),
            change_event(opened, event.org, event.id, EventChange(title="New"), "key:test"),
            set_status(opened, event.org, event.id, EventStatus.COMPLETED, "key:test"),
        ):
            with pytest.raises(asyncpg.CheckViolationError):
                await change
            assert recorded.counts(metrics.INVARIANT_VIOLATIONS) == {(): 1}


@async_test
async def test_an_order_number_that_is_taken_breaks_no_promise(database: str) -> None:
    async with lane_connection(database) as connection:
        shift = {"order_number": 1042}
        event = await new_event(connection, shift=shift)
        recorded = Recorded()
        with pytest.raises(RefusedError):
            await new_event(connection, event.org, shift=shift)
        assert recorded.counts(metrics.INVARIANT_VIOLATIONS) == {}


@async_test
async def test_a_task_that_dies_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTARTS", Backoff((0.001,)))
    left = [ValueError(), ValueError()]

    async def run() -> None:
        if left:
            raise left.pop()

    recorded = Recorded()
    await keep_running("clumsy", run, TaskHealth(), lambda: None)
    assert recorded.counts(metrics.TASK_FAILURES) == {("clumsy",): 2}


@async_test
async def test_jobs_count_from_the_start_of_their_worker() -> None:
    stopping = asyncio.Event()
    runs = 0

    async def work() -> int:
        nonlocal runs
        runs += 1
        if runs == 3:
            stopping.set()
        return 5

    async def fail() -> int:
        raise ValueError

    began_at = time.time()
    recorded = Recorded()
    loop = JobLoop([Job(name="diligent", run=work, interval_seconds=0), Job(name="lazy", run=fail, interval_seconds=9)])
    started_at = value(metrics.JOB_LAST_SUCCESS, "lazy")
    assert began_at <= started_at <= time.time()
    assert value(metrics.JOB_LAST_SUCCESS, "diligent") >= began_at
    metrics.JOB_LAST_SUCCESS.set(0, "diligent")
    await loop.run(stopping)
    assert recorded.counts(metrics.JOB_RUNS) == {("diligent", "succeeded"): 3, ("lazy", "failed"): 1}
    assert recorded.counts(metrics.JOB_ITEMS) == {("diligent",): 15}
    assert value(metrics.JOB_LAST_SUCCESS, "lazy") == started_at
    assert value(metrics.JOB_LAST_SUCCESS, "diligent") >= began_at


class Moody:
    """A channel that accepts the first message, and then refuses one for now and one for good."""

    def __init__(self) -> None:
        self._errors = [None, UndeliveredError("later"), UndeliveredError("never", is_permanent=True)]

    async def send(self, _: Delivery) -> None:
        error = self._errors.pop(0)
        if error is not None:
            raise error


@async_test
async def test_deliveries(database: str) -> None:
    async with lane_connection(database) as connection, new_relay(database, {"email": Moody()}) as relay:
        await insert_deliveries(connection, "email:a", channel="email", streams=3)
        recorded = Recorded()
        await relay.run_once()
        await relay.close()
        found = recorded.counts(metrics.DELIVERIES)
        assert found == {("email", "delivered"): 1, ("email", "postponed"): 1, ("email", "failed"): 1}


@async_test
async def test_the_pool_of_a_process_can_be_exhausted(database: str) -> None:
    pool = await db.create_pool(database, 2)
    try:
        metrics.follow_pool("small", pool)
        assert value(metrics.POOLS_EXHAUSTED, "small") == 0
        async with pool.acquire():
            assert (value(metrics.POOL_CONNECTIONS, "small", "used"), value(metrics.POOLS_EXHAUSTED, "small")) == (1, 0)
            async with pool.acquire():
                assert value(metrics.POOL_CONNECTIONS, "small", "used") == 2
                assert value(metrics.POOLS_EXHAUSTED, "small") == 1
        used, idle = (value(metrics.POOL_CONNECTIONS, "small", state) for state in ("used", "idle"))
        assert (used, idle, value(metrics.POOLS_EXHAUSTED, "small")) == (0, 2, 0)
    finally:
        await db.close_pool(pool)


@async_test
async def test_differences_of_redis_count_while_buyers_can_meet_them(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "RECHECK_SECONDS", 0.05)
    kind = "free_in_database"
    pool = await db.create_pool(database, 4)
    with running_redis() as redis:
        check = GateCheck(redis.url, db.Database(pool))

        async def wait_for(count: int) -> None:
            while metrics.GATE_DIFFERENCES.read().get((kind,)) != count:
                await check.run_once()

        async with running_gate(database, redis) as gated:
            event = await gated.new_event()
            await gated.wake(event)
            assert isinstance(await gated.hold(event, "A-1", user="ann"), Accepted)
            await gated.settle()
            keys, client = EventKeys(event.org, event.id), redis.client()
            client.set(keys.seat("A-9"), str(client.get(keys.seat("A-1"))))
            await wait_for(1)
        # With no process that follows the event, it falls asleep.
        await wait_for(0)
        metrics.GATE_DIFFERENCES.set(1, kind)
        redis.kill()
        await check.run_once()
        assert value(metrics.GATE_DIFFERENCES, kind) == 0
    await db.close_pool(pool)


class Served:
    """A server with metrics and a Redis."""

    def __init__(self, server: Server, redis: RedisServer, org: Org) -> None:
        self.server = server
        self.redis = redis
        self.admin = server.client(org.headers())
        self.admin.event_hooks = {"request": [use_new_address]}
        self.stranger = server.client({"X-Forwarded-For": STRANGER})

    def metrics(self) -> str:
        return expect_text(self.stranger.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}))

    def total(self, series: str) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in self.metrics().splitlines() if line.startswith(series))

    def wait_for(self, series: str, expected: float) -> None:
        wait_until(lambda: self.total(series) == expected, PATIENCE_SECONDS, 0.2)

    def close(self) -> None:
        self.admin.close()
        self.stranger.close()


def new_address() -> str:
    return f"2001:db8::{secrets.randbelow(65_536):x}:{secrets.randbelow(65_536):x}:0:0:1"


def use_new_address(request: httpx.Request) -> None:
    request.headers["X-Forwarded-For"] = new_address()


def expect_text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.text


@pytest.fixture(scope="module")
def served(postgres: str) -> Iterator[Served]:
    settings = {"HOLDFAST_METRICS_TOKEN": TOKEN, "HOLDFAST_RATE_PER_ADDRESS": str(RATE), "HOLDFAST_PROXIES": "1"}
    with (
        fresh_database(postgres) as url,
        running_redis() as redis,
        running_server(url, workers=1, worker=False, HOLDFAST_REDIS_URL=redis.url, **settings) as server,
    ):
        served = Served(server, redis, Org(url))
        yield served
        served.close()


def test_a_limit_refuses_strangers_and_never_prometheus(served: Served) -> None:
    limited = 0
    while limited < 3:
        limited += served.stranger.get("/v1/events").status_code == 429
        # The bucket of this address is empty, and Prometheus has the same address.
        if limited:
            served.metrics()
    refused = served.stranger.get("/metrics").status_code
    assert refused in (401, 429)
    served.wait_for('holdfast_rate_limited_requests_total{limit="address"}', limited + (refused == 429))


def test_holds_by_path_and_what_a_dead_redis_and_a_locked_event_change(served: Served) -> None:
    event = publish_event(served.admin, example_event())
    attempts = 'holdfast_hold_attempts_total{outcome="%s",path="%s"}'

    def hold(number: int, status: int = 201) -> None:
        response = post_hold(served.admin, event, user=f"u-{number}", items=[{"seat": f"A-{number}"}])
        assert response.status_code == status, response.text

    # The process does not know the event yet, so there is nothing to ask Redis.
    hold(1)
    served.wait_for(attempts % ("placed", "postgres"), 1)
    hold(2)
    served.wait_for(attempts % ("placed", "redis"), 1)
    assert served.total("holdfast_redis_breaker_open ") == 0
    served.redis.kill()
    wait_until(lambda: hold_until_the_breaker_opens(served, event), PATIENCE_SECONDS, 0.05)
    served.wait_for("holdfast_redis_breaker_open ", 1)
    before = served.total(attempts % ("placed", "fallback"))
    assert before > 0
    hold(3)
    served.wait_for(attempts % ("placed", "fallback"), before + 1)
    assert served.total("holdfast_redis_breaker_opened_total") >= 1
    check_a_locked_event(served, event)


def hold_until_the_breaker_opens(served: Served, event: str) -> bool:
    post_hold(served.admin, event, items=[{"pool": "standing", "tariff": "full", "quantity": 1}])
    for seat in range(1, 20):
        post_hold(served.admin, event, user=f"b-{seat}", items=[{"seat": f"B-{seat}"}])
    return served.total("holdfast_redis_breaker_opened_total") >= 1


def check_a_locked_event(served: Served, event: str) -> None:
    answers: list[int] = []

    def hold() -> None:
        with served.server.client({**served.admin.headers, "X-Forwarded-For": new_address()}) as client:
            answers.append(post_hold(client, event, user="u-9", items=[{"seat": "A-9"}]).status_code)

    async def lock_while_someone_waits() -> None:
        async with lane_connection(served.server.database_url) as connection, connection.transaction():
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            await connection.fetch(sql.engine.lock, [ids.parse_event_id(event)])
            thread = threading.Thread(target=hold)
            thread.start()
            await asyncio.to_thread(served.wait_for, "holdfast_lane_queue_depth ", 1)
            await asyncio.to_thread(thread.join)

    asyncio.run(lock_while_someone_waits())
    assert answers == [503]
    served.wait_for("holdfast_lock_timeouts_total", 1)
    served.wait_for('holdfast_hold_attempts_total{outcome="busy"', 1)
    served.wait_for('holdfast_http_requests_total{operation="place_hold",status="503"}', 1)
    served.wait_for("holdfast_lane_queue_depth ", 0)


def test_sockets(served: Served) -> None:
    event = publish_event(served.admin, example_event())
    url = f"{served.server.url.replace('http', 'ws')}/v1/events/{event}/live"
    first, second = ({"X-Forwarded-For": new_address()} for _ in range(2))
    with (
        connect_socket(url, additional_headers=first, proxy=None),
        connect_socket(url, additional_headers=second, proxy=None),
    ):
        served.wait_for("holdfast_live_sockets ", 2)
    served.wait_for("holdfast_live_sockets ", 0)
