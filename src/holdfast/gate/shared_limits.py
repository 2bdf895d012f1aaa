"""Rate limits that all processes share.

Each process decides on its own, at once, from its own token buckets. A few times a second it tells Redis what its
callers have spent, and learns how many tokens the shared buckets have left. It never reports callers far from any
limit, so most callers cost nothing.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import structlog

from holdfast.gate import lua
from holdfast.gate.redis_client import Command, RedisCalls, UnavailableError
from holdfast.gate.user_hash import PURPOSE, UserHasher
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS
from holdfast.runtime.shared_secrets import SecretValue

log = structlog.get_logger()

SHARE_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0
# The buckets of a shard are in one slot of a cluster, so that one call can spend from many of them.
SHARDS: Final = 64
CALLERS_MAX: Final = 5_000
HASH_BYTES: Final = 12


class SharedLimit(Protocol):
    """A rate limit of this process, with a name that all processes use."""

    @property
    def name(self) -> str: ...
    @property
    def rate(self) -> float: ...
    @property
    def burst(self) -> float: ...

    def take_spent(self, callers_max: int) -> Mapping[str, int]:
        """What callers have spent since the last call."""

    def set_left(self, caller: str, tokens: float) -> None:
        """Correct a caller's bucket to the tokens that the shared bucket has left."""


class SharedLimits:
    def __init__(self, calls: RedisCalls, hasher: UserHasher, limits: Sequence[SharedLimit]) -> None:
        self._calls = calls
        self._hasher = hasher
        self._limits = limits

    async def run(self) -> None:
        while True:
            pause = SHARE_SECONDS
            try:
                await self.share()
            except UnavailableError:
                pause = RETRY_SECONDS
            except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
                log.warning("limits_not_shared", error=type(error).__name__)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def share(self) -> None:
        for limit in self._limits:
            spent = limit.take_spent(CALLERS_MAX)
            if spent:
                await self._share(limit, spent, await self._hasher.secret())

    async def _share(self, limit: SharedLimit, spent: Mapping[str, int], secret: SecretValue) -> None:
        shards: dict[int, dict[str, str]] = defaultdict(dict)
        for caller in spent:
            hashed = hashlib.blake2b(caller.encode(), key=secret.value, digest_size=HASH_BYTES, person=PURPOSE).digest()
            shard = hashed[0] % SHARDS
            shards[shard][caller] = f"rate:{{{shard}}}:{limit.name}:{hashed.hex()}"
        replies = await self._calls.run([_spend(limit, keys, spent) for keys in shards.values()])
        for keys, left in zip(shards.values(), replies, strict=True):
            for caller, tokens in zip(keys, left, strict=True):
                limit.set_left(caller, float(tokens))


def _spend(limit: SharedLimit, keys: Mapping[str, str], spent: Mapping[str, int]) -> Command:
    # By then, even a bucket in debt is full again.
    keep_ms = int(2000 * limit.burst / limit.rate) + 1000
    tokens = [spent[caller] for caller in keys]
    return ("EVAL", lua.SPEND, len(keys), *keys.values(), limit.rate, limit.burst, keep_ms, *tokens)
