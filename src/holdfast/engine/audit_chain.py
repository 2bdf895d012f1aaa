"""Verifies the hash chain of a journal, and says in words where and how it is broken.

PostgreSQL computes the hashes, in the order of the entries, and returns only the links that are broken. So memory does
not grow with the journal.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.journal_chain import chain_start
from holdfast.engine.check_guard import guard_check
from holdfast.engine.findings import EventFindings
from holdfast.runtime.db import DatabaseScope

# How many broken links of one journal are named.
LINKS_MAX: Final = 100
# How far from a broken link an entry can have moved, to be recognised.
NEIGHBOURS: Final = 3
FIRST_POSSIBLE: Final = -(2**63)


class VerifiedChain(Struct, frozen=True):
    """A chain is intact up to the entry with the number `version`, whose hash is `head`."""

    version: int
    head: bytes


class RowCounts(Struct, frozen=True):
    entries: int
    bookings: int
    payments: int


class JournalEnd(Struct, frozen=True):
    version: int
    head: bytes
    last_number: int | None
    last_hash: bytes | None

    @property
    def is_intact(self) -> bool:
        return (self.last_number, self.last_hash) == (self.version, self.head)


class BrokenLink(Struct, frozen=True):
    number: int
    number_before: int | None
    is_broken: bool


class HashedEntry(Struct, frozen=True):
    number: int
    previous: bytes
    hash: bytes


async def verify_chain(
    scope: DatabaseScope, event: bytes, findings: EventFindings, *, since: VerifiedChain | None = None
) -> VerifiedChain | None:
    """Verify the entries after `since`, or all. Returns the chain's end if nothing is wrong with it."""
    return await guard_check(scope, "chain", findings, _verify_chain(scope, event, findings, since))


async def _verify_chain(
    scope: DatabaseScope, event: bytes, findings: EventFindings, since: VerifiedChain | None
) -> VerifiedChain | None:
    end = await scope.row(JournalEnd, sql.audit.journal_end, event)
    if end is None:
        await _report_deleted_event(scope, event, findings)
        return None
    if since is not None and end.is_intact and await _is_intact_since(scope, event, since):
        return VerifiedChain(end.version, end.head)
    links = await _broken_links(scope, event, FIRST_POSSIBLE, chain_start(event))
    for run in _runs(links):
        await _report_links(scope, event, run, findings)
    _report_end(end, findings)
    return VerifiedChain(end.version, end.head) if end.is_intact and not links else None


async def _is_intact_since(scope: DatabaseScope, event: bytes, since: VerifiedChain) -> bool:
    hashes = await _load_hashes(scope, event, since.version, since.version)
    return (
        since.version in hashes
        and hashes[since.version].hash == since.head
        and not await _broken_links(scope, event, since.version + 1, since.head)
    )


async def _broken_links(scope: DatabaseScope, event: bytes, first: int, head: bytes) -> list[BrokenLink]:
    return await scope.rows(
        BrokenLink, *sql.audit.broken_links(event=event, first=first, head=head, links_max=LINKS_MAX)
    )


async def _report_deleted_event(scope: DatabaseScope, event: bytes, findings: EventFindings) -> None:
    left = await scope.row(RowCounts, sql.audit.rows_of_event, event)
    assert left is not None
    findings.add(
        "event_deleted",
        findings.event,
        f"There are {left.entries} journal entries, {left.bookings} bookings and {left.payments} payments of this "
        "event, but the event itself does not exist. Restore it from a backup, and find out who can delete rows.",
    )


async def _load_hashes(scope: DatabaseScope, event: bytes, first: int, last: int) -> dict[int, HashedEntry]:
    rows = await scope.rows(HashedEntry, sql.audit.entry_hashes, event, first, last)
    return {row.number: row for row in rows}


def _runs(links: list[BrokenLink]) -> Iterator[list[BrokenLink]]:
    """Broken links of entries in a row usually have one cause. A gap is a cause of its own."""
    run: list[BrokenLink] = []
    for link in links:
        if run and (link.number_before != run[-1].number or _is_gap(link) or _is_gap(run[-1])):
            yield run
            run = []
        run.append(link)
    if run:
        yield run


def _is_gap(link: BrokenLink) -> bool:
    return link.number != _number_before(link) + 1


