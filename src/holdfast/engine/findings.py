"""What the auditor reports."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from holdfast.runtime import ids

# How many findings of one kind are named for each event.
FINDINGS_MAX: Final = 100


class Finding(Struct, frozen=True):
    """An inconsistency. `what` names its kind, and `subject` the pool, seat, booking, payment or entry that is wrong.
    `detail` tells an operator in a sentence what is wrong and where to look."""

    event: str
    what: str
    subject: str
    detail: str


class EventFindings:
    """Collects the findings about one event: of each kind, up to `FINDINGS_MAX` and how many more there are."""

    def __init__(self, event: bytes) -> None:
        self._event = event
        self._found: list[Finding] = []
        self._counts: Counter[str] = Counter()
        self._subjects: set[tuple[str, str]] = set()

    def add(self, what: str, subject: str, detail: str) -> None:
        self._counts[what] += 1
        self._subjects.add((what, subject))
        if self._counts[what] <= FINDINGS_MAX:
            self._found.append(Finding(self.event, what, subject, detail))

    @property
    def found(self) -> list[Finding]:
        return self._found + [
            Finding(self.event, what, "others", f"There are {count - FINDINGS_MAX} more findings of this kind.")
            for what, count in self._counts.items()
            if count > FINDINGS_MAX
        ]

    def has_any(self, kinds: Iterable[str], subject: str) -> bool:
        return any((what, subject) in self._subjects for what in kinds)

    @property
    def event(self) -> str:
        return ids.format_event_id(self._event)

    def booking(self, id_: bytes) -> str:
        return ids.format_booking_id(self._event, id_)

    def payment(self, id_: bytes) -> str:
        return ids.format_payment_id(self._event, id_)
