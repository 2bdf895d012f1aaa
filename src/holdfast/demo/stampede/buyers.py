"""A simulated buyer chooses seats on the map, settles for fewer or other units, and gives up when nothing is left."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from msgspec import DecodeError, Struct, json

from holdfast.demo.stampede.client import Client, ClientResponse, ConnectionLostError
from holdfast.demo.stampede.event_map import QUANTITIES, EventMap, MapPool, MapSeat
from holdfast.demo.stampede.report import GrantedHold, Tally

HELD: Final = "held"
LIMIT_REACHED: Final = "limit_reached"
SOLD_OUT: Final = "sold_out"
# Most buyers want two.
QUANTITY_WEIGHTS: Final = (2, 5, 2, 3)
# After this many choices on the map, a buyer lets the server choose.
CHOICES_MAX: Final = 6
# Longer than a server needs to restart. Then the buyer gives up without an answer.
RETRY_FOR_SECONDS: Final = 60.0
RETRY_PAUSE_SECONDS: Final = 0.2
RETRY_STATUSES: Final = (429, 503)


class HoldItem(Struct, frozen=True, omit_defaults=True):
    tariff: str
    seat: str | None = None
    pool: str | None = None
    quantity: int = 1


class BestAvailableRequest(Struct, frozen=True):
    pool: str
    tariff: str
    quantity: int


class HoldRequest(Struct, frozen=True, omit_defaults=True):
    """The body of `POST …/holds`."""

    items: tuple[HoldItem, ...] = ()
    best_available: BestAvailableRequest | None = None


class ProblemCode(Struct, frozen=True):
    code: str
    conflicts: tuple[str, ...] = ()


class SharedState(Struct, frozen=True):
    """What all buyers of a process share. `connections` limits how many of them send a request at once."""

    client: Client
    connections: asyncio.Semaphore
    event: str
    map: EventMap
    tally: Tally
    granted: list[GrantedHold]
    unanswered: list[str]


class GaveUpError(Exception):
    """The buyer leaves without a hold."""


class Buyer:
    def __init__(self, name: str, token: str, shared: SharedState) -> None:
        self._name = name
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._shared = shared
        self._map = shared.map
        self._quantity = random.choices(QUANTITIES, QUANTITY_WEIGHTS)[0]  # noqa: S311
        self._holds_requested = 0
        self._waiting_since = 0.0

    async def buy(self) -> None:
        tally = self._shared.tally
        tally.arrived += 1
        try:
            if await self._get_hold():
                tally.winners += 1
        except GaveUpError:
            pass
        tally.done += 1

    async def _get_hold(self) -> bool:
        """Try every pool that may have a unit left, and send at least one request."""
        favourite = self._map.choose_pool()
        if favourite.seated and await self._hold_chosen_seats():
            return True
        others = [pool for pool in self._map.pools if pool is not favourite]
        random.shuffle(others)
        for pool in (favourite, *others):
            is_worth_a_try = not self._holds_requested or not self._map.is_sold_out(pool)
            if is_worth_a_try and await self._hold_any(pool):
                return True
        return False

    async def _hold_chosen_seats(self) -> bool:
        """Choose on the map, and choose again if somebody was faster."""
        for attempt in range(CHOICES_MAX):
            async with self._connection():
                seats = self._choose_seats(careful=attempt > 0)
                if seats is None:
                    return False
                outcome = await self._request_hold(self._request_seats(seats))
            if outcome == HELD:
                return True
            if outcome == LIMIT_REACHED:
                self._want_fewer()
        return False

    async def _hold_any(self, pool: MapPool) -> bool:
        """Let the server choose in the pool, and want fewer until it grants the hold."""
        while True:
            async with self._connection():
                if self._map.is_sold_out(pool):
                    self._quantity = 1
                outcome = await self._request_hold(_request_any(pool, self._quantity))
            if outcome == HELD:
                return True
            if outcome == SOLD_OUT and self._quantity == 1:
                self._map.mark_sold_out(pool)
                return False
            self._want_fewer()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[None]:
        """Buyers choose once they have a connection, on the map as it is then. The latency includes the wait."""
        self._waiting_since = time.monotonic()
        async with self._shared.connections:
            yield

    def _choose_seats(self, *, careful: bool) -> list[MapSeat] | None:
        while (seats := self._map.choose_seats(self._quantity, careful=careful)) is None and self._quantity > 1:
            self._quantity -= 1
        return seats

    def _want_fewer(self) -> None:
        if self._quantity == 1:
            raise GaveUpError
        self._quantity -= 1

    def _request_seats(self, seats: list[MapSeat]) -> HoldRequest:
        pools = {pool.code: pool for pool in self._map.pools}
        return HoldRequest(
            items=tuple(HoldItem(tariff=_choose_tariff(pools[seat.pool]), seat=seat.label) for seat in seats)
        )

    async def _request_hold(self, request: HoldRequest) -> str:
        """Returns `held`, or the code of the refusal."""
        self._holds_requested += 1
        response = await self._send_until_answered(json.encode(request), f"{self._name}-{self._holds_requested}")
        if response.status == 201:
            self._record_hold(json.decode(response.body, type=GrantedHold))
            return HELD
        problem = _read_problem(response)
        self._shared.tally.count_refusal(problem.code)
        if problem.code == "seat_taken":
            self._map.mark_taken(problem.conflicts)
        elif problem.code not in ("orphan_seat", SOLD_OUT, LIMIT_REACHED):
            raise GaveUpError
        return problem.code

    def _record_hold(self, hold: GrantedHold) -> None:
        self._shared.granted.append(hold)
        self._shared.tally.units += sum(item.quantity for item in hold.items)
        self._map.mark_taken(tuple(item.seat for item in hold.items if item.seat is not None))

    async def _send_until_answered(self, body: bytes, key: str) -> ClientResponse:
        """Retry with the same idempotency key, whether or not the server carried out an earlier attempt."""
        tally = self._shared.tally
        path = f"/v1/events/{self._shared.event}/holds"
        headers = {**self._headers, "idempotency-key": key}
        give_up_at = time.monotonic() + RETRY_FOR_SECONDS
        while time.monotonic() < give_up_at:
            pause_seconds = RETRY_PAUSE_SECONDS
            try:
                response = await self._shared.client.send("POST", path, headers, body)
                tally.count_answer(time.monotonic() - self._waiting_since)
                if response.status < 500 and response.status not in RETRY_STATUSES:
                    return response
                tally.count_refusal(_read_problem(response).code)
                pause_seconds = float(response.headers.get("retry-after", RETRY_PAUSE_SECONDS))
            except ConnectionLostError:
                tally.errors += 1
            await asyncio.sleep(pause_seconds * random.uniform(1, 1.5))  # noqa: S311
            self._waiting_since = time.monotonic()
        self._shared.unanswered.append(self._name)
        raise GaveUpError


def _request_any(pool: MapPool, quantity: int) -> HoldRequest:
    if pool.seated:
        return HoldRequest(best_available=BestAvailableRequest(pool.code, _choose_tariff(pool), quantity))
    return HoldRequest(items=(HoldItem(tariff=_choose_tariff(pool), pool=pool.code, quantity=quantity),))


def _read_problem(response: ClientResponse) -> ProblemCode:
    """A proxy in between may answer with an error page of its own."""
    try:
        return json.decode(response.body, type=ProblemCode)
    except DecodeError:
        return ProblemCode(f"http_{response.status}")


def _choose_tariff(pool: MapPool) -> str:
    return random.choice(pool.tariffs).code  # noqa: S311
