"""Erases a person from every table. The journal names nobody and stays whole."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from holdfast import sql
from holdfast.runtime import db
from holdfast.runtime.db import Database, DatabaseScope
from holdfast.runtime.storage import Storage
from holdfast.sql import NamedStatement

# These run before and after the bookings lose the person. They look for the person, and for the ids of the bookings.
OF_ORG: Final[Mapping[str, NamedStatement]] = {
    "notices": sql.erase.notices,
    "sandbox_charges": sql.erase.sandbox_charges,
    "recovery_requests": sql.erase.recovery_requests,
    "recovery_links": sql.erase.recovery_links,
    "telegram_persons": sql.erase.telegram_persons,
    "telegram_dialogues": sql.erase.telegram_dialogues,
    "telegram_updates": sql.erase.telegram_updates,
    "telegram_messages": sql.erase.telegram_messages,
    "telegram_no_shows": sql.erase.telegram_no_shows,
}
# An event can have a million deliveries, and its lock does not guard them. So these two look for the person's while
# sales go on. Under the lock, they read only what was written since.
MESSAGES: Final[Mapping[str, NamedStatement]] = {
    "waiting_messages": sql.erase.waiting_messages,
    "deliveries": sql.erase.deliveries,
}
# Under the lock of the event.
OF_EVENT: Final[Mapping[str, NamedStatement]] = {
    "push_subscriptions": sql.erase.push_subscriptions,
    "telegram_receipts": sql.erase.telegram_receipts,
    "receipts": sql.erase.receipts,
    "payments": sql.erase.payments,
    "bookings": sql.erase.bookings,
}
# Deliveries without a journal entry, such as reminders, have higher numbers than any entry. They name nobody, so those
# that are written meanwhile may stay.
ENTRIES_END: Final = 1 << 40
NUMBERS_END: Final = (1 << 63) - 1


class _Contacts(Struct, frozen=True):
    emails: list[str]
    phones: list[str]


class _EventRow(Struct, frozen=True):
    event: bytes


class _BookingRow(Struct, frozen=True):
    event: bytes
    booking: bytes


class _FileRow(Struct, frozen=True):
    event: bytes
    booking: bytes
    hash: bytes
    is_shared: bool


async def erase_person(database: Database, storage: Storage, org: bytes, user: str) -> dict[str, int]:
    """Returns how much was erased of each kind. Erasing again finds nothing."""
    contacts = await database.org(org).row(_Contacts, *sql.erase.contacts(org=org, user=user))
    assert contacts is not None
    values = {
        "org": org,
        "user": user,
        "emails": contacts.emails,
        "contacts": [*contacts.emails, *contacts.phones],
    }
    counts = Counter(dict.fromkeys(("files", "receipt_files", *OF_ORG, *MESSAGES, *OF_EVENT), 0))
    events = await database.org(org).rows(_EventRow, *sql.erase.events(org=org, user=user, emails=contacts.emails))
    # The messages of all events come before the first booking: they are found by what the bookings say.
    versions = {
        row.event: await _erase_messages(database, row.event, values, counts, -1, NUMBERS_END) for row in events
    }
    await _erase_org(database, storage, values, counts)
    for event, version in versions.items():
        # The other events may have taken long, and the lock is for what is left.
        reached = await _erase_messages(database, event, values, counts, version, ENTRIES_END)
        await _erase_bookings(database, event, values, counts, reached)
    # What has arrived meanwhile. If the command ends before this, the next one finds it by the same bookings.
    await _erase_org(database, storage, values, counts)
    return dict(counts)


async def _erase_org(database: Database, storage: Storage, values: Mapping[str, Any], counts: Counter[str]) -> None:
    scope = database.org(values["org"])
    bookings = await scope.rows(_BookingRow, *_call(sql.erase.all_bookings, values))
    values = {
        **values,
        "events": [row.event for row in bookings],
        "bookings": [row.booking for row in bookings],
    }
    await _delete_files(scope, storage, values, counts)
    async with scope.transaction() as transaction:
        await _run(transaction, OF_ORG, values, counts)


async def _delete_files(
    scope: DatabaseScope, storage: Storage, values: Mapping[str, Any], counts: Counter[str]
) -> None:
    """And then the rows that say which files there are. The event's lock leaves them alone: if the command is
    interrupted, the next one still finds the files."""
    files = await scope.rows(_FileRow, *_call(sql.erase.files, values))
    own = {row.hash for row in files if not row.is_shared}
    for hash_ in own:
        await storage.delete(f"{values['org'].hex()}/{hash_.hex()}")
    counts["files"] += len(own)
    rows = {
        "events": [row.event for row in files],
        "bookings": [row.booking for row in files],
        "hashes": [row.hash for row in files],
    }
    await _run(scope, {"receipt_files": sql.erase.receipt_files}, rows, counts)


async def _erase_messages(
    database: Database, event: bytes, values: Mapping[str, object], counts: Counter[str], after: int, before: int
) -> int:
    """Of the deliveries with numbers between these two. Returns the number of an entry: deliveries of that one and all
    earlier ones were there to be found."""
    async with database.event(event).transaction() as scope:
        version: int = await scope.fetchval(*sql.erase.version(event=event))
        values = {**values, "event": event, "after": after, "before": before}
        await _run(scope, MESSAGES, await _with_bookings(scope, values), counts)
    return version


async def _erase_bookings(
    database: Database, event: bytes, values: Mapping[str, object], counts: Counter[str], after: int
) -> None:
    """And the deliveries of entries after this one."""
    async with database.event(event).transaction() as scope:
        await scope.execute(db.INDEX_LOOKUPS_ONLY)
        actor_key = await scope.fetchval(*sql.erase.lock(event=event))
        values = {**values, "event": event, "actor_key": actor_key, "after": after, "before": ENTRIES_END}
        values = await _with_bookings(scope, values)
        await _run(scope, MESSAGES, values, counts)
        await _run(scope, OF_EVENT, values, counts)


async def _with_bookings(scope: DatabaseScope, values: Mapping[str, object]) -> Mapping[str, object]:
    rows = await scope.fetch(*_call(sql.erase.own_bookings, values))
    return {**values, "bookings": [row["id"] for row in rows]}


async def _run(
    scope: DatabaseScope,
    statements: Mapping[str, NamedStatement],
    values: Mapping[str, object],
    counts: Counter[str],
) -> None:
    for name, statement in statements.items():
        result = await scope.execute(*_call(statement, values))
        counts[name] += int(result.rpartition(" ")[2])


def _call(statement: NamedStatement, values: Mapping[str, object]) -> tuple[Any, ...]:
    return statement(**{name: values[name] for name in statement.parameters})
