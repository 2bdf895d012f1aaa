"""Tickets to print: one sheet of A4 each.

A sheet is one card: a band with the seller's name, what it is about, and below the dashed line the code beside what the
ticket is good for.
"""

import logging
import unicodedata
from collections.abc import Sequence
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_time, get_timezone_name
from fpdf import FPDF
from fpdf.drawing import PaintedPath
from fpdf.enums import Align, PathPaintRule, XPos, YPos
from fpdf.fonts import TTFFont

from holdfast.i18n.formatting import LANGUAGES
from holdfast.i18n.texts import Section, section
from holdfast.tickets.printed import PrintedTicket
from holdfast.tickets.qr import qr_runs

# It tells of every table of the font that it leaves out.
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
# Four claims are as high as the code beside them.
_CLAIM_MM: Final = _QR_MM / 4
_GAP_MM: Final = 12.0

_INK: Final = (17, 24, 39)
_GRAY: Final = (100, 110, 125)
_HAIR: Final = (200, 205, 212)
_WHITE: Final = (255, 255, 255)

_TITLE_PTS: Final = (28, 24, 20, 16)
_VALUE_PTS: Final = (13, 11, 9)
# Stands for a letter that the fonts do not have.
_BOX: Final = "□"


def tickets_pdf(tickets: Sequence[PrintedTicket], language: str) -> bytes:
    """Takes a tenth of a second and more, most of it to cut the fonts down to the letters that are used: not for the
    thread that serves others."""
    locale = _locale(language)
    sheet = _Sheet()
    sheet.set_lang(str(locale).replace("_", "-"))
    sheet.set_title(_tidy(tickets[0].event_title))
    sheet.set_author(_tidy(tickets[0].org_name))
    sheet.set_creator("Holdfast")
    for ticket in tickets:
        sheet.add_page()
        _draw(sheet, ticket, locale)
    return bytes(sheet.output())


def _locale(language: str) -> Locale:
    """A region, as in `en-GB`, decides how dates are written."""
    try:
        locale = Locale.parse(language.replace("-", "_"))
    except (ValueError, UnknownLocaleError):
        return Locale("en")
    return locale if locale.language in LANGUAGES else Locale("en")


class _Sheet(FPDF):
    """A page that is written from the top to the bottom. It never breaks: what is too long gets smaller, then cut."""

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
        """In the first of the sizes in which the text fits into that many lines. Goes on below it."""
        text = "".join(email if ord(email) in self._known else _BOX for email in _tidy(text))
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


def _draw(sheet: _Sheet, ticket: PrintedTicket, locale: Locale) -> None:
    labels = section(locale.language, "ticket")
    _draw_band(sheet, ticket, labels)
    sheet.set_y(_MARGIN_MM + _BAND_MM + 11)
    sheet.write_text(ticket.event_title, _LEFT_MM, _TEXT_MM, _TITLE_PTS, lines_max=3, bold=True)
    sheet.set_y(sheet.get_y() + 8)
    _draw_when_and_where(sheet, ticket, labels, locale)
    dashes_mm = sheet.get_y() + _GAP_MM
    sheet.set_y(dashes_mm + _GAP_MM)
    _draw_stub(sheet, ticket, labels)
    _draw_outline(sheet, dashes_mm, sheet.get_y() + _GAP_MM)
    sheet.set_y(sheet.get_y() + _GAP_MM + 5)
    sheet.write_text(labels["note"], _LEFT_MM, _TEXT_MM, (8,), lines_max=3, color=_GRAY)


def _draw_band(sheet: _Sheet, ticket: PrintedTicket, labels: Section) -> None:
    sheet.set_fill_color(_INK)
    sheet.rect(_MARGIN_MM, _MARGIN_MM, _CARD_MM, _BAND_MM + _CORNER_MM, "F", True, _CORNER_MM)
    sheet.set_fill_color(_WHITE)
    sheet.rect(_MARGIN_MM, _MARGIN_MM + _BAND_MM, _CARD_MM, _CORNER_MM + 1, "F")
    sheet.set_y(_MARGIN_MM + 5.5)
    sheet.write_text(ticket.org_name, _LEFT_MM, _TEXT_MM - 46, (13, 11), bold=True, color=_WHITE)
    sheet.set_y(_MARGIN_MM + 6.2)
    counted = labels["ticket"].format(number=ticket.number, count=ticket.count)
    sheet.write_text(counted, _LEFT_MM + _TEXT_MM - 44, 44, (10, 8), color=_WHITE, align=Align.R)


