"""Nobody can read an address from its hash."""

import asyncio

from holdfast.api.client_hash import CACHED_MAX, ClientHasher
from holdfast.runtime import db
from tests.support.harness import connection_to


def test_every_process_has_the_same_hash_and_every_org_another(database: str) -> None:
    async def check() -> None:
        async with connection_to(database) as connection:
            first, second = (ClientHasher(db.Database(connection)) for _ in range(2))
            hashed = await first.hash(b"org 1", "192.0.2.1")
            assert hashed == await second.hash(b"org 1", "192.0.2.1") == await first.hash(b"org 1", "192.0.2.1")
            assert hashed != await first.hash(b"org 2", "192.0.2.1")
            assert bytes([192, 0, 2, 1]) not in hashed

    asyncio.run(check())


def test_another_installation_has_other_hashes(database: str) -> None:
    async def check() -> None:
        async with connection_to(database) as connection:
            before = await ClientHasher(db.Database(connection)).hash(b"org", "192.0.2.1")
            await connection.execute("DELETE FROM secret")
            assert await ClientHasher(db.Database(connection)).hash(b"org", "192.0.2.1") != before

    asyncio.run(check())


def test_a_flood_of_addresses_does_not_fill_the_memory(database: str) -> None:
    async def check() -> None:
        async with connection_to(database) as connection:
            hasher = ClientHasher(db.Database(connection))
            for n in range(CACHED_MAX + 10):
                await hasher.hash(b"org", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
            assert len(hasher._cache) == CACHED_MAX

    asyncio.run(check())
