"""The verdict: compares the holds that buyers were granted with the database, and asks the auditor.

Nothing here asks the server. A hold that has expired by the time of the recount is no longer owed to its buyer.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.demo.stampede.report import GrantedHold, GrantedItem, Verdict
from holdfast.engine.findings import Finding
from holdfast.runtime import ids
from holdfast.runtime.db import Database

# A verdict is for people. `holdfast audit` prints all findings.
FINDINGS_MAX: Final = 20
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class PoolCount(Struct, frozen=True):
    code: str
    taken: int
    capacity: int


class ClaimedItem(Struct, frozen=True):
    """A live line of one of the stampede's buyers."""

    booking: str
    user: str
    item: GrantedItem


class Recount(Struct, frozen=True):
    """What the database has at one instant."""

    at: datetime
    pools: tuple[PoolCount, ...]
    claims: tuple[ClaimedItem, ...]


class _ClaimRow(Struct, frozen=True):
    booking: bytes
    user: str
    pool: str
    seat: str | None
    quantity: int


async def recount(database: Database, event: bytes, name_prefix: str) -> Recount:
    """Count the pools of the event, and the claims of buyers whose names start with the prefix."""
    async with database.event(event).transaction("repeatable_read", readonly=True) as scope:
        at = await scope.fetchval(sql.stampede.now)
        pools = await scope.rows(PoolCount, sql.stampede.pool_counts, event)
        claims = await scope.rows(_ClaimRow, sql.stampede.claims, event, name_prefix)
    return Recount(at, tuple(pools), tuple(_read_claim(event, claim) for claim in claims))


def _read_claim(event: bytes, row: _ClaimRow) -> ClaimedItem:
    return ClaimedItem(
        ids.format_booking_id(event, row.booking), row.user, GrantedItem(row.pool, row.seat, row.quantity)
    )


def reach_verdict(
    granted: Sequence[GrantedHold],
    recounted: Recount,
    audit_findings: Iterable[Finding],
    unanswered: Collection[str] = (),
    dead_generators: int = 0,
) -> Verdict:
    """`unanswered` names buyers who may have a hold although they got no response."""
    twice = find_seats_granted_twice(granted)
    lost = find_lost_items(granted, recounted)
    known = {hold.id for hold in granted}
    unknown = {c.booking for c in recounted.claims if c.booking not in known and c.user not in unanswered}
    findings = [
        *("A load generator died or hung before its buyers were done." for _ in range(dead_generators)),
        *(f"Two buyers were granted seat {seat} at the same time." for seat in twice),
        *(f"{booking} was granted {_describe(item)} and does not have it." for booking, item in lost),
        *(f"{booking} has units that no buyer was granted." for booking in sorted(unknown)),
        *(
            f"{p.code} has {p.capacity} units, and {p.taken} are taken."
            for p in recounted.pools
            if p.taken > p.capacity
        ),
        *(f"Auditor: {finding.what} of {finding.subject}: {finding.detail}" for finding in audit_findings),
    ]
    taken, capacity = sum(pool.taken for pool in recounted.pools), sum(pool.capacity for pool in recounted.pools)
    lost_units = sum(item.quantity for _, item in lost)
    return Verdict(
        ok=not findings,
        taken=taken,
        capacity=capacity,
        twice=len(twice),
        lost=lost_units,
        findings=tuple(findings[:FINDINGS_MAX]),
        text=f"{taken:,} of {capacity:,} units taken, {len(twice):,} seats sold twice, {lost_units:,} units lost. "
        + (f"Findings: {len(findings):,}." if findings else "The auditor finds nothing wrong."),
    )


def find_seats_granted_twice(granted: Sequence[GrantedHold]) -> list[str]:
    """The server may grant a seat again only after the first hold on it has expired."""
    spans: dict[str, set[tuple[datetime, datetime, str]]] = defaultdict(set)
    for hold in granted:
        for item in hold.items:
            if item.seat is not None:
                spans[item.seat].add((hold.created_at, hold.expires_at or _NEVER, hold.id))
    return sorted(seat for seat, spans_of_seat in spans.items() if _overlap(sorted(spans_of_seat)))


def _overlap(spans: list[tuple[datetime, datetime, str]]) -> bool:
    return any(following[0] < span[1] for span, following in pairwise(spans))


def find_lost_items(granted: Sequence[GrantedHold], recounted: Recount) -> list[tuple[str, GrantedItem]]:
    has: dict[str, Counter[tuple[str, str | None]]] = defaultdict(Counter)
    for claim in recounted.claims:
        has[claim.booking][claim.item.pool, claim.item.seat] += claim.item.quantity
    owed = {hold.id: hold for hold in granted if (hold.expires_at or _NEVER) > recounted.at}
    return [
        (hold.id, item)
        for hold in owed.values()
        for item in hold.items
        if has[hold.id][item.pool, item.seat] < item.quantity
    ]


def _describe(item: GrantedItem) -> str:
    return item.seat or f"{item.quantity} of {item.pool}"
