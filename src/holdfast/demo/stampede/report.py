"""What is told of a stampede: by its processes to the one that started them, and by that one to whoever looks."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from itertools import accumulate
from typing import Final

from msgspec import Struct, field

# Latencies are counted in classes, each 5 % wider than the one before: those of processes can be added up, and a
# percentile is off by 5 % at most.
FINEST_MS: Final = 0.1
GROWTH: Final = 1.05
CLASSES: Final = 280


class State(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class SoldItem(Struct, frozen=True):
    """A seat, or so many units of a pool."""

    pool: str
    seat: str | None
    quantity: int


class Told(Struct, frozen=True):
    """A hold as the server acknowledged it to a buyer."""

    id: str
    items: tuple[SoldItem, ...]
    created_at: datetime
    expires_at: datetime | None


class Tally(Struct):
    """What the buyers of a process have done so far. `latencies` are of the answers to holds, by class."""

    arrived: int = 0
    done: int = 0
    winners: int = 0
    units: int = 0
    requests: int = 0
    errors: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    latencies: list[int] = field(default_factory=lambda: [0] * CLASSES)

    def refuse(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def answer_after(self, seconds: float) -> None:
        self.requests += 1
        self.latencies[class_of(seconds * 1000)] += 1


class Tidings(Struct, frozen=True):
    """What a process tells: how far it is, which holds its buyers were told of since it told last, and which buyers
    never got an answer."""

    tally: Tally
    told: list[Told]
    unanswered: list[str]
    is_over: bool = False


class Verdict(Struct, frozen=True, kw_only=True):
    """What is, against what buyers were told. `twice` are seats that two buyers were given for the same time, `lost`
    units that a buyer was given and does not have."""

    ok: bool
    taken: int
    capacity: int
    twice: int
    lost: int
    findings: tuple[str, ...]
    text: str


class Report(Struct, frozen=True, kw_only=True):
    """`rate` is of the last second. `updated_at` is set by the database when it keeps the report."""

    state: State
    buyers: int
    seconds: float
    capacity: int
    left: int
    arrived: int = 0
    done: int = 0
    winners: int = 0
    units: int = 0
    requests: int = 0
    errors: int = 0
    refusals: dict[str, int] = {}
    rate: float = 0.0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    elapsed_seconds: float = 0.0
    trouble: str | None = None
    verdict: Verdict | None = None
    updated_at: datetime | None = None


def class_of(latency_ms: float) -> int:
    if latency_ms <= FINEST_MS:
        return 0
    return min(math.ceil(math.log(latency_ms / FINEST_MS, GROWTH)), CLASSES - 1)


def percentile_ms(latencies: Sequence[int], share: float) -> float | None:
    """The latency that this share of the answers did not exceed."""
    enough = share * sum(latencies)
    if not enough:
        return None
    number = next(number for number, so_far in enumerate(accumulate(latencies)) if so_far >= enough)
    return round(FINEST_MS * GROWTH**number, 1)


def total(tallies: Iterable[Tally]) -> Tally:
    found = Tally()
    for tally in tallies:
        found.arrived += tally.arrived
        found.done += tally.done
        found.winners += tally.winners
        found.units += tally.units
        found.requests += tally.requests
        found.errors += tally.errors
        found.latencies = [a + b for a, b in zip(found.latencies, tally.latencies, strict=True)]
        for code, count in tally.refusals.items():
            found.refusals[code] = found.refusals.get(code, 0) + count
    return found
