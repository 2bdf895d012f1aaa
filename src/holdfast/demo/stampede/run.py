"""Carries out a stampede: starts its processes, adds up what they tell, and asks for the verdict."""

import asyncio
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct, structs

from holdfast import sql
from holdfast.demo.stampede import record
from holdfast.demo.stampede.client import Client, ConnectionLostError
from holdfast.demo.stampede.herd import Herd
from holdfast.demo.stampede.record import StampedeError
from holdfast.demo.stampede.report import Report, State, Verdict, percentile_ms, total
from holdfast.demo.stampede.rush import Orders, Visitor
from holdfast.demo.stampede.verdict import audit, judge, recount
from holdfast.runtime import ids
from holdfast.runtime.credentials import customer_token
from holdfast.runtime.db import Connection
from holdfast.runtime.process_lifetime import end_with_parent, set_parent_pid

# Of each process. Buyers over this wait for their turn.
CONNECTIONS_MAX: Final = 128
SHOW_SECONDS: Final = 0.25
KEEP_SECONDS: Final = 0.5
TOKEN_SECONDS: Final = 3600
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Show = Callable[[Report], None]


class Plan(Struct, frozen=True, kw_only=True):
    """`row` is that of a stampede which another process has begun, and which ends with that process."""

    event: bytes
    buyers: int
    seconds: float
    processes: int
    url: str
    row: bytes | None = None


async def carry_out(connection: Connection, plan: Plan, show: Show) -> Report:
    """The last report, which has the verdict. Asked to stop, it ends its processes and says so in the row."""
    if plan.row is not None:
        end_with_parent()
    stampede = Stampede(connection, plan, show)
    running = asyncio.create_task(stampede.run())
    _stop_when_asked(running)
    try:
        return await running
    except asyncio.CancelledError:
        await stampede.fail("The stampede was stopped before its end.")
        raise StampedeError("Stopped.") from None
    except StampedeError as error:
        await stampede.fail(str(error))
        raise


def _stop_when_asked(running: "asyncio.Task[Report]") -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        """Once: what ends in good order is not to be disturbed."""
        for number in SIGNALS:
            loop.add_signal_handler(number, lambda: None)
        running.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)