def _number_before(link: BrokenLink) -> int:
    """Numbers start at 1, so nothing is missing after a lower one."""
    return max(link.number_before or 0, 0)


async def _report_links(scope: DatabaseScope, event: bytes, run: list[BrokenLink], findings: EventFindings) -> None:
    first, last = run[0], run[-1]
    if _is_gap(first):
        _report_gap(first, findings)
    else:
        hashes = await _load_hashes(scope, event, first.number - NEIGHBOURS, last.number + NEIGHBOURS)
        number_by_hash = {chain_start(event): 0, **{entry.hash: entry.number for entry in hashes.values()}}
        follows = {
            number: number_by_hash.get(hashes[number].previous) for number in range(first.number, last.number + 1)
        }
        findings.add(*_describe_run(first.number, last.number, follows))


def _report_gap(link: BrokenLink, findings: EventFindings) -> None:
    missing = _Entries(_number_before(link) + 1, link.number - 1)
    if missing.last < missing.first:
        problem = "exists twice" if link.number == link.number_before else "comes before the first"
        findings.add(
            "entry_inserted",
            str(link.number),
            f"Entry {link.number} of the journal {problem}. Somebody has inserted or renumbered it.",
        )
        return
    findings.add(
        "entries_missing",
        str(missing.first),
        f"{missing} of the journal {missing.were} deleted. Restore {missing.them} from a backup, and find out who can "
        "delete rows.",
    )


def _describe_run(first: int, last: int, follows: Mapping[int, int | None]) -> tuple[str, str, str]:
    """What has happened to the entries whose links are broken: `first` to `last` do not follow those before them.
    `follows` has the entry that each of them follows by its hash, if that is near."""
    if last > first and None not in follows.values():
        return (
            "entries_reordered",
            str(first),
            f"{_Entries(first, last)} of the journal are out of order: by its hash, entry {first} follows entry "
            f"{follows[first]}. Somebody has renumbered them.",
        )
    inserted = _Entries((follows[last] or 0) + 1, last - 1)
    if follows[last] is not None and inserted.first <= inserted.last:
        return (
            "entry_inserted",
            str(inserted.first),
            f"{inserted} of the journal {inserted.were} inserted afterwards: by its hash, entry {last} follows entry "
            f"{follows[last]}. Find out who can write to the journal.",
        )
    if first == 1:
        return (
            "chain_start",
            "1",
            "Entry 1 of the journal does not carry the hash with which the journal of this event starts. "
            "Somebody has changed it, or has deleted entries before it. Compare the journal with a backup.",
        )
    changed = _Entries(first - 1, last - 1)
    return (
        "entry_changed",
        str(changed.first),
        f"{changed} of the journal {changed.were} changed after entry {last} was written, or entries between them were "
        f"deleted and the others renumbered. Compare {changed.them} with a backup.",
    )


def _report_end(end: JournalEnd, findings: EventFindings) -> None:
    last, version = end.last_number or 0, end.version
    missing, added = _Entries(last + 1, version), _Entries(version + 1, last)
    if last != version and end.last_hash == end.head:
        findings.add(
            "version_ahead" if last < version else "version_behind",
            str(version),
            f"The event is at version {version}, but its journal ends with entry {last}, which is also its head. "
            "Somebody has changed the version.",
        )
    elif last < version:
        findings.add(
            "last_entries_missing",
            str(missing.first),
            f"The event is at version {version}, but its journal ends with entry {last}. {missing} {missing.were} "
            f"deleted. Restore {missing.them} from a backup.",
        )
    elif last > version:
        findings.add(
            "entry_inserted",
            str(added.first),
            f"The event is at version {version}, but its journal ends with entry {last}. {added} {added.were} "
            "inserted. Find out who can write to the journal.",
        )
    elif end.last_hash != end.head:
        findings.add(
            "chain_head",
            str(version),
            f"The head of the event is not the hash of entry {last}, the last in its journal. Somebody has changed the "
            "entry or the head. Compare both with a backup or with a saved head.",
        )


class _Entries(Struct, frozen=True):
    """Entries in a row, as the subject of a sentence."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"Entry {self.first}" if self.first == self.last else f"Entries {self.first} to {self.last}"

    @property
    def were(self) -> str:
        return "was" if self.first == self.last else "were"

    @property
    def them(self) -> str:
        return "it" if self.first == self.last else "them"
