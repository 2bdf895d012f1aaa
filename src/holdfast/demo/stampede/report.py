"""The messages of a stampede: progress from its load generators, and the report that people and pages read."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from itertools import accumulate
from typing import Final

from msgspec import Struct, field

from holdfast.core.states import FastStrEnum

# A histogram whose buckets grow by 5 %: histograms of several processes add up, and a percentile is at most 5 % off.
SMALLEST_BUCKET_MS: Final = 0.1
BUCKET_GROWTH: Final = 1.05
BUCKETS: Final = 280


class State(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class StampedeProblem(FastStrEnum):
    """Why a stampede cannot start, or stopped early. Pages translate the code."""

    OUT_OF_RANGE = "out_of_range"
    NOT_ON_SALE = "not_on_sale"
    NOT_IN_DEMO_MODE = "not_in_demo_mode"
    ALREADY_RUNNING = "already_running"
    UNKNOWN_EVENT = "unknown_event"
    NO_SERVER = "no_server"
    STOPPED = "stopped"
    KILLED = "killed"
    GENERATOR_DIED = "generator_died"


class StampedeError(Exception):
    """The stampede cannot run. The text is for the command line."""

    def __init__(self, problem: StampedeProblem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


class GrantedItem(Struct, frozen=True):
    """A seat, or a quantity of a pool without seats."""

    pool: str
    seat: str | None
    quantity: int


class GrantedHold(Struct, frozen=True):
    """A hold as the server confirmed it to a buyer."""

    id: str
    items: tuple[GrantedItem, ...]
    created_at: datetime
    expires_at: datetime | None


class Tally(Struct):
    """Counters of the buyers of one process. `latencies` is the histogram of answers to hold requests."""

    arrived: int = 0
    done: int = 0
    winners: int = 0
    units: int = 0
    requests: int = 0
    errors: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    latencies: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def count_refusal(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def count_answer(self, latency_seconds: float) -> None:
        self.requests += 1
        self.latencies[find_bucket(latency_seconds * 1000)] += 1


class ProgressMessage(Struct, frozen=True):
    """A progress message of a load generator: its tally, the holds granted since the previous message, and the names of
    buyers who gave up without an answer."""

    tally: Tally
    granted: list[GrantedHold]
    unanswered: list[str]
    is_last: bool = False


class Verdict(Struct, frozen=True, kw_only=True):
    """The database compared with the answers that buyers got. `twice` counts seats that two buyers were granted for the
    same time, `lost` counts units that a buyer was granted and does not have."""

    ok: bool
    taken: int
    capacity: int
    twice: int
    lost: int
    findings: tuple[str, ...]
    text: str


class Report(Struct, frozen=True, kw_only=True):
    """`rate` is requests per second over the last second. The database sets `updated_at`."""

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
    failure: StampedeProblem | None = None
    verdict: Verdict | None = None
    updated_at: datetime | None = None


def find_bucket(latency_ms: float) -> int:
    if latency_ms <= SMALLEST_BUCKET_MS:
        return 0
    return min(math.ceil(math.log(latency_ms / SMALLEST_BUCKET_MS, BUCKET_GROWTH)), BUCKETS - 1)


def percentile_ms(latencies: Sequence[int], share: float) -> float | None:
    """The latency that this share of the answers did not exceed."""
    wanted = share * sum(latencies)
    if not wanted:
        return None
    bucket = next(bucket for bucket, count in enumerate(accumulate(latencies)) if count >= wanted)
    return round(SMALLEST_BUCKET_MS * BUCKET_GROWTH**bucket, 1)


def add_tallies(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.arrived += tally.arrived
        total.done += tally.done
        total.winners += tally.winners
        total.units += tally.units
        total.requests += tally.requests
        total.errors += tally.errors
        total.latencies = [a + b for a, b in zip(total.latencies, tally.latencies, strict=True)]
        for code, count in tally.refusals.items():
            total.refusals[code] = total.refusals.get(code, 0) + count
    return total
