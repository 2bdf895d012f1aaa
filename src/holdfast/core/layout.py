"""What an event sells, at which prices and by which rules. Selling never changes a layout, so processes cache it."""

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from holdfast.core.booking import Line
from holdfast.core.buyer_form import ContactRules, Question
from holdfast.core.policy import Policy
from holdfast.core.sales_window import NO_SCHEDULE, SalesWindow, Schedule, pool_window, span_windows
from holdfast.core.seat_ranking import PoolRanking
from holdfast.core.states import EventStatus
from holdfast.core.time_slot import TimeSlot, time_slot


class Tariff(Struct, frozen=True):
    number: int
    code: str
    name: str
    price: int
    # Whether a booking with this tariff also needs a unit of a tariff that can be booked alone, at the same time.
    needs_companion: bool = False


class Seat(Struct, frozen=True, gc=False):
    number: int
    label: str
    pool: int
    row: str
    number_in_row: int | None
    x: float | None
    y: float | None
    blocked: bool


class Pool(Struct, frozen=True):
    number: int
    code: str
    name: str
    tariffs: tuple[Tariff, ...]
    # The first and last seat. The seats of a pool have consecutive numbers, and so do the seats of a row.
    seats: tuple[int, int] | None
    schedule: Schedule = NO_SCHEDULE


class BookedItem(Struct, frozen=True):
    """A line of a booking with the codes and labels that people use. Its price is null for a reader who may not see
    it."""

    pool: str
    tariff: str
    seat: str | None
    quantity: int
    unit_price: int | None


class PricedItem(BookedItem, frozen=True):
    """A line of a booking with its price."""

    unit_price: int


class SeatPlan:
    """The seats of an event, and everything computed from them alone. Revisions with the same seats share one."""

    def __init__(self, seats: tuple[Seat, ...]) -> None:
        self.seats = seats
        self.seat_by_label = {seat.label: seat for seat in seats}
        self.rankings: dict[int, PoolRanking] = {}

    @cached_property
    def on_sale(self) -> bytes:
        """One byte per seat: 1 unless it is blocked."""
        return bytes(not seat.blocked for seat in self.seats)

    @cached_property
    def runs(self) -> tuple[range, ...]:
        """The seats grouped into runs of neighbours: same pool, same row, consecutive places."""
        runs: list[range] = []
        start = 0
        for seat, next_seat in zip(self.seats, [*self.seats[1:], None], strict=True):
            if next_seat is None or not _are_neighbours(seat, next_seat):
                runs.append(range(start, seat.number + 1))
                start = seat.number + 1
        return tuple(runs)

    @cached_property
    def run_by_seat(self) -> tuple[range, ...]:
        return tuple(run for run in self.runs for _ in run)

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """The first and last seat of each pool."""
        spans: dict[int, tuple[int, int]] = {}
        for seat in self.seats:
            first, _ = spans.get(seat.pool, (seat.number, seat.number))
            spans[seat.pool] = (first, seat.number)
        return spans


