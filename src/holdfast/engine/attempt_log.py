"""One log line for each attempt to hold something, and for each refusal, up to a number per second.

In a rush there are more attempts than anyone can read. Beyond the limit, Holdfast counts the lines that it leaves out,
and logs the counts once a second, so that sums stay right.
"""

import asyncio
from collections import Counter
from typing import Final

import structlog

from holdfast.core.commands import Command, PlaceHold
from holdfast.core.refusals import Refused
from holdfast.runtime import ids
from holdfast.runtime.log_lines import LogLine, log_lines, log_time
from holdfast.runtime.pseudonyms import pseudonyms
from holdfast.runtime.request_ids import current_request_id

log = structlog.get_logger()

WINDOW_SECONDS: Final = 1.0
HOLD_ATTEMPTED: Final = "hold_attempted"
HOLD_REFUSED: Final = "hold_refused"
COMMAND_REFUSED: Final = "command_refused"
REFUSED: Final = "refused"


class AttemptLine(LogLine, omit_defaults=True, kw_only=True, gc=False):
    refusal: str | None = None
    command: str | None = None


class LineBudget:
    """Allows the first lines of each second, and counts the others by kind. A second begins with its first line, and a
    timer ends it, so the hot path reads no clock."""

    def __init__(self, name: str) -> None:
        self.per_second = 0
        self._name = name
        self._left = 0
        self._suppressed: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def spend(self, kind: str) -> bool:
        if self._timer is None:
            if not self.per_second:
                return False
            self._left = self.per_second
            self._timer = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self.end_second)
        if self._left:
            self._left -= 1
            return True
        self._suppressed[kind] += 1
        return False

    def end_second(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._suppressed:
            lines = self._suppressed.total()
            log.info("lines_suppressed", name=self._name, lines=lines, by_kind=dict(self._suppressed))
            self._suppressed.clear()


class AttemptLog:
    """Writes nothing until `start`."""

    def __init__(self) -> None:
        self._attempts = LineBudget(HOLD_ATTEMPTED)
        self._refused_holds = LineBudget(HOLD_REFUSED)
        self._refused_commands = LineBudget(COMMAND_REFUSED)
        self._budgets = (self._attempts, self._refused_holds, self._refused_commands)

    def start(self, per_second: int) -> None:
        for budget in self._budgets:
            budget.per_second = per_second

    def stop(self) -> None:
        """Log the counts of the last second."""
        for budget in self._budgets:
            budget.per_second = 0
            budget.end_second()

    def add_attempt(self, command: PlaceHold) -> None:
        if self._attempts.spend(HOLD_ATTEMPTED):
            _write(command, HOLD_ATTEMPTED, current_request_id())

    def add_refusal(
        self, command: Command, refused: Refused, request_id: str | None, seconds: float | None = None
    ) -> None:
        is_hold = isinstance(command, PlaceHold)
        budget = self._refused_holds if is_hold else self._refused_commands
        code = refused.refusal.code
        if budget.spend(code):
            name = None if is_hold else type(command).__name__
            _write(command, HOLD_REFUSED if is_hold else COMMAND_REFUSED, request_id, code, name, seconds)


def _write(
    command: Command,
    event: str,
    request_id: str | None,
    refusal: str | None = None,
    name: str | None = None,
    seconds: float | None = None,
) -> None:
    log_lines.write(
        [
            AttemptLine(
                event=event,
                level="info",
                timestamp=log_time(),
                org=ids.format_org_id(command.org),
                event_id=ids.format_event_id(command.event),
                booking=ids.format_booking_id(command.event, command.booking),
                actor=pseudonyms.find(command.org, command.actor),
                outcome=REFUSED if refusal else None,
                request_id=request_id,
                duration_ms=round(seconds * 1000, 1) if seconds is not None else None,
                refusal=refusal,
                command=name,
            )
        ]
    )


# That of this process, like its log.
attempt_log: Final = AttemptLog()
