"""How far Redis has followed the journal of each event."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from holdfast.gate import lua
from holdfast.gate.entries import CURRENT_SECONDS, KEPT_MS, EventKeys, format_time
from holdfast.gate.redis_client import Command, RedisCalls
from holdfast.runtime.shared_secrets import SecretValue

# Processes follow an event whose copy is older than this. Several may try; most find that another one has done it.
FOLLOWED_AFTER_SECONDS: Final = 1.0
# Processes rebuild an event after this time, well before Redis drops its entries.
REBUILD_SECONDS: Final = 1_800


class Head(Struct, frozen=True):
    """Where an event stands in PostgreSQL."""

    at: datetime
    org: bytes
    version: int
    revision: int


class Mark(Struct, frozen=True):
    """`at` is the time up to which Redis knows the event. Without it, the event is asleep. `is_complete`: Redis has all
    of the event's buyers."""

    generation: str
    version: int
    secret: str
    built_at: str
    at: str | None
    next_expiry: str | None
    is_complete: bool

    def needs_build(self, secret: SecretValue, now: datetime | None) -> bool:
        if not self.is_complete or self.secret != str(secret.number):
            return True
        return now is not None and self.built_at < format_time(now - timedelta(seconds=REBUILD_SECONDS))

    def needs_follow(self, now: datetime | None) -> bool:
        if now is None or self.at is None:
            return True
        has_expired = self.next_expiry is not None and self.next_expiry <= format_time(now)
        return has_expired or not self.is_current(now, FOLLOWED_AFTER_SECONDS)

    def is_current(self, now: datetime, seconds: float = CURRENT_SECONDS) -> bool:
        """Whether the copy is at most this old. After a failover, the clock of the new database may be behind the time
        in Redis."""
        if self.at is None:
            return False
        since, until = (format_time(now + timedelta(seconds=each)) for each in (-seconds, seconds))
        return since <= self.at <= until


def begin_generation(keys: EventKeys, head: Head, generation: str, secret: SecretValue) -> Command:
    fields: dict[str, str | int] = {
        "generation": generation,
        "version": head.version,
        "revision": head.revision,
        "secret": secret.number,
        "built_at": format_time(head.at),
    }
    pairs = [part for pair in fields.items() for part in pair]
    return ("EVAL", lua.BEGIN, 2, keys.state, keys.ahead, KEPT_MS, *pairs)


def complete_generation(keys: EventKeys, generation: str, parts: int) -> Command:
    return ("EVAL", lua.COMPLETE, 2, keys.known, keys.build, generation, parts)


def put_to_sleep(keys: EventKeys) -> Command:
    """Let everyone through until the journal has been followed."""
    return ("HDEL", keys.state, "at")


async def read_marks(calls: RedisCalls, orgs: Mapping[bytes, bytes]) -> dict[bytes, Mark | None]:
    """The mark of each event. `orgs` has the org of each."""
    keys = [EventKeys(org, event) for event, org in orgs.items()]
    fields = ("generation", "version", "secret", "built_at", "at", "next_expiry")
    found = await calls.run([("HMGET", of_event.state, *fields) for of_event in keys], writes=False)
    states = [[value.decode() if value is not None else None for value in values] for values in found]
    complete = await calls.run(
        [
            ("SISMEMBER", of_event.known, _complete_member(state[0]))
            for of_event, state in zip(keys, states, strict=True)
        ],
        writes=False,
    )
    return {
        event: _make_mark(*state, is_complete=bool(is_complete))
        for event, state, is_complete in zip(orgs, states, complete, strict=True)
    }


def _make_mark(
    generation: str | None,
    version: str | None,
    secret: str | None,
    built_at: str | None,
    at: str | None,
    next_expiry: str | None,
    *,
    is_complete: bool,
) -> Mark | None:
    if generation is None or version is None or secret is None or built_at is None:
        return None
    return Mark(generation, int(version), secret, built_at, at, next_expiry, is_complete)


def _complete_member(generation: str | None) -> str:
    return f"complete:{generation or ''}"
