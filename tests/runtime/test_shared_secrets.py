"""A process reads its secrets once for all requests that wait, and does not forget them in a short outage."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.runtime import shared_secrets
from holdfast.runtime.db import Database
from holdfast.runtime.shared_secrets import CACHE_SECONDS, OUTAGE_SECONDS, SecretName, SecretValue, SharedSecret
from tests.support.engine_harness import async_test

VALUE = SecretValue(1, b"secret", signs=True)


class Postgres:
    """A database that answers slowly, or not at all."""

    def __init__(self) -> None:
        self.is_down = False
        self.reads = 0

    @property
    def shared(self) -> "Postgres":
        return self

    async def rows(self, *_: Any) -> list[SecretValue]:
        self.reads += 1
        await asyncio.sleep(0.01)
        if self.is_down:
            raise ConnectionRefusedError
        return [VALUE]

    def secret(self) -> SharedSecret:
        return SharedSecret(cast(Database, self), SecretName.SESSIONS)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shared_secrets, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.mark.parametrize("is_down", [False, True])
def test_all_who_wait_share_one_read(is_down: bool) -> None:
    async def check() -> None:
        postgres = Postgres()
        postgres.is_down = is_down
        secret = postgres.secret()
        found = await asyncio.gather(*(secret.keyring() for _ in range(20)), return_exceptions=True)
        assert postgres.reads == 1
        assert {isinstance(each, ConnectionRefusedError) for each in found} == {is_down}

    asyncio.run(check())


@async_test
async def test_a_client_that_leaves_does_not_stop_the_read_for_others() -> None:
    postgres = Postgres()
    secret = postgres.secret()
    first, second = (asyncio.create_task(secret.keyring()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).values == (VALUE,)
    assert postgres.reads == 1


def test_known_secrets_outlast_a_short_outage(clock: Clock) -> None:
    async def check() -> None:
        postgres = Postgres()
        secret = postgres.secret()
        known = await secret.keyring()
        postgres.is_down = True
        while clock.now < 1_000 + OUTAGE_SECONDS:
            assert await secret.keyring() == known
            clock.now += 0.5
        assert postgres.reads <= 1 + OUTAGE_SECONDS / CACHE_SECONDS, "requests that wait for a timeout should be few"
        with pytest.raises(ConnectionRefusedError):
            await secret.keyring()
        postgres.is_down = False
        assert await secret.keyring() == known

    asyncio.run(check())
