"""Tickets as a PDF, one A4 page each.

A page shows one card: a band with the org's name, the event, and below a dashed line the stub with the QR code beside
the seat, the area, the ticket type and the booking.
"""

import logging
import unicodedata
from collections.abc import Sequence
from importlib import resources
from typing import Final

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, get_timezone_name
from fpdf import FPDF
from fpdf.drawing import PaintedPath
from fpdf.enums import Align, PathPaintRule, XPos, YPos
from fpdf.fonts import TTFFont

from holdfast.i18n.formatting import format_times, in_zone, shorten
from holdfast.i18n.languages import LANGUAGES
from holdfast.i18n.texts import Section, section
from holdfast.tickets.printed_ticket import PrintedTicket
from holdfast.tickets.qr import qr_runs

# It logs every font table that it drops.
logging.getLogger("fontTools").setLevel(logging.ERROR)

_FONT: Final = "DejaVu"
_MM_PER_PT: Final = 25.4 / 72
_LINE_HEIGHT: Final = 1.25

_PAGE_MM: Final = 210.0
_MARGIN_MM: Final = 18.0
_CARD_MM: Final = _PAGE_MM - 2 * _MARGIN_MM
_PADDING_MM: Final = 13.0
_LEFT_MM: Final = _MARGIN_MM + _PADDING_MM
_TEXT_MM: Final = _CARD_MM - 2 * _PADDING_MM
_BAND_MM: Final = 17.0
_CORNER_MM: Final = 4.0
_NOTCH_MM: Final = 3.5
_QR_MM: Final = 76.0
# Four fields are as high as the QR code beside them.
_FIELD_MM: Final = _QR_MM / 4
_GAP_MM: Final = 12.0

_INK: Final = (17, 24, 39)
_GRAY: Final = (100, 110, 125)
_HAIR: Final = (200, 205, 212)
_WHITE: Final = (255, 255, 255)

_TITLE_PTS: Final = (28, 24, 20, 16)
_VALUE_PTS: Final = (13, 11, 9)
# More than fits into any field. The time to measure a text grows faster than its length.
_TEXT_MAX: Final = 400
# Replaces characters that the fonts lack.
_MISSING: Final = "□"


def tickets_pdf(tickets: Sequence[PrintedTicket], language: str) -> bytes:
    """Takes a tenth of a second or more, mostly to subset the fonts. Run it in a thread."""
    locale = _locale(language)
    document = _PdfDocument()
    document.set_lang(str(locale).replace("_", "-"))
    document.set_title(_tidy(tickets[0].event_title[:_TEXT_MAX]))
    document.set_author(_tidy(tickets[0].org_name[:_TEXT_MAX]))
    document.set_creator("Holdfast")
    for ticket in tickets:
        document.add_page()
        _draw(document, ticket, locale)
    return bytes(document.output())


def _locale(language: str) -> Locale:
    """Keeps the region of a tag such as `en-GB`, because it decides how dates look."""
    try:
        locale = Locale.parse(language.replace("-", "_"))
    except (ValueError, UnknownLocaleError):
        return Locale("en")
    return locale if locale.language in LANGUAGES else Locale("en")


