"""Search and cursors for lists of events, in the API and on pages."""

import base64
import binascii
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

# A list looks at this many events at a time, however few of them match.
SCANNED_MAX: Final = 10_000
WORDS_MAX: Final = 8
# Events start between 1971 and 2499.
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2500, 1, 1, tzinfo=UTC)

_SEARCH_ESCAPES: Final = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})
_MICROSECOND: Final = timedelta(microseconds=1)
_RAW_LENGTH: Final = 24


class EventCursor(Struct, frozen=True):
    """Where a list continues: after the event with this start and id."""

    at: datetime
    id: bytes

    def __str__(self) -> str:
        raw = ((self.at - EARLIEST) // _MICROSECOND).to_bytes(8, "big") + self.id
        return base64.urlsafe_b64encode(raw).decode()


BEGINNING: Final = EventCursor(EARLIEST, bytes(16))


def parse_cursor(text: str) -> EventCursor | None:
    """The cursor, if the text is its canonical form."""
    try:
        raw = base64.b64decode(text.encode("ascii"), b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    micros = int.from_bytes(raw[:8], "big")
    if len(raw) != _RAW_LENGTH or micros >= (LATEST - EARLIEST) // _MICROSECOND:
        return None
    return EventCursor(EARLIEST + micros * _MICROSECOND, raw[8:])


def clamp_time(at: datetime) -> datetime:
    """The nearest time that an event can have. A request can contain times that PostgreSQL does not know."""
    return min(max(at, EARLIEST), LATEST)


def search_patterns(text: str | None) -> list[str]:
    """A pattern for each word. An event matches if all of them occur in its title or place, in any order."""
    words = (text or "").split()[:WORDS_MAX]
    return [f"%{word.translate(_SEARCH_ESCAPES)}%" for word in words]
