"""Users as keyed hashes. Redis must recognise users, but nobody should be able to identify them there."""

import hashlib
from typing import Final

from holdfast.runtime.db import Database
from holdfast.runtime.shared_secrets import SecretName, SecretValue, SharedSecret

HASH_BYTES: Final = 12
# Keeps these hashes apart from those of client addresses, which have the same secret.
PURPOSE: Final = b"holdfast-gate"


class UserHasher:
    def __init__(self, database: Database) -> None:
        self._secret = SharedSecret(database, SecretName.CLIENT_ADDRESSES)

    async def secret(self) -> SecretValue:
        """The secret for `hash_user`. After a rotation, hashes made with the old secret no longer match."""
        return (await self._secret.keyring()).signing


def hash_user(secret: SecretValue, org: bytes, user: str) -> str:
    """The same user has unrelated hashes in different orgs."""
    text = org + user.encode(errors="replace")
    return hashlib.blake2b(text, key=secret.value, digest_size=HASH_BYTES, person=PURPOSE).hexdigest()
