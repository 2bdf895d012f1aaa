"""Takes a hold through Redis to the engine."""

import structlog

from holdfast.core.commands import PlaceHold, SeatItem
from holdfast.core.decide import Outcome
from holdfast.core.hoarding import is_limited
from holdfast.core.layout import Layout
from holdfast.core.refusals import Refused
from holdfast.engine.attempt_log import attempt_log
from holdfast.engine.command_metrics import record_hold
from holdfast.engine.engine import Engine
from holdfast.gate.acquire_queue import ASKED, UNASKED, AcquireQueue, Ask, TakenSeats, TooFewLeft, Verdict
from holdfast.gate.circuit_breaker import CircuitBreaker
from holdfast.gate.commit_writer import CommitWriter
from holdfast.gate.early_refusal import refuse_taken_seats, refuse_too_few_left
from holdfast.gate.entries import client_id, request_id, user_id
from holdfast.gate.follower import Follower
from holdfast.gate.user_hash import UserHasher, hash_user
from holdfast.runtime import ids, metrics
from holdfast.runtime.database_clock import DatabaseClock
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS
from holdfast.runtime.request_ids import current_request_id

log = structlog.get_logger()


class SeatGate:
    def __init__(
        self,
        engine: Engine,
        breaker: CircuitBreaker,
        queue: AcquireQueue,
        writer: CommitWriter,
        follower: Follower,
        hasher: UserHasher,
        clock: DatabaseClock,
    ) -> None:
        self._engine = engine
        self._breaker = breaker
        self._queue = queue
        self._writer = writer
        self._follower = follower
        self._hasher = hasher
        self._clock = clock

    async def submit(self, command: PlaceHold) -> Outcome:
        """Refuse the hold if Redis knows that others have its seats. Otherwise the engine decides."""
        layout = self._engine.cached_layout(command.event)
        verdict: Verdict = UNASKED
        path = metrics.POSTGRES
        if layout is not None and _has_seats(command, layout):
            verdict = await self._ask(command, layout) if self._breaker.may_try else UNASKED
            path = metrics.FALLBACK if verdict is UNASKED else metrics.REDIS
        refused = self._refuse(command, layout, verdict) if layout is not None else None
        if refused is not None:
            attempt_log.add_refusal(command, refused, current_request_id())
            return record_hold(refused, path)
        outcome = record_hold(await self._engine.submit(command), path)
        if layout is None:
            self._prepare(command)
        if verdict is ASKED and isinstance(outcome, Refused):
            self._writer.add_refused(command)
        return outcome

    def _prepare(self, command: PlaceHold) -> None:
        """The process has just learned about the event. Let Redis learn about it too, before the next buyer asks."""
        layout = self._engine.cached_layout(command.event)
        if layout is not None and layout.org == command.org and layout.seats:
            self._follower.touch(command.org, command.event)

    async def _ask(self, command: PlaceHold, layout: Layout) -> Verdict:
        self._follower.touch(command.org, command.event)
        try:
            secret = await self._hasher.secret()
        except (*LOST_ERRORS, *BLOCKED_ERRORS):
            return UNASKED
        user = hash_user(secret, command.org, command.user)
        known_by = [user_id(user), request_id(command.request_key)]
        if command.client is not None and is_limited(layout.policy, command.client):
            known_by.append(client_id(command.client.address))
        best = command.best_available
        ask = Ask(
            _labels(command),
            user,
            ids.format_booking_id(command.event, command.booking),
            tuple(known_by),
            best.pool if best is not None else None,
            best.quantity if best is not None else 0,
            secret.number,
        )
        return await self._queue.submit(command.org, command.event, ask)

    def _refuse(self, command: PlaceHold, layout: Layout, verdict: Verdict) -> Refused | None:
        """The refusal that the engine would give. None if only the engine can decide, because the layout has changed or
        another rule takes precedence."""
        now = self._clock.now()
        if now is None:
            return None
        if isinstance(verdict, TakenSeats) and verdict.revision == layout.revision:
            return refuse_taken_seats(layout, command, now, verdict.labels)
        if isinstance(verdict, TooFewLeft) and verdict.revision == layout.revision:
            return refuse_too_few_left(layout, command, now, verdict.units)
        return None


def _labels(command: PlaceHold) -> tuple[str, ...]:
    return tuple([item.label for item in command.items if isinstance(item, SeatItem)])


def _has_seats(command: PlaceHold, layout: Layout) -> bool:
    """Whether Redis can know something about what the hold asks for."""
    return layout.org == command.org and bool(layout.seats) and layout.seat_by_label.keys() >= set(_labels(command))
