"""Which buses an installation has, and what waits for them."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.notification_rules import BUSES, KAFKA, NATS, bus_target
from holdfast.notifications.bus import Bus
from holdfast.runtime.db import Database
from holdfast.runtime.settings import Settings

ROWS_AT_ONCE: Final = 1_000
# A message that has waited for longer needs attention. The alert on late notifications has the same time.
WAITING_SECONDS: Final = 15 * 60


class BusStatus(Struct, frozen=True):
    """`registered_at` is None for a bus that was removed and has rows left. `failed`: messages that the broker refused
    for good, such as one that is too large."""

    name: str
    registered_at: datetime | None
    waiting: int
    oldest_waiting_at: datetime | None
    oldest_waiting_seconds: float | None
    failed: int
    last_error: str | None

    @property
    def is_healthy(self) -> bool:
        return not self.failed and (self.oldest_waiting_seconds or 0) <= WAITING_SECONDS


class _OrgRow(Struct, frozen=True):
    id: bytes


def configured_buses(settings: Settings) -> Sequence[str]:
    urls = {KAFKA: settings.kafka_url, NATS: settings.nats_url}
    return [name for name in BUSES if urls[name]]


def make_buses(settings: Settings) -> dict[str, Bus]:
    """The buses that the settings name. Their packages are optional."""
    buses: dict[str, Bus] = {}
    if settings.kafka_url:
        from holdfast.notifications.kafka_bus import KafkaBus

        buses[KAFKA] = KafkaBus(settings.kafka_url, settings.bus_prefix)
    if settings.nats_url:
        from holdfast.notifications.nats_bus import NatsBus

        buses[NATS] = NatsBus(settings.nats_url, settings.bus_prefix)
    return buses


async def register_buses(database: Database, names: Sequence[str]) -> None:
    """From now on, every journal entry of every process goes to these buses."""
    for name in names:
        await database.shared.execute(sql.event_bus.register, name)


async def registered_buses(database: Database) -> list[str]:
    return [row["name"] for row in await database.shared.fetch(sql.event_bus.registered)]


async def bus_status(database: Database) -> list[BusStatus]:
    return await database.all_events.rows(BusStatus, *sql.event_bus.status(buses=list(BUSES)))


async def retry_failed(database: Database, name: str) -> int:
    """Publish again what the broker refused. Returns how many messages."""
    return await _change_all(database, name, sql.event_bus.retry_failed)


async def remove_bus(database: Database, name: str) -> int:
    """Write no more entries for the bus, and delete those that wait. Returns how many were deleted."""
    await database.shared.execute(sql.event_bus.unregister, name)
    return await _change_all(database, name, sql.event_bus.delete_deliveries)


async def _change_all(database: Database, name: str, statement: str) -> int:
    changed = 0
    async for target in _targets(database, name):
        while count := await _count(database, statement, target):
            changed += count
    return changed


async def _targets(database: Database, name: str) -> AsyncIterator[str]:
    for org in await database.shared.rows(_OrgRow, sql.credentials.orgs):
        yield bus_target(name, org.id)


async def _count(database: Database, statement: str, target: str) -> int:
    result = await database.all_events.execute(statement, target, ROWS_AT_ONCE)
    return int(result.rpartition(" ")[2])
