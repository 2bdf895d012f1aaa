"""JSON documents of rows on their way into the database, and the check of how many rows changed."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, json

from holdfast.core.booking import Booking

_encode = json.Encoder().encode


class LostUpdateError(AssertionError):
    """A statement changed fewer or more rows than the batch decided. This is a bug, and it must be loud."""


class Row(Struct, gc=False, omit_defaults=True):
    """A row to write. Its fields are the columns that `engine.sql` takes; ids and hashes become base64."""


def document(rows: Sequence[Row | Booking]) -> str:
    return _encode(rows).decode()


def check_counts(statement: str, saved: Any, **expected: int) -> None:
    if dict(saved) != expected:
        raise LostUpdateError(f"{statement}: {dict(saved)} instead of {expected}")
