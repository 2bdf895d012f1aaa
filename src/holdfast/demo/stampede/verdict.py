"""The verdict: what the buyers were told, against what the database has, and the auditor's word on both.

Nothing here asks the server. A hold that has run out meanwhile is no longer owed to its buyer.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.demo.stampede.report import SoldItem, Told, Verdict
from holdfast.engine.auditor import Finding, audit_event
from holdfast.runtime import ids
from holdfast.runtime.db import Connection

# A verdict is for people to read; the auditor tells all.
FINDINGS_MAX: Final = 20
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class CountedStock(Struct, frozen=True):
    pool: str
    taken: int
    capacity: int


class CountedClaim(Struct, frozen=True):
    """A live line of one of the stampede's buyers."""

    booking: str
    user: str
    item: SoldItem


class Recount(Struct, frozen=True):
    """What the database has, at one instant."""

    at: datetime
    pools: tuple[CountedStock, ...]
    claims: tuple[CountedClaim, ...]


async def recount(connection: Connection, event: bytes, names: str) -> Recount:
    """`names` is what the names of the stampede's buyers begin with."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        at = await connection.fetchval(sql.stampede.now)
        pools = await connection.fetch(sql.stampede.pools, event)
        claims = await connection.fetch(sql.stampede.claims, event, names)
    return Recount(
        at,
        tuple(CountedStock(row["code"], row["taken"], row["capacity"]) for row in pools),
        tuple(
            CountedClaim(
                ids.format_booking_id(event, row["booking"]),
                row["user"],
                SoldItem(row["pool"], row["seat"], row["quantity"]),
            )
            for row in claims
        ),
    )


async def audit(connection: Connection, event: bytes) -> list[Finding]:
    found, _ = await audit_event(connection, event)
    return found


def judge(
    told: Sequence[Told],
    is_: Recount,
    audited: Iterable[Finding],
    unanswered: Collection[str] = (),
    troubles: Iterable[str] = (),
) -> Verdict:
    """`unanswered` are buyers who may have got something without being told of it."""
    twice = seats_told_twice(told)
    lost = units_lost(told, is_)
    known = {each.id for each in told}
    untold = {claim.booking for claim in is_.claims if claim.booking not in known and claim.user not in unanswered}
    findings = [
        *troubles,
        *(f"Two buyers were given {seat} for the same time." for seat in twice),
        *(f"{booking} was promised {_words(item)} and does not have it." for booking, item in lost),
        *(f"{booking} has units that no buyer was told of." for booking in sorted(untold)),
        *(f"{s.pool} has {s.capacity} units, and {s.taken} are taken." for s in is_.pools if s.taken > s.capacity),
        *(f"Auditor: {finding.what} of {finding.subject}: {finding.detail}." for finding in audited),
    ]
    taken, capacity = sum(stock.taken for stock in is_.pools), sum(stock.capacity for stock in is_.pools)
    lost_units = sum(item.quantity for _, item in lost)
    summary = f"{taken:,} of {capacity:,} taken, {len(twice):,} twice, {lost_units:,} lost."
    return Verdict(
        ok=not findings,
        taken=taken,
        capacity=capacity,
        twice=len(twice),
        lost=lost_units,
        findings=tuple(findings[:FINDINGS_MAX]),
        text=f"{summary} The auditor finds nothing wrong."
        if not findings
        else f"{summary} {len(findings):,} findings.",
    )


def seats_told_twice(told: Sequence[Told]) -> list[str]:
    """A seat may be given again once the first hold on it has run out, and not before."""
    times: dict[str, set[tuple[datetime, datetime, str]]] = defaultdict(set)
    for each in told:
        for item in each.items:
            if item.seat is not None:
                times[item.seat].add((each.created_at, each.expires_at or _NEVER, each.id))
    return sorted(seat for seat, spans in times.items() if _overlap(sorted(spans)))


def _overlap(spans: list[tuple[datetime, datetime, str]]) -> bool:
    return any(following[0] < span[1] for span, following in pairwise(spans))


def units_lost(told: Sequence[Told], is_: Recount) -> list[tuple[str, SoldItem]]:
    has: dict[str, Counter[tuple[str, str | None]]] = defaultdict(Counter)
    for claim in is_.claims:
        has[claim.booking][claim.item.pool, claim.item.seat] += claim.item.quantity
    owed = {each.id: each for each in told if (each.expires_at or _NEVER) > is_.at}
    return [
        (each.id, item)
        for each in owed.values()
        for item in each.items
        if has[each.id][item.pool, item.seat] < item.quantity
    ]


def _words(item: SoldItem) -> str:
    return item.seat or f"{item.quantity} of {item.pool}"
