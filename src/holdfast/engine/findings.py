"""What the auditor reports."""

from msgspec import Struct

from holdfast.runtime import ids


class Finding(Struct, frozen=True):
    """An inconsistency. `what` names its kind, and `subject` the pool, seat, booking, payment or entry that is wrong.
    `detail` tells an operator in a sentence what is wrong and where to look."""

    event: str
    what: str
    subject: str
    detail: str


class EventFindings:
    """Collects the findings about one event."""

    def __init__(self, event: bytes) -> None:
        self._event = event
        self.found: list[Finding] = []

    def add(self, what: str, subject: str, detail: str) -> None:
        self.found.append(Finding(ids.format_event_id(self._event), what, subject, detail))

    def booking(self, id_: bytes) -> str:
        return ids.format_booking_id(self._event, id_)

    def payment(self, id_: bytes) -> str:
        return ids.format_payment_id(self._event, id_)
