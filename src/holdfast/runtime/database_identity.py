"""Tells whether two connections lead to the same database.

Addresses and names do not show it: a pooler may stand in between, and a copy of a server keeps the server's id. An
advisory lock does. It exists only in the database of the running server in which somebody took it, and every role may
take one.
"""

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.runtime.db import Connection


async def is_same_database(first: "Connection", second: "Connection") -> bool:
    # A random key, because processes that migrate at the same time compare their connections too.
    key = secrets.randbits(63)
    async with first.transaction():
        await first.execute("SELECT pg_advisory_xact_lock($1)", key)
        return not await second.fetchval("SELECT pg_try_advisory_xact_lock($1)", key)
