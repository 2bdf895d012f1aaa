"""Runs a stampede: starts the load generators, adds up their progress, and reaches the verdict."""

import asyncio
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct, structs

from holdfast.core.states import EventStatus
from holdfast.demo.stampede.client import Client, ConnectionLostError
from holdfast.demo.stampede.event_stock import StampedeEvent, count_units_left, find_event
from holdfast.demo.stampede.generator_process import GeneratorProcess
from holdfast.demo.stampede.load_generator import Assignment, BuyerArrival
from holdfast.demo.stampede.record import create_record, save_report
from holdfast.demo.stampede.report import (
    Report,
    StampedeError,
    StampedeProblem,
    State,
    Verdict,
    add_tallies,
    percentile_ms,
)
from holdfast.demo.stampede.verdict import reach_verdict, recount
from holdfast.engine.auditor import audit_event
from holdfast.runtime import ids
from holdfast.runtime.credentials import sign_customer_token
from holdfast.runtime.db import Database
from holdfast.runtime.process_lifetime import end_with_parent, set_parent_pid

# Per load generator. Further buyers wait for a free connection.
CONNECTIONS_MAX: Final = 128
SHOW_SECONDS: Final = 0.25
SAVE_SECONDS: Final = 0.5
TOKEN_SECONDS: Final = 3600
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

ReportListener = Callable[[Report], None]


class Plan(Struct, frozen=True, kw_only=True):
    """`id` is set if another process has already created the record. The stampede ends with that process."""

    event: bytes
    buyers: int
    seconds: float
    processes: int
    url: str
    id: bytes | None = None


async def run_stampede(database: Database, plan: Plan, on_report: ReportListener) -> Report:
    """Returns the last report, which has the verdict. SIGINT and SIGTERM stop the stampede and mark it as failed."""
    if plan.id is not None:
        end_with_parent()
    stampede = Stampede(database, plan, on_report)
    running = asyncio.create_task(stampede.run())
    _cancel_on_signal(running)
    try:
        return await running
    except asyncio.CancelledError:
        await stampede.fail(StampedeProblem.STOPPED)
        raise StampedeError(StampedeProblem.STOPPED, "Stopped.") from None
    except StampedeError as error:
        await stampede.fail(error.problem)
        raise


def _cancel_on_signal(running: "asyncio.Task[Report]") -> None:
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        """Ignore further signals, which would interrupt the cleanup."""
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, lambda: None)
        running.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, cancel)


