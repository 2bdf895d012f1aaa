"""Counts the transactions that a constraint or a check has kept from breaking a promise."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from asyncpg import IntegrityConstraintViolationError, UniqueViolationError

from holdfast.core.event_state import OversoldError
from holdfast.engine.rows import LostUpdateError
from holdfast.runtime import metrics

VIOLATIONS: Final = (IntegrityConstraintViolationError, OversoldError, LostUpdateError)
# An org may try to use an order number twice. Only this constraint can tell.
_ORDER_NUMBER: Final = "event_order_number"


@contextmanager
def count_violations() -> Iterator[None]:
    try:
        yield
    except VIOLATIONS as error:
        if not is_used_order_number(error):
            metrics.INVARIANT_VIOLATIONS.add()
        raise


def is_used_order_number(error: BaseException) -> bool:
    return isinstance(error, UniqueViolationError) and error.constraint_name == _ORDER_NUMBER
