"""Runs batches on one connection, and resolves every command whatever happens to its batch."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import asyncpg
import structlog

from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal, Refused
from holdfast.engine.batch import CommitListener, ignore_commit, run_batch
from holdfast.engine.command_queue import Waiting
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import LoadedBatch
from holdfast.runtime import metrics, tracing
from holdfast.runtime.db import BLOCKED_ERRORS, EXHAUSTED_ERRORS, LOST_ERRORS, Connect, Connection

log = structlog.get_logger()

BATCH_MAX: Final = 256
# The most lines of new holds in a batch. More of them would block the process for too long.
LINES_MAX: Final = 500
# How long to try to reconnect before refusing the waiting commands as busy.
RECONNECT_SECONDS: Final = 4.0
RETRY_SECONDS: Final = 0.05
# It takes nine failures to find one bad command in a batch of 256. With many more, the cause is not one command.
FAILURES_MAX: Final = 32

BUSY: Final = Refused(Refusal.BUSY)
INTERNAL: Final = Refused(Refusal.INTERNAL)

_CONFLICT_ERRORS: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class UnreachableError(Exception):
    """The database could not be reached within `RECONNECT_SECONDS`."""


class BatchRunner:
    def __init__(self, connect: Connect, layouts: LayoutCache, on_commit: CommitListener = ignore_commit) -> None:
        self._connect = connect
        self._layouts = layouts
        self._on_commit = on_commit
        self._connection: Connection | None = None

    async def serve(self, batch: Sequence[Waiting], lock_seconds: float | None = None) -> list[Waiting]:
        """Run the batch and resolve its commands. Returns those that still wait, because their event is locked or has a
        large layout to load. Without `lock_seconds` the batch waits for no lock.

        Raises `UnreachableError` with nothing resolved that was not decided."""
        metrics.LANE_WAIT_SECONDS.observe(time.monotonic() - min(each.submitted_at for each in batch))
        metrics.BATCH_COMMANDS.observe(len(batch))
        return await self._serve(batch, lock_seconds, _FailureBudget())

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _serve(
        self, batch: Sequence[Waiting], lock_seconds: float | None, failures: "_FailureBudget"
    ) -> list[Waiting]:
        outcomes = await self._attempt(batch, lock_seconds)
        if isinstance(outcomes, BLOCKED_ERRORS):
            return self._handle_blocked(batch, lock_seconds, outcomes)
        if isinstance(outcomes, EXHAUSTED_ERRORS):
            log.error("database_exhausted", error=type(outcomes).__name__, commands=len(batch))
            metrics.BATCH_FAILURES.add("exhausted")
            refuse(batch, BUSY)
            return []
        if isinstance(outcomes, Exception):
            return await self._serve_halves(batch, lock_seconds, failures, outcomes)
        unserved = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if outcome is None:
                unserved.append(waiting)
            else:
                waiting.resolve(outcome)
        return unserved

    async def _attempt(
        self, batch: Sequence[Waiting], lock_seconds: float | None
    ) -> Sequence[Outcome | None] | Exception:
        """The outcomes, or the error. This returns the error, because a raised one would become part of the errors of
        later attempts."""
        try:
            return await self._run(batch, lock_seconds)
        except UnreachableError:
            raise
        except Exception as error:
            return error

    async def _run(self, batch: Sequence[Waiting], lock_seconds: float | None) -> Sequence[Outcome | None]:
        """Run the batch, and run it again if the outcome of a commit is unknown. The ids and keys in the commands make
        the second run find the work of the first."""
        commands = [waiting.command for waiting in batch]
        on_commit = partial(self._report_commit, batch)
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + RECONNECT_SECONDS
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                with tracing.batch_span(waiting.span for waiting in batch):
                    return await run_batch(self._connection, self._layouts, commands, lock_seconds, on_commit)
            except _CONFLICT_ERRORS:
                log.warning("batch_conflicted", commands=len(commands))
                metrics.BATCH_FAILURES.add("conflict")
            except LOST_ERRORS as error:
                log.warning("connection_lost", error=type(error).__name__, commands=len(commands))
                metrics.BATCH_FAILURES.add("connection_lost")
                await self.close()
            if clock() > give_up_at:
                raise UnreachableError
            await asyncio.sleep(RETRY_SECONDS)

    def _report_commit(self, batch: Sequence[Waiting], loaded: LoadedBatch) -> None:
        loaded.waiting = batch
        self._on_commit(loaded)

    def _handle_blocked(self, batch: Sequence[Waiting], lock_seconds: float | None, error: Exception) -> list[Waiting]:
        """After a timeout, the lane serves the batch again event by event. An event on its own keeps waiting for its
        lock, but not for a slow statement."""
        if lock_seconds is None or isinstance(error, asyncpg.LockNotAvailableError):
            return list(batch)
        log.warning("batch_timed_out", commands=len(batch))
        refuse(batch, BUSY)
        return []

    async def _serve_halves(
        self, batch: Sequence[Waiting], lock_seconds: float | None, failures: "_FailureBudget", error: Exception
    ) -> list[Waiting]:
        """Find the command that breaks the batch by halving, and serve the others without it."""
        metrics.BATCH_FAILURES.add("error")
        if len(batch) == 1:
            log.error("command_failed", command=type(batch[0].command).__name__, exc_info=error)
            refuse(batch, INTERNAL)
            return []
        if not failures.spend():
            log.error("batch_given_up", error=type(error).__name__, commands=len(batch))
            refuse(batch, BUSY)
            return []
        log.warning("batch_failed", error=type(error).__name__, commands=len(batch))
        half = len(batch) // 2
        first = await self._serve(batch[:half], lock_seconds, failures)
        return first + await self._serve(batch[half:], lock_seconds, failures)


def refuse(batch: Sequence[Waiting], refused: Refused) -> None:
    for waiting in batch:
        waiting.resolve(refused)


class _FailureBudget:
    def __init__(self) -> None:
        self._left = FAILURES_MAX

    def spend(self) -> bool:
        """Return whether the budget had a failure left."""
        self._left -= 1
        return self._left >= 0
