"""Asks Redis about holds in batches: while one call is in flight, the next batch fills up."""

import asyncio
import time
from collections import deque
from datetime import datetime, timedelta
from typing import Final

import structlog
from msgspec import Struct, json

from holdfast.gate import lua
from holdfast.gate.entries import CURRENT_SECONDS, PASSED_SECONDS, PENDING_SECONDS, EventKeys, format_time
from holdfast.gate.redis_client import Command, RedisCalls, UnavailableError
from holdfast.runtime.database_clock import DatabaseClock

log = structlog.get_logger()

# The most in one call, because a script blocks all other clients of Redis.
REQUESTS_MAX: Final = 256
SEATS_MAX: Final = 1_000
WAITING_MAX: Final = 20_000
# The minimum time between the starts of two calls: a few large calls cost much less than many small ones.
PAUSE_SECONDS: Final = 0.004


class Ask(Struct, frozen=True):
    """A hold, in the form that the script needs. `ids` are the hashes that may identify a known buyer; `secret` is the
    number of the secret that keys them. A request for the best seats has `quantity` and `pool` instead of labels."""

    labels: tuple[str, ...]
    user: str
    booking: str
    ids: tuple[str, ...]
    pool: str | None
    quantity: int
    secret: int


class TakenSeats(Struct, frozen=True):
    """Somebody else has these seats. `revision` is that of the event's layout."""

    labels: tuple[str, ...]
    revision: int


class TooFewLeft(Struct, frozen=True):
    """The pool has only this many units left."""

    units: int
    revision: int


class Passed(Struct, frozen=True):
    """The engine decides. `was_asked`: Redis has answered, and the seats may be pending."""

    was_asked: bool


Verdict = TakenSeats | TooFewLeft | Passed
UNASKED: Final = Passed(was_asked=False)
ASKED: Final = Passed(was_asked=True)


class _Reply(Struct, frozen=True):
    revision: int
    answers: list[bool | int | tuple[str, ...]]


class _Waiting(Struct, frozen=True):
    org: bytes
    event: bytes
    ask: Ask
    since: float
    answer: "asyncio.Future[Verdict]"


_decode_reply: Final = json.Decoder(_Reply).decode


class AcquireQueue:
    def __init__(self, calls: RedisCalls, clock: DatabaseClock) -> None:
        self._calls = calls
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, org: bytes, event: bytes, ask: Ask) -> "asyncio.Future[Verdict]":
        waiting = _Waiting(org, event, ask, time.monotonic(), asyncio.get_running_loop().create_future())
        if len(self._waiting) >= WAITING_MAX:
            waiting.answer.set_result(UNASKED)
            return waiting.answer
        self._waiting.append(waiting)
        if self._task is None:
            self._task = asyncio.create_task(self._ask_all())
        return waiting.answer

    async def _ask_all(self) -> None:
        """If Redis fails, all waiting holds go to the engine. So does a hold that has already waited for as long as one
        call may take, so no hold waits longer than two calls may take."""
        batch: list[_Waiting] = []
        try:
            while self._waiting:
                next_at = time.monotonic() + PAUSE_SECONDS
                batch = self._take_batch()
                await self._ask(batch)
                await asyncio.sleep(max(next_at - time.monotonic(), 0))
        except UnavailableError:
            _let_through([*batch, *self._waiting])
            self._waiting.clear()
        except Exception:
            log.exception("gate_failed")
            _let_through([*batch, *self._waiting])
            self._waiting.clear()
        finally:
            self._task = None

    def _take_batch(self) -> list[_Waiting]:
        overdue = time.monotonic() - self._calls.budget_seconds
        while self._waiting and self._waiting[0].since < overdue:
            _let_through([self._waiting.popleft()])
        batch: list[_Waiting] = []
        seats = 0
        while self._waiting and len(batch) < REQUESTS_MAX and seats < SEATS_MAX:
            batch.append(self._waiting.popleft())
            seats += len(batch[-1].ask.labels)
        return batch

    async def _ask(self, batch: list[_Waiting]) -> None:
        now = self._clock.now()
        if now is None or not batch:
            _let_through(batch)
            return
        by_event: dict[bytes, list[_Waiting]] = {}
        for waiting in batch:
            by_event.setdefault(waiting.event, []).append(waiting)
        replies = await self._calls.run([self._command(of_event, now) for of_event in by_event.values()])
        for of_event, reply in zip(by_event.values(), replies, strict=True):
            _resolve(of_event, _decode_reply(reply))

    def _command(self, batch: list[_Waiting], now: datetime) -> Command:
        keys = EventKeys(batch[0].org, batch[0].event)
        labels = list({label for waiting in batch for label in waiting.ask.labels})
        return (
            "EVAL",
            lua.ACQUIRE,
            4 + len(labels),
            keys.state,
            keys.known,
            *keys.passed(now),
            *map(keys.seat, labels),
            format_time(now),
            format_time(now + timedelta(seconds=PENDING_SECONDS)),
            int(PENDING_SECONDS * 1000),
            format_time(now - timedelta(seconds=CURRENT_SECONDS)),
            format_time(now + timedelta(seconds=CURRENT_SECONDS)),
            json.encode(labels),
            json.encode([waiting.ask for waiting in batch]),
            2 * PASSED_SECONDS * 1000,
        )


def _resolve(batch: list[_Waiting], reply: _Reply) -> None:
    for waiting, answer in zip(batch, reply.answers, strict=True):
        verdict: Verdict = ASKED
        if isinstance(answer, tuple):
            verdict = TakenSeats(answer, reply.revision)
        elif answer is not False:
            verdict = TooFewLeft(int(answer), reply.revision)
        if not waiting.answer.done():
            waiting.answer.set_result(verdict)


def _let_through(batch: list[_Waiting]) -> None:
    for waiting in batch:
        if not waiting.answer.done():
            waiting.answer.set_result(UNASKED)
