"""Who is coming to which shift, as a file for a spreadsheet."""

from collections.abc import Sequence
from typing import Final

from holdfast.api.booking_export import write_csv
from holdfast.api.responses import EventView
from holdfast.bot.markup import label
from holdfast.bot.roster import Attendee
from holdfast.runtime import ids

COLUMNS: Final = ("shift", "work_time", "name", "phone", "status", "reference", "no_show")
# Tells spreadsheets that the file is UTF-8.
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def roster_csv(rosters: Sequence[tuple[EventView, Sequence[Attendee]]], language: str) -> bytes:
    header = [label(language, f"roster.{name}") for name in COLUMNS]
    rows = [_cells(view, attendee, language) for view, attendees in rosters for attendee in attendees]
    return BYTE_ORDER_MARK + write_csv([header, *rows])


def _cells(view: EventView, attendee: Attendee, language: str) -> list[str | None]:
    return [
        view.title,
        view.shift.work_time if view.shift is not None else None,
        attendee.name or attendee.user_id,
        attendee.phone,
        label(language, f"status.{attendee.status}"),
        ids.booking_reference(attendee.id),
        "x" if attendee.is_no_show else None,
    ]
