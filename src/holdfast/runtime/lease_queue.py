"""A queue in a table, shared by any number of workers.

A claim is a lease: one statement takes rows that are due, `FOR UPDATE SKIP LOCKED`, and moves their `due_at` past the
end of the lease. No transaction stays open while a worker works on them. Afterwards the worker finishes or postpones
each row with a statement of its own. If the worker dies or fails first, the row becomes due again when the lease ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import structlog
from msgspec import Struct

from holdfast.runtime.db import DatabaseScope, Row
from holdfast.sql import NamedStatement

log = structlog.get_logger()

Result = TypeVar("Result")


class PassResult(Struct, Generic[Result], frozen=True):
    """What came of one pass over claimed rows: a result or a failure for each."""

    results: list[Result]
    failures: list[Exception]

    @property
    def rows(self) -> int:
        return len(self.results) + len(self.failures)


class LeaseQueue(Struct, Generic[Row], frozen=True, kw_only=True):
    """`claim_statement` takes `:claim_max`, `:lease_seconds` and what the caller adds. `label` names a row in the log.
    Rows with the same `order_key` are worked on one after another, all others at once."""

    name: str
    row_type: type[Row]
    claim_statement: NamedStatement
    claim_max: int
    lease_seconds: float
    label: Callable[[Row], str]
    order_key: Callable[[Row], Hashable] | None = None

    async def run_once(
        self, scope: DatabaseScope, work: Callable[[Row], Awaitable[Result]], **values: object
    ) -> PassResult[Result]:
        return await self.work_on(await self.claim(scope, **values), work)

    async def claim(self, scope: DatabaseScope, **values: object) -> list[Row]:
        """Up to `claim_max` rows, unless `values` has another number."""
        defaults = {"claim_max": self.claim_max, "lease_seconds": self.lease_seconds}
        return await scope.rows(self.row_type, *self.claim_statement(**{**defaults, **values}))

    async def work_on(self, rows: Sequence[Row], work: Callable[[Row], Awaitable[Result]]) -> PassResult[Result]:
        """One row that fails does not stop the others; it stays leased, and becomes due again."""
        result = PassResult[Result]([], [])
        groups = (self._work_in_order(group, work, result) for group in self._groups(rows))
        for ended in await asyncio.gather(*groups, return_exceptions=True):
            if ended is not None:
                raise ended
        return result

    async def _work_in_order(
        self, rows: Iterable[Row], work: Callable[[Row], Awaitable[Result]], result: PassResult[Result]
    ) -> None:
        for row in rows:
            try:
                result.results.append(await work(row))
            except Exception as error:
                result.failures.append(error)
                log.error("queue_row_failed", queue=self.name, row=self.label(row), error=type(error).__name__)

    def _groups(self, rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
        if self.order_key is None:
            return [[row] for row in rows]
        groups: dict[Hashable, list[Row]] = {}
        for row in rows:
            groups.setdefault(self.order_key(row), []).append(row)
        return groups.values()