class Stampede:
    def __init__(self, connection: Connection, plan: Plan, show: Show) -> None:
        self._connection = connection
        self._plan = plan
        self._show = show
        self._id = plan.row or ids.new_id()
        self._names = f"stampede-{self._id.hex()[-10:]}-"
        self._is_begun = plan.row is not None
        self._herds: list[Herd] = []
        self._first_at: float | None = None
        self._requests: deque[tuple[float, int]] = deque()
        self._report = Report(state=State.RUNNING, buyers=plan.buyers, seconds=plan.seconds, capacity=0, left=0)

    async def run(self) -> Report:
        org = await self._check_event()
        await self._check_server()
        await self._begin()
        self._herds = [Herd(orders) for orders in await self._orders(org)]
        await self._rush()
        await self._tell(State.RUNNING)
        verdict = await self._judge()
        is_whole = not any(herd.trouble for herd in self._herds)
        await self._tell(State.DONE if is_whole else State.FAILED, verdict)
        return self._report

    async def fail(self, trouble: str) -> None:
        self._report = structs.replace(self._report, state=State.FAILED, trouble=trouble)
        if self._is_begun:
            await self._keep()

    async def _check_event(self) -> bytes:
        found = await self._connection.fetchrow(sql.stampede.event, self._plan.event)
        if found is None:
            raise StampedeError("There is no such event in this database. `holdfast demo` lists those of the demo.")
        if found["status"] != "active":
            raise StampedeError(f"The event is {found['status']}; only one that is on sale can be rushed.")
        self._report = structs.replace(self._report, capacity=int(found["capacity"]), left=await self._left())
        org: bytes = found["org_id"]
        return org

    async def _check_server(self) -> None:
        url = self._plan.url
        try:
            client = Client(url)
            answer = await client.send("GET", f"/v1/events/{ids.format_event_id(self._plan.event)}", {})
        except ValueError as error:
            raise StampedeError(f"The address {url} cannot be used: {error}.") from None
        except ConnectionLostError:
            raise StampedeError(f"No server answers at {url}. Start one with: holdfast serve") from None
        client.close()
        if answer.status != 200:
            raise StampedeError(f"The server at {url} does not know the event. Does it use another database?")

    async def _begin(self) -> None:
        if not self._is_begun:
            await record.begin(self._connection, self._plan.event, self._id, self._report)
            self._is_begun = True

    async def _orders(self, org: bytes) -> list[Orders]:
        """Each buyer is somebody else, and comes at a moment of their own."""
        visitors = []
        for number in range(self._plan.buyers):
            name = f"{self._names}{number}"
            token, _ = await customer_token(self._connection, org, name, TOKEN_SECONDS)
            visitors.append(Visitor(name, token, random.uniform(0, self._plan.seconds)))  # noqa: S311
        event, count = ids.format_event_id(self._plan.event), self._plan.processes
        return [Orders(self._plan.url, event, CONNECTIONS_MAX, visitors[at::count]) for at in range(count)]

    async def _rush(self) -> None:
        set_parent_pid()
        kept_at = 0.0
        async with asyncio.TaskGroup() as group:
            running = {group.create_task(herd.run()) for herd in self._herds}
            while running:
                _, running = await asyncio.wait(running, timeout=SHOW_SECONDS)
                self._update(State.RUNNING)
                if time.monotonic() >= kept_at + KEEP_SECONDS:
                    kept_at = time.monotonic()
                    await self._keep()
                self._show(self._report)

    async def _tell(self, state: State, verdict: Verdict | None = None) -> None:
        self._update(state, verdict)
        await self._keep()
        self._show(self._report)

    def _update(self, state: State, verdict: Verdict | None = None) -> None:
        done = total(herd.tally for herd in self._herds)
        self._report = structs.replace(
            self._report,
            state=state,
            arrived=done.arrived,
            done=done.done,
            winners=done.winners,
            units=done.units,
            requests=done.requests,
            errors=done.errors,
            refusals=done.refusals,
            rate=self._rate(done.requests),
            p50_ms=percentile_ms(done.latencies, 0.50),
            p95_ms=percentile_ms(done.latencies, 0.95),
            p99_ms=percentile_ms(done.latencies, 0.99),
            elapsed_seconds=self._elapsed_seconds(done.arrived),
            trouble=next((herd.trouble for herd in self._herds if herd.trouble), None),
            verdict=verdict,
        )

    def _rate(self, requests: int) -> float:
        """Requests a second, over the last second or so."""
        now = time.monotonic()
        self._requests.append((now, requests))
        while len(self._requests) > 2 and self._requests[1][0] <= now - 1:
            self._requests.popleft()
        then, before = self._requests[0]
        return round((requests - before) / (now - then), 1) if now > then else 0.0

    def _elapsed_seconds(self, arrived: int) -> float:
        """Since the first buyer came, until the last has gone."""
        if not arrived or self._report.done == self._report.buyers:
            return self._report.elapsed_seconds
        self._first_at = self._first_at or time.monotonic()
        return round(time.monotonic() - self._first_at, 2)

    async def _keep(self) -> None:
        self._report = structs.replace(self._report, left=await self._left())
        await record.keep(self._connection, self._plan.event, self._id, self._report)

    async def _left(self) -> int:
        left: int = await self._connection.fetchval(sql.stampede.left, self._plan.event)
        return left

    async def _judge(self) -> Verdict:
        told = [told for herd in self._herds for told in herd.told]
        unanswered = {name for herd in self._herds for name in herd.unanswered}
        troubles = [herd.trouble for herd in self._herds if herd.trouble]
        found = await recount(self._connection, self._plan.event, self._names)
        return judge(told, found, await audit(self._connection, self._plan.event), unanswered, troubles)
