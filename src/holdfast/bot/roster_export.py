"""Who is coming to which shift, as a file for a spreadsheet."""

import csv
import io
from collections.abc import Sequence
from typing import Final

from holdfast.api.responses import EventView
from holdfast.bot.markup import label
from holdfast.bot.roster import Attendee
from holdfast.runtime import ids

COLUMNS: Final = ("shift", "work_time", "name", "phone", "status", "reference", "no_show")


def roster_csv(rosters: Sequence[tuple[EventView, Sequence[Attendee]]], language: str) -> bytes:
    """With a mark that tells spreadsheets that this is UTF-8."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([label(language, f"roster.{name}") for name in COLUMNS])
    for view, attendees in rosters:
        work_time = view.shift.work_time if view.shift is not None else None
        for one in attendees:
            status = label(language, f"status.{one.status}")
            cells = (view.title, work_time or "", one.name or one.user_id, one.phone or "", status)
            writer.writerow([*map(_cell, cells), ids.booking_reference(one.id), "x" if one.is_no_show else ""])
    return ("\ufeff" + buffer.getvalue()).encode()


def _cell(text: str) -> str:
    """A spreadsheet would run a cell that starts like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) and not text[1:].isdecimal() else text
