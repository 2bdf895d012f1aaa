"""Users as keyed hashes. Redis needs to recognise a user, but nobody needs to read one there."""

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
        """The secret for `hash_user`. After a rotation, hashes of the old one count for nothing."""
        return (await self._secret.keyring()).signing


def hash_user(secret: SecretValue, org: bytes, user: str) -> str:
    """The hashes of two orgs have nothing in common."""
    text = org + user.encode(errors="replace")
    return hashlib.blake2b(text, key=secret.value, digest_size=HASH_BYTES, person=PURPOSE).hexdigest()
