"""Rows on their way into the database: a few documents, and every count of rows is checked."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, json

_encode = json.Encoder().encode


class LostUpdateError(AssertionError):
    """Fewer or more rows changed than were decided. This is a bug in the engine, and must be loud."""


class Row(Struct, gc=False, omit_defaults=True):
    """A row to write. Its fields are the columns that `desk.sql` takes; ids and hashes are in hexadecimal."""


def document(rows: Sequence[Row]) -> str:
    return _encode(rows).decode()


def bytea(raw: bytes) -> str:
    return "\\x" + raw.hex()


def check(what: str, saved: Any, **expected: int) -> None:
    if dict(saved) != expected:
        raise LostUpdateError(f"{what}: {dict(saved)} instead of {expected}")
