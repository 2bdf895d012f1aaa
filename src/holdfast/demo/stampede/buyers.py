"""What one buyer does: looks at the map, takes what it likes, and is content with less before it goes home."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import DecodeError, Struct, json

from holdfast.demo.stampede.client import Client, ClientResponse, ConnectionLostError
from holdfast.demo.stampede.hall import QUANTITIES, Hall, HallPool, HallSeat
from holdfast.demo.stampede.report import Tally, Told

HELD: Final = "held"
LIMIT: Final = "limit_reached"
SOLD_OUT: Final = "sold_out"
# Two are asked for most.
WEIGHTS: Final = (2, 5, 2, 3)
# After this many choices on the map a buyer leaves the choice to the server.
PICKS_MAX: Final = 6
# Longer than a server may need to come back; then the buyer goes home without an answer.
PATIENCE_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.2
BUSY: Final = (429, 503)


class WishItem(Struct, frozen=True, omit_defaults=True):
    tariff: str
    seat: str | None = None
    pool: str | None = None
    quantity: int = 1


class BestWish(Struct, frozen=True):
    pool: str
    tariff: str
    quantity: int


class Wish(Struct, frozen=True, omit_defaults=True):
    """The body of `POST …/holds`."""

    items: tuple[WishItem, ...] = ()
    best_available: BestWish | None = None


class ProblemCode(Struct, frozen=True):
    code: str
    conflicts: tuple[str, ...] = ()


class Shop(Struct, frozen=True):
    """What the buyers of a process share. So many `turns` there are, so many of them ask at once."""

    client: Client
    turns: asyncio.Semaphore
    event: str
    hall: Hall
    tally: Tally
    told: list[Told]
    unanswered: list[str]


class GoneHomeError(Exception):
    """The buyer gives up."""


class Buyer:
    def __init__(self, name: str, token: str, shop: Shop) -> None:
        self._name = name
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._shop = shop
        self._hall = shop.hall
        self._quantity = random.choices(QUANTITIES, WEIGHTS)[0]  # noqa: S311
        self._wishes = 0
        self._waits_since = 0.0

    async def buy(self) -> None:
        tally = self._shop.tally
        tally.arrived += 1
        try:
            if await self._has_bought():
                tally.winners += 1
        except GoneHomeError:
            pass
        tally.done += 1

    async def _has_bought(self) -> bool:
        """Nobody goes home while a pool may have a unit left, or without having asked."""
        favourite = self._hall.favourite()
        if favourite.seated and await self._pick():
            return True
        others = [pool for pool in self._hall.pools if pool is not favourite]
        random.shuffle(others)
        for pool in (favourite, *others):
            may_have_some = not self._wishes or not self._hall.is_sold_out(pool)
            if may_have_some and await self._take(pool):
                return True
        return False

    async def _pick(self) -> bool:
        """Choose on the map, and choose again where somebody was faster."""
        for attempt in range(PICKS_MAX):
            async with self._turn():
                seats = self._choose(careful=attempt > 0)
                if seats is None:
                    return False
                outcome = await self._checkout_request(self._seats(seats))
            if outcome == HELD:
                return True
            if outcome == LIMIT:
                self._want_less()
        return False

    async def _take(self, pool: HallPool) -> bool:
        """Whatever the pool has left, as many as can be had."""
        while True:
            async with self._turn():
                if self._hall.is_sold_out(pool):
                    self._quantity = 1
                outcome = await self._checkout_request(self._any(pool, self._quantity))
            if outcome == HELD:
                return True
            if outcome == SOLD_OUT and self._quantity == 1:
                self._hall.note_sold_out(pool)
                return False
            self._want_less()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Buyers choose when it is their turn, on the map as it is then. Waiting for it counts as waiting."""
        self._waits_since = time.monotonic()
        async with self._shop.turns:
            yield

    def _choose(self, *, careful: bool) -> list[HallSeat] | None:
        while (seats := self._hall.pick(self._quantity, careful=careful)) is None and self._quantity > 1:
            self._quantity -= 1
        return seats

    def _want_less(self) -> None:
        if self._quantity == 1:
            raise GoneHomeError
        self._quantity -= 1

    def _seats(self, seats: list[HallSeat]) -> Wish:
        pools = {pool.code: pool for pool in self._hall.pools}
        return Wish(items=tuple(WishItem(tariff=_tariff(pools[seat.pool]), seat=seat.label) for seat in seats))

    def _any(self, pool: HallPool, quantity: int) -> Wish:
        if pool.seated:
            return Wish(best_available=BestWish(pool.code, _tariff(pool), quantity))
        return Wish(items=(WishItem(tariff=_tariff(pool), pool=pool.code, quantity=quantity),))

    async def _checkout_request(self, wish: Wish) -> str:
        """`held`, or why not."""
        self._wishes += 1
        answer = await self._insist(json.encode(wish), f"{self._name}-{self._wishes}")
        if answer.status == 201:
            self._keep(json.decode(answer.body, type=Told))
            return HELD
        problem = _problem(answer)
        self._shop.tally.refuse(problem.code)
        if problem.code == "seat_taken":
            self._hall.note_taken(problem.conflicts)
        elif problem.code not in ("orphan_seat", SOLD_OUT, LIMIT):
            raise GoneHomeError
        return problem.code

    def _keep(self, told: Told) -> None:
        self._shop.told.append(told)
        self._shop.tally.units += sum(item.quantity for item in told.items)
        self._hall.note_taken(tuple(item.seat for item in told.items if item.seat is not None))

    async def _insist(self, body: bytes, key: str) -> ClientResponse:
        """The same request under the same key until it is answered, whatever became of earlier ones."""
        tally = self._shop.tally
        path = f"/v1/events/{self._shop.event}/holds"
        headers = {**self._headers, "idempotency-key": key}
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at:
            pause_seconds = PAUSE_SECONDS
            try:
                answer = await self._shop.client.send("POST", path, headers, body)
                tally.answer_after(time.monotonic() - self._waits_since)
                if answer.status < 500 and answer.status not in BUSY:
                    return answer
                tally.refuse(_problem(answer).code)
                pause_seconds = float(answer.headers.get("retry-after", PAUSE_SECONDS))
            except ConnectionLostError:
                tally.errors += 1
            await asyncio.sleep(pause_seconds * random.uniform(1, 1.5))  # noqa: S311
            self._waits_since = time.monotonic()
        self._shop.unanswered.append(self._name)
        raise GoneHomeError


def _problem(answer: ClientResponse) -> ProblemCode:
    """A proxy in between may have an error page of its own."""
    try:
        return json.decode(answer.body, type=ProblemCode)
    except DecodeError:
        return ProblemCode(f"http_{answer.status}")


def _tariff(pool: HallPool) -> str:
    return random.choice(pool.tariffs).code  # noqa: S311
