"""The keys that sign the tickets of an event. Each event has its own; the first is made when it is needed."""

from typing import Any

from holdfast import sql
from holdfast.runtime.db import Pool
from holdfast.tickets.codes import new_key


async def signing_key(pool: Pool, event: bytes) -> Any:
    """The newest key, with its number."""
    row = await pool.fetchrow(sql.tickets.signing_key, event)
    if row is None:
        await _add_key(pool, event)
        row = await pool.fetchrow(sql.tickets.signing_key, event)
    return row


async def rotate_key(pool: Pool, event: bytes, *, revoke: bool) -> None:
    """From now on a new key signs. What earlier ones have signed stays valid, unless they are revoked."""
    await signing_key(pool, event)
    number = await _add_key(pool, event)
    if revoke:
        await pool.execute(sql.tickets.revoke_keys, event, number)


async def _add_key(pool: Pool, event: bytes) -> int:
    number: int = await pool.fetchval(sql.tickets.last_key, event) + 1
    await pool.execute(sql.tickets.insert_key, event, number, *new_key())
    return number
