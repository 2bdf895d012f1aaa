"""Trouble on demand: errors, delays, held and dropped calls, flood limits."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import Self

import msgspec

from tests.support.telegram.errors import ApiError, too_many_requests

HOLD_PAUSE_SECONDS = 0.005
LIMITED_METHODS = frozenset(
    {"sendMessage", "sendPhoto", "sendDocument", "editMessageText", "editMessageCaption", "editMessageReplyMarkup"}
)


class Fault(msgspec.Struct, eq=False):
    method: str
    error: ApiError | None
    times: int
    chat_id: int | None = None
    # Without an error, the server closes the connection, after it did what the call asked for.

    def matches(self, method: str, chat_id: object) -> bool:
        return self.times > 0 and self.method in (method, "*") and self.chat_id in (None, chat_id)


class Hold:
    """Calls of one method wait until a test releases them."""

    def __init__(self, method: str, after: bool) -> None:
        self.method = method
        self.after = after
        self.waiting = 0
        self.is_released = False

    def release(self) -> None:
        self.is_released = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def wait(self) -> None:
        self.waiting += 1
        try:
            while not self.is_released:
                await asyncio.sleep(HOLD_PAUSE_SECONDS)
        finally:
            self.waiting -= 1


class FloodLimits(msgspec.Struct, frozen=True):
    """How many messages, new or edited, a bot may send. None means no limit."""

    chat_per_second: int | None = None
    chat_per_minute: int | None = None
    global_per_second: int | None = None


class FloodGate:
    """Counts the messages that passed."""

    def __init__(self) -> None:
        self._passed: dict[object, deque[float]] = {}

    def check(self, limits: FloodLimits, bot_id: int, chat_id: object) -> None:
        now = time.monotonic()
        rules = [
            ((bot_id, chat_id), limits.chat_per_second, 1.0),
            ((bot_id, chat_id), limits.chat_per_minute, 60.0),
            (bot_id, limits.global_per_second, 1.0),
        ]
        waits = [self._wait_seconds(key, limit, window, now) for key, limit, window in rules if limit is not None]
        if any(waits):
            raise too_many_requests(max(1, math.ceil(max(waits))))
        for key in ((bot_id, chat_id), bot_id):
            self._passed.setdefault(key, deque(maxlen=1000)).append(now)

    def _wait_seconds(self, key: object, limit: int, window_seconds: float, now: float) -> float:
        recent = [at for at in self._passed.get(key, ()) if at > now - window_seconds]
        return recent[-limit] + window_seconds - now if len(recent) >= limit else 0.0


class Faults:
    """The faults that a test ordered."""

    def __init__(self) -> None:
        self.flood_limits: FloodLimits | None = None
        self._faults: list[Fault] = []
        self._delays: dict[str, float] = {}
        self._holds: list[Hold] = []
        self._gate = FloodGate()

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def delay(self, method: str, seconds: float) -> None:
        self._delays[method] = seconds

    def hold(self, method: str, after: bool) -> Hold:
        hold = Hold(method, after)
        self._holds.append(hold)
        return hold

    def release_all(self) -> None:
        for hold in self._holds:
            hold.release()

    async def before(self, method: str, bot_id: int, chat_id: object) -> None:
        """Wait, or raise the error that a test ordered or a limit demands."""
        await self._wait_for_holds(method, after=False)
        if seconds := self._delays.get(method, 0.0):
            await asyncio.sleep(seconds)
        fault = next((fault for fault in self._faults if fault.error and fault.matches(method, chat_id)), None)
        if fault is not None and fault.error is not None:
            fault.times -= 1
            raise fault.error
        if self.flood_limits is not None and method in LIMITED_METHODS:
            self._gate.check(self.flood_limits, bot_id, chat_id)

    async def after(self, method: str, chat_id: object) -> bool:
        """Wait. Return whether to close the connection instead of answering."""
        await self._wait_for_holds(method, after=True)
        fault = next((fault for fault in self._faults if not fault.error and fault.matches(method, chat_id)), None)
        if fault is not None:
            fault.times -= 1
        return fault is not None

    async def _wait_for_holds(self, method: str, after: bool) -> None:
        for hold in [hold for hold in self._holds if hold.method == method and hold.after is after]:
            await hold.wait()