class _PdfDocument(FPDF):
    """Pages are written from top to bottom and never break: text that is too long shrinks first, then gets cut."""

    def __init__(self) -> None:
        super().__init__(format="A4", unit="mm")
        self.set_auto_page_break(False)
        self.c_margin = 0
        fonts = resources.files(__package__).joinpath("fonts")
        for style, file in (("", "DejaVuSans.ttf"), ("B", "DejaVuSans-Bold.ttf")):
            with resources.as_file(fonts.joinpath(file)) as path:
                self.add_font(_FONT, style, path)
        known = (frozenset(font.cmap) for font in self.fonts.values() if isinstance(font, TTFFont))
        self._known = frozenset.intersection(*known)

    def write_text(
        self,
        text: str,
        x_mm: float,
        width_mm: float,
        pts: Sequence[int],
        *,
        lines_max: int = 1,
        bold: bool = False,
        color: tuple[int, int, int] = _INK,
        align: Align = Align.L,
    ) -> None:
        """Write in the first of these sizes that fits the text into the lines, and move below it."""
        text = shorten(_tidy(text[: 2 * _TEXT_MAX]), _TEXT_MAX)
        text = "".join(char if ord(char) in self._known else _MISSING for char in text)
        for pt in pts:
            self.set_font(_FONT, "B" if bold else "", pt)
            lines = self._lines(text, width_mm)
            if len(lines) <= lines_max:
                break
        else:
            lines = [*lines[: lines_max - 1], self._cut(lines[lines_max - 1], width_mm)]
        self.set_text_color(color)
        for line in lines:
            self.set_x(x_mm)
            height_mm = self.font_size_pt * _MM_PER_PT * _LINE_HEIGHT
            self.cell(width_mm, height_mm, line, align=align, new_x=XPos.LEFT, new_y=YPos.NEXT)

    def write_label(self, text: str, x_mm: float, width_mm: float) -> None:
        self.write_text(text, x_mm, width_mm, (8,), color=_GRAY)
        self.set_y(self.get_y() + 1)

    def _lines(self, text: str, width_mm: float) -> list[str]:
        self.set_x(_MARGIN_MM)
        found = self.multi_cell(width_mm, text=text, align=Align.L, dry_run=True, output="LINES")
        assert isinstance(found, list)
        return found

    def _cut(self, line: str, width_mm: float) -> str:
        while line and self.get_string_width(line + "…") > width_mm:
            line = line[:-1]
        return line.rstrip() + "…"


def _draw(document: _PdfDocument, ticket: PrintedTicket, locale: Locale) -> None:
    labels = section(locale.language, "ticket")
    _draw_band(document, ticket, labels)
    document.set_y(_MARGIN_MM + _BAND_MM + 11)
    document.write_text(ticket.event_title, _LEFT_MM, _TEXT_MM, _TITLE_PTS, lines_max=3, bold=True)
    document.set_y(document.get_y() + 8)
    _draw_when_and_where(document, ticket, labels, locale)
    dashes_mm = document.get_y() + _GAP_MM
    document.set_y(dashes_mm + _GAP_MM)
    _draw_stub(document, ticket, labels)
    _draw_outline(document, dashes_mm, document.get_y() + _GAP_MM)
    document.set_y(document.get_y() + _GAP_MM + 5)
    document.write_text(labels["note"], _LEFT_MM, _TEXT_MM, (8,), lines_max=3, color=_GRAY)


def _draw_band(document: _PdfDocument, ticket: PrintedTicket, labels: Section) -> None:
    document.set_fill_color(_INK)
    document.rect(_MARGIN_MM, _MARGIN_MM, _CARD_MM, _BAND_MM + _CORNER_MM, "F", True, _CORNER_MM)
    document.set_fill_color(_WHITE)
    document.rect(_MARGIN_MM, _MARGIN_MM + _BAND_MM, _CARD_MM, _CORNER_MM + 1, "F")
    document.set_y(_MARGIN_MM + 5.5)
    document.write_text(ticket.org_name, _LEFT_MM, _TEXT_MM - 46, (13, 11), bold=True, color=_WHITE)
    document.set_y(_MARGIN_MM + 6.2)
    ticket_of_count = labels["ticket"].format(number=ticket.number, count=ticket.count)
    document.write_text(ticket_of_count, _LEFT_MM + _TEXT_MM - 44, 44, (10, 8), color=_WHITE, align=Align.R)


