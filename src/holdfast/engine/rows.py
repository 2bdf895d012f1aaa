"""Rows on their way into the database: as JSON documents, or as columns. And the check of how many rows changed."""

from collections.abc import Iterable
from typing import Any, Final

from asyncpg import IntegrityConstraintViolationError
from msgspec import Struct, json

from holdfast.core.event_state import OversoldError

encode = json.Encoder().encode


class LostUpdateError(AssertionError):
    """A statement changed fewer or more rows than the batch decided. This is a bug, and it must be loud."""


# A transaction that fails with one of these would have broken a promise.
VIOLATIONS: Final = (IntegrityConstraintViolationError, OversoldError, LostUpdateError)


class RowDocument(Struct, gc=False, omit_defaults=True):
    """A row to write. Its fields are the columns that `engine.sql` takes; ids and hashes become base64."""


def document(value: Any) -> str:
    return encode(value).decode()


def check_counts(statement: str, saved: Any, **expected: int) -> None:
    if dict(saved) != expected:
        raise LostUpdateError(f"{statement}: {dict(saved)} instead of {expected}")


def columns(rows: Iterable[tuple[Any, ...]], width: int = 2) -> list[tuple[Any, ...]]:
    """The rows as one array per column, which is how statements unnest them."""
    return list(zip(*rows, strict=True)) or [()] * width
