"""Erases a person from every table. The journal names nobody and stays whole."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.runtime.db import Database, DatabaseScope
from holdfast.runtime.storage import Storage
from holdfast.sql import NamedStatement

# Those that find the person by their bookings come before the bookings, so that an interrupted command can run again.
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
OF_EVENT: Final[Mapping[str, NamedStatement]] = {
    "push_subscriptions": sql.erase.push_subscriptions,
    "telegram_receipts": sql.erase.telegram_receipts,
    "receipts": sql.erase.receipts,
    "receipt_files": sql.erase.receipt_files,
    "payments": sql.erase.payments,
    "waiting_messages": sql.erase.waiting_messages,
    "deliveries": sql.erase.deliveries,
    "bookings": sql.erase.bookings,
}


class _Contacts(Struct, frozen=True):
    emails: list[str]
    phones: list[str]


class _EventRow(Struct, frozen=True):
    event: bytes


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
    counts = Counter(dict.fromkeys(("files", *OF_ORG, *OF_EVENT), 0))
    counts["files"] = await _delete_files(database, storage, org, user)
    async with database.org(org).transaction() as scope:
        await _run(scope, OF_ORG, values, counts)
    events = await database.org(org).rows(_EventRow, *sql.erase.events(org=org, user=user, emails=contacts.emails))
    for row in events:
        async with database.event(row.event).transaction() as scope:
            await scope.execute(sql.erase.lock, row.event)
            await _run(scope, OF_EVENT, {**values, "event": row.event}, counts)
    return dict(counts)


async def _delete_files(database: Database, storage: Storage, org: bytes, user: str) -> int:
    """Before the rows that say which files there are."""
    files = [row["hash"] for row in await database.org(org).fetch(*sql.erase.files(org=org, user=user))]
    for hash_ in files:
        await storage.delete(f"{org.hex()}/{hash_.hex()}")
    return len(files)


async def _run(
    scope: DatabaseScope,
    statements: Mapping[str, NamedStatement],
    values: Mapping[str, object],
    counts: Counter[str],
) -> None:
    for name, statement in statements.items():
        result = await scope.execute(*statement(**{each: values[each] for each in statement.parameters}))
        counts[name] += int(result.rpartition(" ")[2])
