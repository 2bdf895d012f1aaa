"""The hashes that chain the entries of a journal. Each entry carries the hash of the one before it.

The hash of an entry is SHA-256 over the hash that it carries, its time in microseconds since 1970, its booking, its
kind, its actor and its data. A text in PostgreSQL has no null character, so null characters separate the texts. The
number of an entry is not part of it: the number is the entry's place in the chain. The fragment `entry_hash` in
`sql/engine.sql` computes the same, and `docs/audit.md` shows how to do it by hand.
"""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def chain_start(event: bytes) -> bytes:
    """The hash that the first entry carries."""
    return sha256(b"holdfast journal" + event).digest()


def encode_time(at: datetime) -> bytes:
    return ((at - _EPOCH) // _MICROSECOND).to_bytes(8, "big", signed=True)


def entry_hash(previous: bytes, at: bytes, booking: bytes, kind: str, actor: str, data: bytes) -> bytes:
    """`at` is a time as `encode_time` returns it. `data` is the document as the database stores it."""
    return sha256(b"%b%b%b%b\0%b\0%b" % (previous, at, booking, kind.encode(), actor.encode(), data)).digest()
