"""Secrets that all processes share, such as the one that signs sessions, and their rotation.

A new value signs only once every process that reaches the database has read it. So no such process ever sees a
signature that it cannot verify, and none has to ask the database about a forged one.
"""

import asyncio
import math
import secrets
import time
from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.core.states import FastStrEnum
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS, Database

# A process notices a new value within this time.
CACHE_SECONDS: Final = 5.0
# Longer than that, with time for the query.
SIGNS_AFTER_SECONDS: Final = 10.0
# A process uses the values that it knows for this long while it cannot reach the database.
OUTAGE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0
SECRET_BYTES: Final = 32


class SecretName(FastStrEnum):
    SESSIONS = "sessions"
    CLIENT_ADDRESSES = "client-addresses"
    WEB_PUSH = "web-push"


class SecretValue(Struct, frozen=True):
    number: int
    value: bytes
    signs: bool


class Keyring(Struct, frozen=True):
    """All valid values of a secret, the newest first."""

    values: tuple[SecretValue, ...]

    @property
    def signing(self) -> SecretValue:
        return next((each for each in self.values if each.signs), self.values[-1])

    def find(self, number: int) -> SecretValue | None:
        return next((each for each in self.values if each.number == number), None)


class SharedSecret:
    """A secret as one process uses it. The first use creates it."""

    def __init__(self, database: Database, name: SecretName) -> None:
        self._database = database
        self._name = name
        self._keyring = Keyring(())
        self._read_at = -math.inf
        self._read_again_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def keyring(self) -> Keyring:
        """The values as the database had them at most `CACHE_SECONDS` ago, whatever the number of requests. If the
        database cannot be reached, they may be up to `OUTAGE_SECONDS` old."""
        if time.monotonic() >= self._read_again_at:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._refresh())
            await asyncio.shield(self._reading)
        return self._keyring

    async def _refresh(self) -> None:
        """All requests that wait share one attempt. If it fails, those after it use the known values for a while, so
        that few of them wait for a timeout."""
        try:
            await self._read()
        except (*LOST_ERRORS, *BLOCKED_ERRORS):
            now, known_until = time.monotonic(), self._read_at + OUTAGE_SECONDS
            if now >= known_until:
                raise
            self._read_again_at = min(now + CACHE_SECONDS, known_until)

    async def _read(self) -> None:
        now = time.monotonic()
        rows = await self._database.shared.rows(SecretValue, sql.credentials.secret, self._name)
        if not rows:
            await self._database.shared.execute(
                sql.credentials.create_secret, self._name, secrets.token_bytes(SECRET_BYTES)
            )
            rows = await self._database.shared.rows(SecretValue, sql.credentials.secret, self._name)
        self._keyring, self._read_at, self._read_again_at = Keyring(tuple(rows)), now, now + CACHE_SECONDS


async def rotate_secret(database: Database, name: SecretName, overlap_seconds: float) -> datetime:
    """Add a new value, and return until when the others verify."""
    async with database.shared.transaction() as scope:
        await scope.execute(sql.credentials.create_secret, name, secrets.token_bytes(SECRET_BYTES))
        await scope.execute(sql.credentials.lock_secret, name)
        await scope.execute(sql.credentials.delete_expired_secrets, name)
        until: datetime = await scope.fetchval(
            *sql.credentials.rotate_secret(
                name=name,
                value=secrets.token_bytes(SECRET_BYTES),
                signs_after_seconds=SIGNS_AFTER_SECONDS,
                overlap_seconds=overlap_seconds,
            )
        )
    return until


async def delete_old_values(database: Database, name: SecretName) -> None:
    """Wait until the newest value is the only valid one, and delete the others."""
    while len(await database.shared.rows(SecretValue, sql.credentials.secret, name)) > 1:
        await asyncio.sleep(POLL_SECONDS)
    await database.shared.execute(sql.credentials.delete_expired_secrets, name)
