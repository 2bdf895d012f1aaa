"""Turns client addresses into keyed hashes. Limits by address need to recognise an address, but nobody needs to read
it."""

import hashlib
from collections import OrderedDict
from typing import Final

from holdfast.runtime.db import Database
from holdfast.runtime.shared_secrets import SecretName, SharedSecret

HASH_BYTES: Final = 12
CACHED_MAX: Final = 10_000


class ClientHasher:
    """Hashes addresses with a secret of this installation. The hashes of two orgs have nothing in common."""

    def __init__(self, database: Database) -> None:
        self._secret = SharedSecret(database, SecretName.CLIENT_ADDRESSES)
        self._cache: OrderedDict[tuple[int, bytes, str], bytes] = OrderedDict()

    async def hash(self, org: bytes, address: str) -> bytes:
        """`address` is what `client_address` returns: the same for all addresses of one client."""
        secret = (await self._secret.keyring()).signing
        key = (secret.number, org, address)
        hashed = self._cache.get(key)
        if hashed is None:
            text = org + address.encode(errors="replace")
            hashed = self._cache[key] = hashlib.blake2b(text, key=secret.value, digest_size=HASH_BYTES).digest()
            if len(self._cache) > CACHED_MAX:
                self._cache.popitem(last=False)
        return hashed