def _draw_when_and_where(document: _PdfDocument, ticket: PrintedTicket, labels: Section, locale: Locale) -> None:
    starts_at = in_zone(ticket.starts_at, ticket.timezone)
    date = format_date(starts_at, "full", locale)
    document.write_label(labels["when"], _LEFT_MM, _TEXT_MM)
    document.write_text(date[:1].upper() + date[1:], _LEFT_MM, _TEXT_MM, _VALUE_PTS, bold=True)
    times = format_times(ticket.starts_at, ticket.ends_at, ticket.timezone, locale)
    zone_name = get_timezone_name(starts_at, "long", locale=locale)
    document.write_text(f"{times} · {zone_name}", _LEFT_MM, _TEXT_MM, (11, 9))
    if ticket.address:
        document.set_y(document.get_y() + 6)
        document.write_label(labels["where"], _LEFT_MM, _TEXT_MM)
        lines = ticket.address[: 2 * _TEXT_MAX].splitlines()
        address = ", ".join(line.strip(" ,") for line in lines)
        document.write_text(address, _LEFT_MM, _TEXT_MM, _VALUE_PTS, lines_max=2)


def _draw_stub(document: _PdfDocument, ticket: PrintedTicket, labels: Section) -> None:
    """The QR code, and beside it what the staff at the door may want to read."""
    top_mm = document.get_y()
    _draw_qr(document, ticket.code, _LEFT_MM, top_mm)
    x_mm = _LEFT_MM + _QR_MM + _GAP_MM
    width_mm = _TEXT_MM - _QR_MM - _GAP_MM
    for row, (label, value) in enumerate(_fields(ticket, labels)):
        document.set_y(top_mm + row * _FIELD_MM)
        document.write_label(label, x_mm, width_mm)
        document.write_text(value, x_mm, width_mm, _VALUE_PTS, lines_max=2, bold=True)
    document.set_y(top_mm + _QR_MM)


def _fields(ticket: PrintedTicket, labels: Section) -> list[tuple[str, str]]:
    seat = [] if ticket.seat is None else [(labels["seat"], ticket.seat)]
    return [
        *seat,
        (labels["pool"], ticket.pool),
        (labels["tariff"], ticket.tariff),
        (labels["booking"], ticket.booking),
    ]


def _draw_qr(document: _PdfDocument, code: str, x_mm: float, y_mm: float) -> None:
    """Drawn as one path, so that it stays sharp at any size and shows no seams. The white of the card is its margin."""
    modules, runs = qr_runs(code)
    module_mm = _QR_MM / modules
    path = PaintedPath()
    path.style.paint_rule = PathPaintRule.FILL_NONZERO
    path.style.fill_color = "#000"
    for x, y, length in runs:
        path.rectangle(x_mm + x * module_mm, y_mm + y * module_mm, length * module_mm, module_mm)
    with document.drawing_context() as drawing:
        drawing.add_item(path, clone=False)


def _draw_outline(document: _PdfDocument, dashes_mm: float, bottom_mm: float) -> None:
    """The edge of the card, and the dashed line where the stub tears off."""
    right_mm = _MARGIN_MM + _CARD_MM
    document.set_draw_color(_HAIR)
    document.set_line_width(0.3)
    document.rect(_MARGIN_MM, _MARGIN_MM, _CARD_MM, bottom_mm - _MARGIN_MM, "D", True, _CORNER_MM)
    document.set_fill_color(_WHITE)
    for x_mm, from_degrees in ((_MARGIN_MM, -90), (right_mm, 90)):
        document.circle(x_mm, dashes_mm, _NOTCH_MM, "F")
        document.arc(x_mm - _NOTCH_MM, dashes_mm - _NOTCH_MM, 2 * _NOTCH_MM, from_degrees, from_degrees + 180)
    document.set_dash_pattern(1.2, 1.6)
    document.line(_MARGIN_MM + 2 * _NOTCH_MM, dashes_mm, right_mm - 2 * _NOTCH_MM, dashes_mm)
    document.set_dash_pattern()


def _tidy(text: str) -> str:
    """One line, with accents composed into their letters, and without invisible characters, which the font would draw
    as boxes."""
    joined = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(character for character in joined if not _is_invisible(character))


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf") or "\ufe00" <= character <= "\ufe0f"
