"""The keys that sign the tickets of an event. Each event has its own, and gets the first one on first use."""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.runtime.db import Database
from holdfast.tickets.codes import new_key

# The key endpoint returns all keys, so their number is bounded.
KEYS_MAX: Final = 1_000


class SigningKey(Struct, frozen=True):
    number: int
    private: bytes
    public: bytes


async def get_signing_key(database: Database, event: bytes) -> SigningKey:
    """The event's newest valid key. Creates one if there is none."""
    key = await _newest_key(database, event)
    if key is None:
        await _add_key(database, event)
        key = await _newest_key(database, event)
    assert key is not None
    return key


async def rotate_key(database: Database, event: bytes, *, revoke: bool) -> None:
    """Sign with a new key from now on. Tickets signed by earlier keys stay valid unless `revoke` is set."""
    current = await get_signing_key(database, event)
    if current.number >= KEYS_MAX:
        raise RefusedError(Refusal.LIMIT_REACHED, f"An event may have at most {KEYS_MAX} ticket keys in its lifetime.")
    number = await _add_key(database, event)
    if revoke:
        await database.event(event).execute(sql.tickets.revoke_keys, event, number)


async def _newest_key(database: Database, event: bytes) -> SigningKey | None:
    return await database.event(event).row(SigningKey, sql.tickets.signing_key, event)


async def _add_key(database: Database, event: bytes) -> int:
    last_number: int = await database.event(event).fetchval(sql.tickets.last_key_number, event)
    await database.event(event).execute(sql.tickets.insert_key, event, last_number + 1, *new_key())
    return last_number + 1
