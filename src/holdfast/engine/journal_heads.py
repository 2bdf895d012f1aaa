"""The heads of all journals, to publish or to archive, and the comparison of journals with a saved head.

Whoever owns the database can rewrite a journal with its whole chain, but not a head that is stored elsewhere.
"""

from datetime import datetime
from hashlib import sha256

from msgspec import Struct

from holdfast import sql
from holdfast.engine.audit_chain import HashedEntry, verify_chain
from holdfast.engine.findings import EventFindings, Finding
from holdfast.runtime import ids
from holdfast.runtime.db import Database, DatabaseScope


class EventHead(Struct, frozen=True):
    """`hash` is that of the journal entry with the number `version`, in hexadecimal."""

    event: str
    version: int
    hash: str


class Heads(Struct, frozen=True):
    """The heads of all events. `hash` is SHA-256 over one line per event: its id, version and hash, with spaces between
    them and a line feed at the end."""

    at: datetime
    hash: str
    events: list[EventHead]

    @property
    def is_genuine(self) -> bool:
        return self.hash == _hash(self.events)


async def read_heads(database: Database) -> tuple[Heads, list[Finding]]:
    """Verify the chains of all events, and return their heads. A head with findings is not worth publishing."""
    at: datetime = await database.shared.fetchval(sql.audit.now)
    heads: list[EventHead] = []
    findings: list[Finding] = []
    for row in await database.all_events.fetch(sql.audit.all_events):
        event: bytes = row["id"]
        found = EventFindings(event)
        async with database.event(event).transaction("repeatable_read", readonly=True) as scope:
            chain = await verify_chain(scope, event, found)
        findings += found.found
        if chain is not None:
            heads.append(EventHead(ids.format_event_id(event), chain.version, chain.head.hex()))
    return Heads(at, _hash(heads), heads), findings


async def compare_heads(database: Database, saved: Heads) -> list[Finding]:
    """The events whose journals do not continue the saved ones."""
    findings: list[Finding] = []
    for head in saved.events:
        event = ids.parse_event_id(head.event)
        assert event is not None
        found = EventFindings(event)
        await _compare_head(database.event(event), event, head, saved.at, found)
        findings += found.found
    return findings


async def _compare_head(
    scope: DatabaseScope, event: bytes, head: EventHead, at: datetime, findings: EventFindings
) -> None:
    if not await scope.fetchval(sql.events.exists, event):
        findings.add(
            "event_missing",
            head.event,
            f"The event existed on {at:%Y-%m-%d}, and does not exist now. Restore a backup.",
        )
        return
    entry = await scope.row(HashedEntry, sql.audit.entry_hashes, event, head.version, head.version)
    if entry is None:
        findings.add(
            "history_shorter",
            str(head.version),
            f"On {at:%Y-%m-%d} the journal had {head.version} entries, and entry {head.version} does not exist now. "
            "Somebody has deleted or renumbered entries, or has restored an older backup.",
        )
    elif entry.hash.hex() != head.hash:
        findings.add(
            "history_rewritten",
            str(head.version),
            f"Entry {head.version} of the journal has another hash than on {at:%Y-%m-%d}. Somebody has rewritten it or "
            "an entry before it, and the chain with it. Compare the journal with a backup of that day.",
        )


def _hash(heads: list[EventHead]) -> str:
    lines = [f"{head.event} {head.version} {head.hash}\n" for head in heads]
    return sha256("".join(lines).encode()).hexdigest()
