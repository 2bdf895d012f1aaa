"""The bookings of an event as CSV, for staff who work in spreadsheets."""

import csv
import io
import re
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from msgspec import Struct

from holdfast import sql
from holdfast.api.booking_schemas import BookingView, booking_view
from holdfast.api.call import ApiResponse, Call, StreamedBody
from holdfast.api.event_handlers import EventRow, require_event
from holdfast.api.requests import ExportQuery
from holdfast.core.booking import Booking
from holdfast.core.buyer_form import Question
from holdfast.core.layout import BookedItem
from holdfast.i18n.formatting import minor_digits
from holdfast.runtime import ids

# Other requests wait while a page is read and written.
PAGE_BOOKINGS_MAX: Final = 200
PAGE_LINES_MAX: Final = 1_000
FIRST: Final = bytes(16)
FILE_NAME_MAX: Final = 60
# Spreadsheets treat a cell that begins with one of these as a formula, which can send other cells elsewhere.
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")

Cell = str | int | None


class Column(Struct, frozen=True):
    name: str
    value: Callable[[BookingView], Cell]


COLUMNS: Final = (
    Column("reference", lambda booking: booking.reference),
    Column("id", lambda booking: booking.id),
    Column("status", lambda booking: booking.status),
    Column("user", lambda booking: booking.user),
    Column("name", lambda booking: booking.contact.name),
    Column("email", lambda booking: booking.contact.email),
    Column("phone", lambda booking: booking.contact.phone),
    Column("items", lambda booking: "; ".join(map(_item_text, booking.items))),
    Column("units", lambda booking: sum(item.quantity for item in booking.items)),
    Column("subtotal", lambda booking: _amount(booking.subtotal, booking.currency)),
    Column("tax", lambda booking: _amount(booking.tax, booking.currency)),
    Column("total", lambda booking: _amount(booking.total, booking.currency)),
    Column("currency", lambda booking: booking.currency),
    Column("created_at", lambda booking: _time(booking.created_at)),
)


class ExportedRow(Struct, frozen=True):
    """A booking without its details, with the database's time."""

    now: datetime
    booking: Booking
    items: list[BookedItem]
    answers: dict[str, Any] | None


Page = Sequence[ExportedRow]


async def export_bookings(call: Call, query: ExportQuery) -> ApiResponse[bytes]:
    event = await require_event(call)
    found = await call.services.reports.event(event).row(EventRow, sql.reads.event, event)
    assert found is not None
    # Once the response has started, an error can only cut it off. Most errors occur while the first page is read.
    first = await _read_page(call, event, FIRST)
    file_name = _file_name(found.title) or ids.format_event_id(event)
    return ApiResponse(
        StreamedBody(_write_pages(call, event, found.questions, query, first)),
        headers=((b"content-disposition", f'attachment; filename="bookings-{file_name}.csv"'.encode()),),
        content_type=b"text/csv; charset=utf-8",
    )


async def _read_page(call: Call, event: bytes, after: bytes) -> Page:
    # Exports take turns, so that together they use one connection and leave time for other requests.
    async with call.services.export_turn:
        return await call.services.reports.event(event).rows(
            ExportedRow,
            *sql.reads.bookings_of_event(event=event, after=after, limit=PAGE_BOOKINGS_MAX, lines_max=PAGE_LINES_MAX),
        )


async def _write_pages(
    call: Call, event: bytes, questions: Sequence[Question], query: ExportQuery, page: Page
) -> AsyncIterator[bytes]:
    """All bookings from this page on, with a column for each question. Holdfast reads the pages one by one, so the file
    may miss changes that happen meanwhile, but it has every booking that existed before."""
    yield write_csv([[*(column.name for column in COLUMNS), *(question.label for question in questions)]])
    while page:
        yield write_csv(_write_rows(page, questions, query))
        page = await _read_page(call, event, page[-1].booking.id)


def _write_rows(page: Page, questions: Sequence[Question], query: ExportQuery) -> Iterator[list[Cell]]:
    for row in page:
        view = booking_view(row.booking, row.items, row.now)
        if query.status in (None, view.status):
            answers = row.answers or {}
            cells = [column.value(view) for column in COLUMNS]
            yield [*cells, *(_answer_text(answers.get(question.code)) for question in questions)]


def _answer_text(answer: Any) -> str | None:
    """The answers for all units share one cell."""
    if isinstance(answer, list):
        return " | ".join(_answer_text(each) or "" for each in answer)
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    return answer if isinstance(answer, str) else None


def write_csv(rows: Iterable[Iterable[Cell]]) -> bytes:
    """The rows as RFC 4180 specifies, in UTF-8. No cell is a formula."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows([_disarm(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _disarm(cell: Cell) -> Cell:
    """An apostrophe makes a spreadsheet treat the cell as text."""
    if not isinstance(cell, str):
        return cell
    # Some programs skip spaces and invisible characters, or read full-width signs like plain ones.
    seen = unicodedata.normalize("NFKC", "".join(c for c in cell[:100] if c.isprintable())).lstrip()
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) or seen.startswith(FORMULA_STARTS) else cell


def _item_text(item: BookedItem) -> str:
    what = item.seat if item.seat is not None else f"{item.quantity} x {item.pool}"
    return f"{what} ({item.tariff})"


def _amount(minor: int | None, currency: str) -> str | None:
    """The amount in units of the currency, as people enter it into spreadsheets: 35.70 instead of 3570."""
    return str(Decimal(minor).scaleb(-minor_digits(currency))) if minor is not None else None


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _file_name(title: str) -> str:
    """The title in letters that every file system accepts, or an empty text if it has none."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:FILE_NAME_MAX].strip("-")
