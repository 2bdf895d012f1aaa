"""Who did something, as the log may say it: staff keys and parts of Holdfast by their names, people by keyed hashes.

The same person has the same pseudonym in all processes, and unrelated ones in different orgs. Nobody can find out who
it is without the secret of the installation, not even by hashing all email addresses.
"""

import asyncio
import hashlib
from typing import Final

import structlog

from holdfast.runtime.db import Database
from holdfast.runtime.shared_secrets import SecretName, SharedSecret

log = structlog.get_logger()

HASH_BYTES: Final = 6
CACHED_MAX: Final = 10_000
REFRESH_SECONDS: Final = 15.0
# Keeps these hashes apart from others that have the same secret.
PURPOSE: Final = b"holdfast-log"
# The kinds of actors that are no people: secret keys, by the first characters, and payment providers.
_IMPERSONAL: Final = frozenset({"key", "provider"})


class Pseudonyms:
    def __init__(self) -> None:
        self._key: bytes | None = None
        self._cache: dict[tuple[bytes, str], str] = {}

    def set_key(self, key: bytes | None) -> None:
        if key != self._key:
            self._key = key
            self._cache.clear()

    def find(self, org: bytes, actor: str) -> str:
        """The pseudonym of an actor of the journal. While the key is unknown, it only says what kind of actor it is."""
        return self._cache.get((org, actor)) or self._make(org, actor)

    def _make(self, org: bytes, actor: str) -> str:
        kind, separator, name = actor.partition(":")
        if not separator or kind in _IMPERSONAL:
            pseudonym = actor
        elif self._key is None:
            return kind
        else:
            text = org + name.encode(errors="replace")
            pseudonym = f"{kind}:{_hash(text, self._key)}"
        if len(self._cache) >= CACHED_MAX:
            self._cache.clear()
        self._cache[org, actor] = pseudonym
        return pseudonym


def _hash(text: bytes, key: bytes) -> str:
    return hashlib.blake2b(text, key=key, digest_size=HASH_BYTES, person=PURPOSE).hexdigest()


# Those of this process, like its log.
pseudonyms: Final = Pseudonyms()


class PseudonymKey:
    """Reads the secret, and follows its rotation."""

    def __init__(self, database: Database) -> None:
        self._secret = SharedSecret(database, SecretName.CLIENT_ADDRESSES)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._read()
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self._read()

    async def _read(self) -> None:
        """If that fails, for whatever reason, the known key stays for now. The lines after an outage keep the
        pseudonyms of the lines before it, and selling does not depend on them."""
        try:
            pseudonyms.set_key((await self._secret.keyring()).signing.value)
        except Exception as error:
            log.warning("pseudonym_key_not_read", error=type(error).__name__)
