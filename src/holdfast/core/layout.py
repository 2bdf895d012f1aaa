"""What an event offers and at which rules and prices. Selling never changes it, so processes may keep a copy."""

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate

from msgspec import Struct

from holdfast.core.model import Line, Policy, Pool, Seat
from holdfast.core.states import EventStatus


class BookedItem(Struct, frozen=True):
    """A line of a booking in the words of its event."""

    pool: str
    tariff: str
    seat: str | None
    quantity: int
    unit_price: int


class Layout:
    """One revision of an event's layout. A changed event has a higher revision."""

    def __init__(
        self,
        *,
        event: bytes,
        org: bytes,
        revision: int,
        status: EventStatus,
        currency: str,
        tax_bps: int,
        policy: Policy,
        pools: tuple[Pool, ...],
        seats: tuple[Seat, ...],
    ) -> None:
        self.event = event
        self.org = org
        self.revision = revision
        self.status = status
        self.currency = currency
        self.tax_bps = tax_bps
        self.policy = policy
        self.pools = pools
        self.seats = seats
        self.pool_by_code = {pool.code: pool for pool in pools}
        self.seat_by_label = {seat.label: seat for seat in seats}

    def items(self, lines: Iterable[Line]) -> list[BookedItem]:
        found = []
        for line in lines:
            pool = self.pools[line.pool]
            seat = None if line.seat is None else self.seats[line.seat].label
            found.append(BookedItem(pool.code, pool.tariffs[line.tariff].code, seat, line.quantity, line.unit_price))
        return found

    def pool_of(self, seat: Seat) -> Pool:
        return self.pools[seat.pool]

    @cached_property
    def runs(self) -> tuple[range, ...]:
        """The seats in runs of neighbours: in one row of one pool, with places that follow each other."""
        found: list[range] = []
        start = 0
        for this, following in zip(self.seats, [*self.seats[1:], None], strict=True):
            if following is None or not _are_neighbours(this, following):
                found.append(range(start, this.number + 1))
                start = this.number + 1
        return tuple(found)

    @cached_property
    def run_of(self) -> tuple[range, ...]:
        """For each seat the run that it stands in."""
        return tuple(run for run in self.runs for _ in run)

    @cached_property
    def distances(self) -> tuple[float, ...]:
        """For each seat how far it is from the middle of the front of its pool."""
        return tuple(distance for pool in self.pools if pool.seats for distance in self._distances_in(pool))

    @cached_property
    def distance_sums(self) -> tuple[float, ...]:
        """The sum of the distances of all seats before each, and at the end of all."""
        return tuple(accumulate(self.distances, initial=0.0))

    def _distances_in(self, pool: Pool) -> list[float]:
        spots = self._spots_in(pool)
        centre = (min(x for x, _ in spots) + max(x for x, _ in spots)) / 2
        front = min(y for _, y in spots)
        return [((x - centre) ** 2 + (y - front) ** 2) ** 0.5 for x, y in spots]

    def _spots_in(self, pool: Pool) -> list[tuple[float, float]]:
        """Where the seats stand: as given, or else rows one behind the other, each centred."""
        assert pool.seats is not None
        seats = self.seats[pool.seats[0] : pool.seats[1] + 1]
        spots = [(seat.x, seat.y) for seat in seats if seat.x is not None and seat.y is not None]
        if len(spots) == len(seats):
            return spots
        rows: dict[str, list[Seat]] = {}
        for seat in seats:
            rows.setdefault(seat.row, []).append(seat)
        return [
            (place - (len(row) - 1) / 2, float(depth))
            for depth, row in enumerate(rows.values())
            for place in range(len(row))
        ]


def _are_neighbours(left: Seat, right: Seat) -> bool:
    if left.pool != right.pool or left.row != right.row or left.place is None or right.place is None:
        return False
    return right.place - left.place == 1