class Layout:
    """One revision of an event's layout. Changing the event creates a higher revision."""

    def __init__(
        self,
        *,
        event: bytes,
        org: bytes,
        revision: int,
        seats_revision: int,
        status: EventStatus,
        currency: str,
        tax_bps: int,
        policy: Policy,
        schedule: Schedule,
        contact: ContactRules,
        questions: tuple[Question, ...],
        providers: frozenset[str] | None,
        pools: tuple[Pool, ...],
        seat_plan: SeatPlan,
    ) -> None:
        self.event = event
        self.org = org
        self.revision = revision
        self.status = status
        self.currency = currency
        self.tax_bps = tax_bps
        self.policy = policy
        self.schedule = schedule
        self.contact = contact
        self.questions = questions
        self.providers = providers
        self.pools = pools
        self.pool_by_code = {pool.code: pool for pool in pools}
        self.seats_revision = seats_revision
        self.seat_plan = seat_plan
        self.seats = seat_plan.seats
        self.seat_by_label = seat_plan.seat_by_label

    @cached_property
    def pool_windows(self) -> tuple[SalesWindow, ...]:
        """When each pool is on sale."""
        return tuple(pool_window(self.schedule, pool.schedule) for pool in self.pools)

    @cached_property
    def sales_window(self) -> SalesWindow:
        """Outside this window, nothing in the event is on sale."""
        return span_windows(self.pool_windows)

    @cached_property
    def has_pool_windows(self) -> bool:
        """Whether some pools are on sale while others are not."""
        return any(window != self.sales_window for window in self.pool_windows)

    @cached_property
    def required_contact(self) -> tuple[str, ...]:
        return self.contact.required

    @cached_property
    def has_form(self) -> bool:
        """Whether the event asks its buyers for anything, or limits the units of a booking."""
        limits = (self.policy.min_units, self.policy.max_units)
        return bool(self.required_contact or self.questions or self.has_companions) or limits != (None, None)

    @cached_property
    def has_companions(self) -> bool:
        return any(tariff.needs_companion for pool in self.pools for tariff in pool.tariffs)

    def items(self, lines: Iterable[Line]) -> list[PricedItem]:
        items = []
        for line in lines:
            pool = self.pools[line.pool]
            seat = None if line.seat is None else self.seats[line.seat].label
            items.append(PricedItem(pool.code, pool.tariffs[line.tariff].code, seat, line.quantity, line.unit_price))
        return items

    def time_slot(self, pool: int) -> TimeSlot:
        """When the units of the pool with this number take place."""
        return time_slot(self.schedule, self.pools[pool].schedule)

    def prepare_seating(self) -> None:
        """Compute everything that the first request for the best seats would otherwise wait for."""
        _ = self.seat_plan.on_sale, self.seat_plan.run_by_seat
        for pool in self.pools:
            if pool.seats is not None:
                self.ranking(pool)

    @property
    def runs(self) -> tuple[range, ...]:
        return self.seat_plan.runs

    @property
    def run_by_seat(self) -> tuple[range, ...]:
        return self.seat_plan.run_by_seat

    def ranking(self, pool: Pool) -> PoolRanking:
        """How good the seats of a pool are. The first call computes it, which takes a while in a large hall."""
        assert pool.seats is not None
        rankings = self.seat_plan.rankings
        if pool.number not in rankings:
            first, last = pool.seats
            runs = [range(run.start - first, run.stop - first) for run in self.runs if first <= run.start <= last]
            rankings[pool.number] = PoolRanking(first, runs, self._distances_in(pool))
        return rankings[pool.number]

    def _distances_in(self, pool: Pool) -> list[float]:
        """Each seat's distance from the front centre of the pool."""
        positions = self._positions_in(pool)
        centre = (min(x for x, _ in positions) + max(x for x, _ in positions)) / 2
        front = min(y for _, y in positions)
        return [((x - centre) ** 2 + (y - front) ** 2) ** 0.5 for x, y in positions]

    def _positions_in(self, pool: Pool) -> list[tuple[float, float]]:
        """The coordinates of the seats, or centred rows one behind the other if any seat has none."""
        assert pool.seats is not None
        seats = self.seats[pool.seats[0] : pool.seats[1] + 1]
        positions = [(seat.x, seat.y) for seat in seats if seat.x is not None and seat.y is not None]
        if len(positions) == len(seats):
            return positions
        rows: dict[str, list[Seat]] = {}
        for seat in seats:
            rows.setdefault(seat.row, []).append(seat)
        return [
            (place - (len(row) - 1) / 2, float(depth))
            for depth, row in enumerate(rows.values())
            for place in range(len(row))
        ]


def _are_neighbours(left: Seat, right: Seat) -> bool:
    if left.number_in_row is None or (left.pool, left.row) != (right.pool, right.row):
        return False
    return right.number_in_row == left.number_in_row + 1
