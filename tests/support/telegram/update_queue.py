"""The updates that wait for a bot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tests.support.telegram.errors import ApiError

if TYPE_CHECKING:
    from tests.support.telegram.world import World

FIRST_UPDATE_ID = 730_000_001


class Update(msgspec.Struct, frozen=True, eq=False):
    id: int
    kind: str
    payload: dict[str, Any]
    # A webhook gets the updates of one lane one after the other.
    lane: tuple[str, int]

    def to_wire(self) -> dict[str, Any]:
        return {"update_id": self.id, self.kind: self.payload}


class Webhook(msgspec.Struct, eq=False):
    url: str
    secret_token: str | None
    max_connections: int
    last_error_date: int | None = None
    last_error_message: str | None = None


class Poll:
    """A getUpdates request that waits. Another request may end it."""

    def __init__(self) -> None:
        self.error: ApiError | None = None


class UpdateQueue:
    def __init__(self, world: World) -> None:
        self.pending: list[Update] = []
        self.allowed_kinds: frozenset[str] = frozenset()
        self._world = world
        self._next_id = FIRST_UPDATE_ID
        self._last_batch: list[Update] = []
        self._again: list[Update] = []
        self._repeated: set[int] = set()

    def add(self, kind: str, payload: dict[str, Any], lane_id: int) -> None:
        if not self.allowed_kinds or kind in self.allowed_kinds:
            self.pending.append(Update(self._next_id, kind, payload, (kind, lane_id)))
            self._next_id += 1

    def confirm(self, offset: int) -> None:
        """Forget the updates before the offset. A negative one counts from the end."""
        if offset < 0:
            self.pending = self.pending[offset:]
            return
        confirmed = {update.id for update in self.pending if update.id < offset}
        if self._last_batch and self._last_batch[-1].id == offset - 1:
            # In a shuffled batch, the last id need not be the highest.
            confirmed |= {update.id for update in self._last_batch}
        if self._world.duplicate:
            self._again += [update for update in self.pending if update.id in confirmed - self._repeated]
            self._repeated |= confirmed
        self.pending = [update for update in self.pending if update.id not in confirmed]

    def take(self, limit: int) -> list[Update]:
        """Updates stay until the bot confirms them."""
        batch = (self._again + self.pending)[:limit]
        if batch:
            self._again = self._again[len(batch) :]
            if self._world.shuffle:
                self._world.random.shuffle(batch)
            self._last_batch = batch
        return batch

    def remove(self, update: Update) -> None:
        self.pending = [other for other in self.pending if other is not update]

    def clear(self) -> None:
        self.pending, self._again = [], []
