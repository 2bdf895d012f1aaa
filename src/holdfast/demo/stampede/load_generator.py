"""A load generator: a process that runs some of the buyers. It reads its assignment from standard input and writes
progress messages to standard output."""

import asyncio
import signal
import sys
from typing import Final

import uvloop
from msgspec import Struct, json

from holdfast.demo.stampede.buyers import Buyer, SharedState
from holdfast.demo.stampede.client import Client, ConnectionLostError
from holdfast.demo.stampede.event_map import EventMap, EventResponse, SeatsResponse
from holdfast.demo.stampede.report import ProgressMessage, Tally
from holdfast.runtime.process_lifetime import end_with_parent

MAP_SECONDS: Final = 0.2
PROGRESS_SECONDS: Final = 0.25


class BuyerArrival(Struct, frozen=True):
    name: str
    token: str
    after_seconds: float


class Assignment(Struct, frozen=True):
    url: str
    event: str
    connections_max: int
    buyers: list[BuyerArrival]


async def run_buyers(assignment: Assignment) -> None:
    end_with_parent()
    client = Client(assignment.url)
    path = f"/v1/events/{assignment.event}"
    event_map = EventMap(json.decode((await client.send("GET", path, {})).body, type=EventResponse))
    poller = MapPoller(client, f"{path}/seats", event_map)
    await poller.poll()
    connections = asyncio.Semaphore(assignment.connections_max)
    shared = SharedState(client, connections, assignment.event, event_map, Tally(), [], [])
    background = [asyncio.create_task(work) for work in (poller.run(), _report_progress(shared))]
    await asyncio.gather(*(_run_buyer(buyer, shared) for buyer in assignment.buyers))
    for task in background:
        task.cancel()
    await asyncio.wait(background)
    _send_progress(shared, is_last=True)
    client.close()


async def _run_buyer(arrival: BuyerArrival, shared: SharedState) -> None:
    await asyncio.sleep(arrival.after_seconds)
    await Buyer(arrival.name, arrival.token, shared).buy()


class MapPoller:
    """Keeps the one map that all buyers of a process share up to date."""

    def __init__(self, client: Client, path: str, event_map: EventMap) -> None:
        self._client = client
        self._path = path
        self._map = event_map
        self._decoder = json.Decoder(SeatsResponse)
        self._etag = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(MAP_SECONDS)
            try:
                await self.poll()
            except ConnectionLostError:
                continue

    async def poll(self) -> None:
        response = await self._client.send("GET", self._path, {"if-none-match": self._etag} if self._etag else {})
        if response.status == 200:
            self._etag = response.headers.get("etag", "")
            self._map.update(self._decoder.decode(response.body).seats)


async def _report_progress(shared: SharedState) -> None:
    while True:
        _send_progress(shared)
        await asyncio.sleep(PROGRESS_SECONDS)


def _send_progress(shared: SharedState, *, is_last: bool = False) -> None:
    progress = ProgressMessage(shared.tally, shared.granted, shared.unanswered, is_last)
    sys.stdout.buffer.write(json.encode(progress) + b"\n")
    sys.stdout.buffer.flush()
    shared.granted.clear()
    shared.unanswered.clear()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(run_buyers(json.decode(sys.stdin.buffer.read(), type=Assignment)))