class Stampede:
    def __init__(self, database: Database, plan: Plan, on_report: ReportListener) -> None:
        self._database = database
        self._plan = plan
        self._on_report = on_report
        self._id = plan.id or ids.new_id()
        self._name_prefix = f"stampede-{self._id.hex()[-10:]}-"
        self._has_record = plan.id is not None
        self._generators: list[GeneratorProcess] = []
        self._first_arrival_at: float | None = None
        self._request_counts: deque[tuple[float, int]] = deque()
        self._report = Report(state=State.RUNNING, buyers=plan.buyers, seconds=plan.seconds, capacity=0, left=0)

    async def run(self) -> Report:
        event = await self._check_event()
        await self._check_server()
        await self._create_record()
        self._generators = [GeneratorProcess(assignment) for assignment in await self._assign_buyers(event.org_id)]
        await self._run_generators()
        await self._publish(State.RUNNING)
        verdict = await self._reach_verdict()
        await self._publish(State.FAILED if self._has_failed else State.DONE, verdict)
        return self._report

    @property
    def _has_failed(self) -> bool:
        return any(generator.has_died for generator in self._generators)

    async def fail(self, problem: StampedeProblem) -> None:
        self._report = structs.replace(self._report, state=State.FAILED, failure=problem)
        if self._has_record:
            await self._save()

    async def _check_event(self) -> StampedeEvent:
        event = await find_event(self._database, self._plan.event)
        if event is None:
            raise StampedeError(
                StampedeProblem.UNKNOWN_EVENT,
                "There is no such event in this database. `holdfast demo` lists the demo events.",
            )
        if event.status is not EventStatus.ACTIVE:
            raise StampedeError(
                StampedeProblem.NOT_ON_SALE, f"The event is {event.status}. Choose an event that is on sale."
            )
        left = await count_units_left(self._database, self._plan.event)
        self._report = structs.replace(self._report, capacity=event.capacity, left=left)
        return event

    async def _check_server(self) -> None:
        url = self._plan.url
        try:
            client = Client(url)
            response = await client.send("GET", f"/v1/events/{ids.format_event_id(self._plan.event)}", {})
        except ValueError as error:
            raise StampedeError(StampedeProblem.NO_SERVER, f"Cannot use the URL {url}: {error}.") from None
        except ConnectionLostError:
            raise StampedeError(
                StampedeProblem.NO_SERVER, f"No server answers at {url}. Start one: holdfast serve"
            ) from None
        client.close()
        if response.status != 200:
            raise StampedeError(
                StampedeProblem.UNKNOWN_EVENT,
                f"The server at {url} does not have the event. Check that it uses the same database.",
            )

    async def _create_record(self) -> None:
        if not self._has_record:
            await create_record(self._database, self._plan.event, self._id, self._report)
            self._has_record = True

    async def _assign_buyers(self, org: bytes) -> list[Assignment]:
        """Every buyer is a different user who arrives at a random moment."""
        buyers = []
        for number in range(self._plan.buyers):
            name = f"{self._name_prefix}{number}"
            token, _ = await sign_customer_token(self._database, org, name, TOKEN_SECONDS)
            buyers.append(BuyerArrival(name, token, random.uniform(0, self._plan.seconds)))  # noqa: S311
        event, count = ids.format_event_id(self._plan.event), self._plan.processes
        return [Assignment(self._plan.url, event, CONNECTIONS_MAX, buyers[at::count]) for at in range(count)]

    async def _run_generators(self) -> None:
        set_parent_pid()
        saved_at = 0.0
        async with asyncio.TaskGroup() as group:
            running = {group.create_task(generator.run()) for generator in self._generators}
            while running:
                _, running = await asyncio.wait(running, timeout=SHOW_SECONDS)
                self._update(State.RUNNING)
                if time.monotonic() >= saved_at + SAVE_SECONDS:
                    saved_at = time.monotonic()
                    await self._save()
                self._on_report(self._report)

    async def _publish(self, state: State, verdict: Verdict | None = None) -> None:
        self._update(state, verdict)
        await self._save()
        self._on_report(self._report)

    def _update(self, state: State, verdict: Verdict | None = None) -> None:
        total = add_tallies(generator.tally for generator in self._generators)
        self._report = structs.replace(
            self._report,
            state=state,
            arrived=total.arrived,
            done=total.done,
            winners=total.winners,
            units=total.units,
            requests=total.requests,
            errors=total.errors,
            refusals=total.refusals,
            rate=self._measure_rate(total.requests),
            p50_ms=percentile_ms(total.latencies, 0.50),
            p95_ms=percentile_ms(total.latencies, 0.95),
            p99_ms=percentile_ms(total.latencies, 0.99),
            elapsed_seconds=self._elapsed_seconds(total.arrived),
            failure=StampedeProblem.GENERATOR_DIED if self._has_failed else None,
            verdict=verdict,
        )

    def _measure_rate(self, requests: int) -> float:
        """Requests per second, over about the last second."""
        now = time.monotonic()
        self._request_counts.append((now, requests))
        while len(self._request_counts) > 2 and self._request_counts[1][0] <= now - 1:
            self._request_counts.popleft()
        then, before = self._request_counts[0]
        return round((requests - before) / (now - then), 1) if now > then else 0.0

    def _elapsed_seconds(self, arrived: int) -> float:
        """From the arrival of the first buyer until the last one is done."""
        if not arrived or self._report.done == self._report.buyers:
            return self._report.elapsed_seconds
        self._first_arrival_at = self._first_arrival_at or time.monotonic()
        return round(time.monotonic() - self._first_arrival_at, 2)

    async def _save(self) -> None:
        left = await count_units_left(self._database, self._plan.event)
        self._report = structs.replace(self._report, left=left)
        await save_report(self._database, self._plan.event, self._id, self._report)

    async def _reach_verdict(self) -> Verdict:
        granted = [hold for generator in self._generators for hold in generator.granted]
        unanswered = {name for generator in self._generators for name in generator.unanswered}
        recounted = await recount(self._database, self._plan.event, self._name_prefix)
        audit = await audit_event(self._database, self._plan.event)
        dead = sum(generator.has_died for generator in self._generators)
        return reach_verdict(granted, recounted, audit.findings, unanswered, dead)
