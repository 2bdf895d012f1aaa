"""Nobody can read an address from its hash."""

import asyncio

import pytest

from holdfast.api.client_hash import CACHED_MAX, ClientHasher
from holdfast.runtime import db, shared_secrets
from tests.support.command_line import call_holdfast
from tests.support.harness import connection_to, query


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


def test_after_a_rotation_nobody_can_link_old_hashes_to_addresses(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_secrets, "SIGNS_AFTER_SECONDS", 1.0)
    monkeypatch.setattr(shared_secrets, "POLL_SECONDS", 0.1)
    before = _hash(database)
    old = query(database, "SELECT value FROM secret")
    done = call_holdfast(database, "secrets", "rotate", "client-addresses")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Holdfast has deleted the old secret." in done.stderr
    (row,) = query(database, "SELECT value, signs_from <= holdfast_now() AS signs FROM secret")
    assert row["value"] != old[0]["value"]
    assert row["signs"], "the old value ended too early"
    assert _hash(database) != before


def test_the_secret_for_client_addresses_has_no_overlap(database: str) -> None:
    before = _hash(database)
    done = call_holdfast(database, "secrets", "rotate", "client-addresses", "--overlap-hours", "2")
    assert done.returncode == 2
    assert "has no overlap" in done.stderr
    assert _hash(database) == before


def _hash(database: str) -> bytes:
    async def read() -> bytes:
        async with connection_to(database) as connection:
            return await ClientHasher(db.Database(connection)).hash(b"org", "192.0.2.1")

    return asyncio.run(read())
