"""One process of buyers. It gets its orders on standard input, and tells on standard output how far it is."""

import asyncio
import signal
import sys
from typing import Final

import uvloop
from msgspec import Struct, json

from holdfast.demo.stampede.buyers import Buyer, Shop
from holdfast.demo.stampede.client import Client, ConnectionLostError
from holdfast.demo.stampede.hall import Hall, HallMap, Offer
from holdfast.demo.stampede.report import Tally, Tidings
from holdfast.runtime.process_lifetime import end_with_parent

LOOK_SECONDS: Final = 0.2
TELL_SECONDS: Final = 0.25


class Visitor(Struct, frozen=True):
    """A buyer to be: who it is, and when it comes."""

    name: str
    token: str
    after_seconds: float


class Orders(Struct, frozen=True):
    url: str
    event: str
    connections_max: int
    visitors: list[Visitor]


async def rush(orders: Orders) -> None:
    end_with_parent()
    client = Client(orders.url)
    path = f"/v1/events/{orders.event}"
    hall = Hall(json.decode((await client.send("GET", path, {})).body, type=Offer))
    watch = Watch(client, f"{path}/seats", hall)
    await watch.look()
    shop = Shop(client, asyncio.Semaphore(orders.connections_max), orders.event, hall, Tally(), [], [])
    beside = [asyncio.create_task(work) for work in (watch.run(), _tell_often(shop))]
    await asyncio.gather(*(_visit(visitor, shop) for visitor in orders.visitors))
    for task in beside:
        task.cancel()
    await asyncio.wait(beside)
    _tell(shop, is_over=True)
    client.close()


async def _visit(visitor: Visitor, shop: Shop) -> None:
    await asyncio.sleep(visitor.after_seconds)
    await Buyer(visitor.name, visitor.token, shop).buy()


class Watch:
    """All buyers of a process look at one map, a fifth of a second old at most while the server keeps up."""

    def __init__(self, client: Client, path: str, hall: Hall) -> None:
        self._client = client
        self._path = path
        self._hall = hall
        self._decoder = json.Decoder(HallMap)
        self._tag = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except ConnectionLostError:
                continue

    async def look(self) -> None:
        answer = await self._client.send("GET", self._path, {"if-none-match": self._tag} if self._tag else {})
        if answer.status == 200:
            self._tag = answer.headers.get("etag", "")
            self._hall.look(self._decoder.decode(answer.body).seats)


async def _tell_often(shop: Shop) -> None:
    while True:
        _tell(shop)
        await asyncio.sleep(TELL_SECONDS)


def _tell(shop: Shop, *, is_over: bool = False) -> None:
    tidings = Tidings(shop.tally, shop.told, shop.unanswered, is_over)
    sys.stdout.buffer.write(json.encode(tidings) + b"\n")
    sys.stdout.buffer.flush()
    shop.told.clear()
    shop.unanswered.clear()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(rush(json.decode(sys.stdin.buffer.read(), type=Orders)))