def _draw_when_and_where(sheet: _Sheet, ticket: PrintedTicket, labels: Section, locale: Locale) -> None:
    zone = ZoneInfo(ticket.timezone)
    starts_at = ticket.starts_at.astimezone(zone)
    date = format_date(starts_at, "full", locale)
    sheet.write_label(labels["when"], _LEFT_MM, _TEXT_MM)
    sheet.write_text(date[:1].upper() + date[1:], _LEFT_MM, _TEXT_MM, _VALUE_PTS, bold=True)
    time = format_time(starts_at, "short", zone, locale)
    zone_name = get_timezone_name(starts_at, "long", locale=locale)
    sheet.write_text(f"{time} · {zone_name}", _LEFT_MM, _TEXT_MM, (11, 9))
    if ticket.address:
        sheet.set_y(sheet.get_y() + 6)
        sheet.write_label(labels["where"], _LEFT_MM, _TEXT_MM)
        address = ", ".join(line.strip(" ,") for line in ticket.address.splitlines())
        sheet.write_text(address, _LEFT_MM, _TEXT_MM, _VALUE_PTS, lines_max=2)


def _draw_stub(sheet: _Sheet, ticket: PrintedTicket, labels: Section) -> None:
    """The code, and beside it what a person at the door may want to read."""
    top_mm = sheet.get_y()
    _draw_qr(sheet, ticket.code, _LEFT_MM, top_mm)
    x_mm = _LEFT_MM + _QR_MM + _GAP_MM
    width_mm = _TEXT_MM - _QR_MM - _GAP_MM
    for row, (label, value) in enumerate(_claims(ticket, labels)):
        sheet.set_y(top_mm + row * _CLAIM_MM)
        sheet.write_label(label, x_mm, width_mm)
        sheet.write_text(value, x_mm, width_mm, _VALUE_PTS, lines_max=2, bold=True)
    sheet.set_y(top_mm + _QR_MM)


def _claims(ticket: PrintedTicket, labels: Section) -> list[tuple[str, str]]:
    seat = [] if ticket.seat is None else [(labels["seat"], ticket.seat)]
    return [
        *seat,
        (labels["pool"], ticket.pool),
        (labels["tariff"], ticket.tariff),
        (labels["booking"], ticket.booking),
    ]


def _draw_qr(sheet: _Sheet, code: str, x_mm: float, y_mm: float) -> None:
    """One path for all of it, so that it stays sharp in any size and shows no seams. The margin around it is the
    card's own white."""
    modules, runs = qr_runs(code)
    module_mm = _QR_MM / modules
    path = PaintedPath()
    path.style.paint_rule = PathPaintRule.FILL_NONZERO
    path.style.fill_color = "#000"
    for x, y, long in runs:
        path.rectangle(x_mm + x * module_mm, y_mm + y * module_mm, long * module_mm, module_mm)
    with sheet.drawing_context() as drawing:
        drawing.add_item(path, clone=False)


def _draw_outline(sheet: _Sheet, dashes_mm: float, bottom_mm: float) -> None:
    """The edge of the card, and where the stub would be torn off."""
    right_mm = _MARGIN_MM + _CARD_MM
    sheet.set_draw_color(_HAIR)
    sheet.set_line_width(0.3)
    sheet.rect(_MARGIN_MM, _MARGIN_MM, _CARD_MM, bottom_mm - _MARGIN_MM, "D", True, _CORNER_MM)
    sheet.set_fill_color(_WHITE)
    for x_mm, from_degrees in ((_MARGIN_MM, -90), (right_mm, 90)):
        sheet.circle(x_mm, dashes_mm, _NOTCH_MM, "F")
        sheet.arc(x_mm - _NOTCH_MM, dashes_mm - _NOTCH_MM, 2 * _NOTCH_MM, from_degrees, from_degrees + 180)
    sheet.set_dash_pattern(1.2, 1.6)
    sheet.line(_MARGIN_MM + 2 * _NOTCH_MM, dashes_mm, right_mm - 2 * _NOTCH_MM, dashes_mm)
    sheet.set_dash_pattern()


def _tidy(text: str) -> str:
    """On one line, accents joined with their letters, and without the signs that only steer other letters, for which
    the font would draw boxes."""
    joined = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(character for character in joined if not _is_unseen(character))


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf") or "\ufe00" <= character <= "\ufe0f"
