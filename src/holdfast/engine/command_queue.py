"""The waiting commands of a lane, by event. Events take turns, so a busy event does not delay the others."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.commands import Command, PlaceHold
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refused
from holdfast.engine.attempt_log import attempt_log
from holdfast.engine.command_metrics import command_name, record_refusal
from holdfast.runtime import metrics

if TYPE_CHECKING:
    # Its package is optional.
    from opentelemetry.trace import SpanContext


class Waiting(Struct, frozen=True):
    """A command and the future of its outcome. Until `deadline`, in event-loop time, it may wait for a locked event.
    `submitted_at` is in monotonic time."""

    command: Command
    answer: "asyncio.Future[Outcome]"
    deadline: float
    submitted_at: float = 0.0
    request_id: str | None = None
    span: "SpanContext | None" = None

    @property
    def line_count(self) -> int:
        """How many lines its booking will have. The cost of the command grows with them."""
        command = self.command
        if not isinstance(command, PlaceHold):
            return 1
        return command.best_available.quantity if command.best_available else len(command.items)

    def resolve(self, outcome: Outcome) -> None:
        if self.answer.done():
            return
        self.answer.set_result(outcome)
        seconds = time.monotonic() - self.submitted_at
        metrics.COMMAND_SECONDS.observe(seconds, command_name(self.command))
        if isinstance(outcome, Refused):
            record_refusal(self.command, outcome.refusal)
            attempt_log.add_refusal(self.command, outcome, self.request_id, seconds)


def first_commands(commands: Iterable[Waiting], count: int, lines_max: int) -> list[Waiting]:
    """Up to `count` of the first commands. The one that reaches `lines_max` lines is the last."""
    first: list[Waiting] = []
    lines = 0
    for waiting in islice(commands, count):
        if lines >= lines_max:
            break
        first.append(waiting)
        lines += waiting.line_count
    return first


class CommandQueue:
    def __init__(self) -> None:
        self._by_event: dict[bytes, deque[Waiting]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_of(self, event: bytes) -> int:
        return len(self._by_event.get(event, ()))

    def add(self, waiting: Waiting) -> None:
        event = waiting.command.event
        queue = self._by_event.get(event)
        if queue is None:
            queue = self._by_event[event] = deque()
        queue.append(waiting)
        self._count += 1

    def take(self, count: int, lines_max: int) -> list[Waiting]:
        """Up to `count` commands with up to `lines_max` lines, but at least one. Every event has an equal share. An
        event that was served moves to the end of the queue."""
        batch: list[Waiting] = []
        lines = 0
        while self._by_event and len(batch) < count and lines < lines_max:
            room = count - len(batch)
            share = max(1, room // len(self._by_event))
            for event in list(self._by_event)[:room]:
                taken, lines = self._take_first(event, share, lines, lines_max)
                batch += taken
                if lines >= lines_max:
                    break
        self._count -= len(batch)
        return batch

    def take_event(self, event: bytes) -> list[Waiting]:
        """All commands to one event."""
        taken = list(self._by_event.pop(event, ()))
        self._count -= len(taken)
        return taken

    def take_all(self) -> list[Waiting]:
        return [waiting for event in list(self._by_event) for waiting in self.take_event(event)]

    def _take_first(self, event: bytes, count: int, lines: int, lines_max: int) -> tuple[list[Waiting], int]:
        """Up to `count` commands to the event, and how many lines the batch has with them."""
        queue = self._by_event.pop(event)
        taken = first_commands(queue, count, lines_max - lines)
        lines += sum(waiting.line_count for waiting in taken)
        for _ in taken:
            queue.popleft()
        if queue:
            self._by_event[event] = queue
        return taken, lines
