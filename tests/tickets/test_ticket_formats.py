"""In every printed format a scanner can read the code and a person can read the rest."""

import io
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from icalendar import Calendar
from msgspec import structs
from PIL import Image

from holdfast.core.time_slot import TimeSlot
from holdfast.tickets.calendar import calendar_file
from holdfast.tickets.codes import TicketRef, new_key, sign_code
from holdfast.tickets.pdf import tickets_pdf
from holdfast.tickets.printed_ticket import PrintedTicket
from holdfast.tickets.qr import PNG_SCALE, QUIET_MODULES, qr_png, qr_svg
from tests.support.cases import case
from tests.support.harness import IS_LONG
from tests.support.ticket_reader import SVG, open_pdf, qr_codes_in_pdf, read_qr_codes, render_svg, texts_in_pdf

TICKET_BYTES_MAX = 60_000
A4_PTS = (595, 842)
LONG = "An Evening of Rather Exhaustively Annotated Chamber Music "

PRIVATE, _ = new_key()
CODES = [sign_code(PRIVATE, TicketRef(bytes(16), bytes(16), 0, unit, 0, 0)) for unit in range(3)]
TICKET = PrintedTicket(
    code=CODES[0],
    event_title="The Winter Concert",
    starts_at=datetime(2026, 3, 7, 19, 0, tzinfo=UTC),
    timezone="Europe/Madrid",
    address="Teatro Real\nPlaza de Isabel II, 28013 Madrid",
    pool="Stalls",
    tariff="Adult",
    seat="Row 12, seat 8",
    booking="7K3-QF9-2M",
    org_name="Candlelight Concerts",
    number=1,
    count=3,
)


def text_of(ticket: PrintedTicket, language: str = "en") -> str:
    (text,) = texts_in_pdf(tickets_pdf([ticket], language))
    return text


def test_each_ticket_has_a_page_with_its_own_code() -> None:
    tickets = [structs.replace(TICKET, code=code, number=at) for at, code in enumerate(CODES, 1)]
    pdf = tickets_pdf(tickets, "en")
    assert qr_codes_in_pdf(pdf) == [[code] for code in CODES]
    assert [f"Ticket {at} of 3" in text for at, text in enumerate(texts_in_pdf(pdf), 1)] == [True] * 3


@pytest.mark.parametrize("dpi", [60, 150, 300])
def test_the_printed_code_can_be_scanned_at_any_resolution(dpi: int) -> None:
    assert qr_codes_in_pdf(tickets_pdf([TICKET], "en"), dpi) == [[TICKET.code]]


def test_the_png_can_be_scanned_and_has_the_required_margin() -> None:
    picture = Image.open(io.BytesIO(qr_png(TICKET.code))).convert("L")
    assert read_qr_codes(picture) == [TICKET.code]
    assert 400 <= picture.width == picture.height <= 600
    dark = picture.point(lambda value: 255 - value).getbbox()
    quiet = QUIET_MODULES * PNG_SCALE
    assert dark == (quiet, quiet, picture.width - quiet, picture.height - quiet)


def test_the_svg_can_be_scanned_and_has_no_fixed_size() -> None:
    svg = qr_svg(TICKET.code)
    assert svg.startswith(b"<svg ")
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert {"width", "height"}.isdisjoint(root.keys())
    assert read_qr_codes(render_svg(root)) == [TICKET.code]


def test_a_ticket_shows_everything_its_holder_needs() -> None:
    text = text_of(TICKET)
    for expected in (
        "Candlelight Concerts",
        "The Winter Concert",
        "Saturday, March 7, 2026",
        "8:00 PM · Central European Standard Time",
        "Teatro Real, Plaza de Isabel II, 28013 Madrid",
        "Seat Row 12, seat 8",
        "Area Stalls",
        "Ticket type Adult",
        "Booking 7K3-QF9-2M",
        "Ticket 1 of 3",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("hours", "language", "expected"),
    [
        (2, "en", "Saturday, March 7, 2026 8:00 PM – 10:00 PM · Central European Standard Time"),  # noqa: RUF001
        (2, "es", "Sábado, 7 de marzo de 2026 20:00 – 22:00 · hora"),  # noqa: RUF001
        (5, "en", "Saturday, March 7, 2026 8:00 PM – Sunday, March 8, 2026, 1:00 AM · Central"),  # noqa: RUF001
    ],
)
def test_a_ticket_for_a_slot_shows_its_end(hours: int, language: str, expected: str) -> None:
    slot = structs.replace(TICKET, ends_at=TICKET.starts_at + timedelta(hours=hours))
    assert expected in text_of(slot, language)


def test_a_ticket_has_no_labels_for_missing_fields() -> None:
    text = text_of(structs.replace(TICKET, address=None, seat=None))
    assert "Where" not in text
    assert "Seat" not in text


def test_a_ticket_is_printed_in_spanish() -> None:
    text = text_of(TICKET, "es")
    for expected in (
        "Entrada 1 de 3",
        "Sábado, 7 de marzo de 2026",
        "20:00 · hora estándar de Europa central",
        "Reserva",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", "Saturday, March 7, 2026 8:00 PM"),
        ("en-GB", "Saturday, 7 March 2026 20:00"),
        ("es-MX", "Sábado, 7 de marzo de 2026 8:00 p.m."),
        ("ES", "Sábado, 7 de marzo de 2026 20:00"),
    ],
)
def test_the_region_decides_the_date_format(language: str, expected: str) -> None:
    assert expected in text_of(TICKET, language)


def test_a_ticket_in_an_unknown_language_is_printed_in_english() -> None:
    english = text_of(TICKET, "en")
    for language in ("", "de", "tlh", "x", "es--", "en_es_fr_de", "../es", "\0", "日本語"):
        with case(language):
            assert text_of(TICKET, language) == english


@pytest.mark.parametrize(
    ("timezone", "expected"),
    [
        ("UTC", "March 7, 2026 7:00 PM · Coordinated Universal Time"),
        ("Asia/Tokyo", "March 8, 2026 4:00 AM · Japan Standard Time"),
        ("America/New_York", "March 7, 2026 2:00 PM · Eastern Standard Time"),
        ("Nowhere/At_All", "March 7, 2026 7:00 PM · Coordinated Universal Time"),
    ],
)
def test_the_time_is_in_the_time_zone_of_the_event(timezone: str, expected: str) -> None:
    assert expected in text_of(structs.replace(TICKET, timezone=timezone))


def test_a_long_title_is_wrapped_and_shown_completely() -> None:
    assert " ".join([LONG.strip()] * 2) in text_of(structs.replace(TICKET, event_title=LONG * 2))


def test_very_long_texts_are_truncated_and_everything_stays_on_the_page() -> None:
    names = ("event_title", "address", "pool", "tariff", "seat", "booking", "org_name")
    for long_text in (LONG * 20, "W" * 2000):
        pdf = tickets_pdf([structs.replace(TICKET, **dict.fromkeys(names, long_text))], "es")
        assert qr_codes_in_pdf(pdf) == [[TICKET.code]]
        assert texts_in_pdf(pdf)[0].count("…") == len(names)
        left, bottom, right, top = bounds_of_text(pdf)
        assert 0 < left < right < A4_PTS[0]
        assert 0 < bottom < top < A4_PTS[1]


def bounds_of_text(pdf: bytes) -> tuple[float, float, float, float]:
    with open_pdf(pdf) as document:
        page = document[0].get_textpage()
        lefts, bottoms, rights, tops = zip(*map(page.get_charbox, range(page.count_chars())), strict=True)
    return min(lefts), min(bottoms), max(rights), max(tops)


@pytest.mark.parametrize(
    "title",
    [
        "Большой зимний концерт",
        "Μεγάλη χειμερινή συναυλία",
        "Žluťoučký kůň úpěl ďábelské ódy",
        "Ñandú, œuvre, straße, İstanbul, Łódź",
        "Đêm nhạc mùa đông",
    ],
)
def test_letters_of_other_scripts_are_printed(title: str) -> None:
    assert title in text_of(structs.replace(TICKET, event_title=title, org_name=title))


def test_combining_accents_are_joined_to_their_letters() -> None:
    assert "Café Ñandú" in text_of(structs.replace(TICKET, event_title="Cafe\u0301 N\u0303andu\u0301"))


def test_a_character_without_a_glyph_becomes_a_box() -> None:
    ticket = structs.replace(TICKET, event_title="Gala 漢字 👩\u200d🚀\ufe0f end", seat="座席 7")
    text = text_of(ticket)
    assert "Gala □□ □□ end" in text
    assert "□□ 7" in text


texts = st.text(max_size=80)
tickets = st.builds(
    PrintedTicket,
    code=st.sampled_from(CODES),
    event_title=texts,
    starts_at=st.datetimes(datetime(1990, 1, 1), datetime(2190, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    timezone=st.sampled_from(["UTC", "Europe/Madrid", "America/St_Johns", "Asia/Kathmandu", "Etc/GMT+12"]),
    address=st.none() | texts,
    pool=texts,
    tariff=texts,
    seat=st.none() | texts,
    booking=texts,
    org_name=texts,
    number=st.integers(1, 9999),
    count=st.integers(1, 9999),
    ends_at=st.none() | st.datetimes(datetime(1990, 1, 1), datetime(2190, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)


@settings(max_examples=25 if IS_LONG else 5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tickets, texts | st.sampled_from(["en", "es"]))
def test_a_ticket_with_any_text_can_be_printed_and_scanned(ticket: PrintedTicket, language: str) -> None:
    assert qr_codes_in_pdf(tickets_pdf([ticket], language)) == [[ticket.code]]


@pytest.mark.parametrize("title", ["The Winter Concert", "Большой зимний концерт, μεγάλη χειμερινή συναυλία, ñandú"])
def test_a_ticket_embeds_only_the_glyphs_it_uses(title: str) -> None:
    assert len(tickets_pdf([structs.replace(TICKET, event_title=title)], "en")) < TICKET_BYTES_MAX


def test_the_document_is_named_after_the_event() -> None:
    with open_pdf(tickets_pdf([structs.replace(TICKET, event_title="Café\n漢字")], "en")) as document:
        found = document.get_metadata_dict()
    assert (found["Title"], found["Author"], found["Creator"]) == ("Café 漢字", "Candlelight Concerts", "Holdfast")


def test_printing_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        tickets_pdf([structs.replace(TICKET, event_title="漢字 👩\u200d🚀")], "en")
    assert caplog.records == []


STARTS_AT = datetime(2026, 3, 7, 20, 0, tzinfo=UTC)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make_calendar(
    title: str = "Concert",
    address: str | None = "Madrid",
    ends_at: datetime | None = None,
    slots: dict[str, TimeSlot] | None = None,
) -> bytes:
    return calendar_file(
        booking="bk_1",
        reference="0A1B2C3D4E",
        language="en",
        title=title,
        slots=slots or {"stalls": TimeSlot(STARTS_AT, ends_at, is_of_pool=False)},
        timezone="Europe/Madrid",
        address=address,
        now=NOW,
    )


def unfolded_lines(file: bytes) -> Sequence[str]:
    """The lines of the file, with folded lines joined."""
    return file.decode().replace("\r\n ", "").split("\r\n")


def test_the_calendar_file_describes_the_event() -> None:
    assert unfolded_lines(make_calendar("Vivaldi, by candlelight; part 1", ends_at=STARTS_AT + timedelta(hours=2))) == [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//Holdfast//Tickets//EN",
        "METHOD:PUBLISH",
        "X-WR-TIMEZONE:Europe/Madrid",
        "BEGIN:VEVENT",
        r"SUMMARY:Vivaldi\, by candlelight\; part 1",
        "DTSTART:20260307T200000Z",
        "DTEND:20260307T220000Z",
        "DTSTAMP:20260102T030405Z",
        "UID:bk_1@holdfast",
        "DESCRIPTION:Booking 0A1B2C3D4E",
        "LOCATION:Madrid",
        "END:VEVENT",
        "END:VCALENDAR",
        "",
    ]


def test_a_calendar_file_leaves_out_a_missing_end_and_place() -> None:
    names = {line.partition(":")[0] for line in unfolded_lines(make_calendar(address=None))}
    assert {"DTEND", "LOCATION"}.isdisjoint(names)


def slot_at(hour: int) -> TimeSlot:
    starts_at = STARTS_AT.replace(hour=hour)
    return TimeSlot(starts_at, starts_at + timedelta(hours=1), is_of_pool=True)


def entries_of(**slots: TimeSlot) -> list[tuple[str, int]]:
    """The id and the hour of each entry."""
    events = Calendar.from_ical(make_calendar(slots=slots)).walk("VEVENT")
    return [(str(event["uid"]), event.decoded("dtstart").hour) for event in events]


def test_a_booking_with_several_slots_has_one_calendar_entry_for_each_time() -> None:
    assert entries_of(ten=slot_at(10), ten_vip=slot_at(10), noon=slot_at(12)) == [
        ("bk_1@holdfast", 10),
        ("bk_1.noon@holdfast", 12),
    ]


def test_a_calendar_entry_keeps_its_id_when_its_slot_moves() -> None:
    assert entries_of(ten=slot_at(10)) == [("bk_1@holdfast", 10)]
    assert entries_of(ten=slot_at(11), noon=slot_at(9)) == [("bk_1@holdfast", 11), ("bk_1.noon@holdfast", 9)]


@settings(deadline=None)
@given(texts)
def test_any_text_stays_on_its_line_in_a_calendar_file(text: str) -> None:
    file = make_calendar(title=text, address=text)
    assert [line.partition(":")[0] for line in unfolded_lines(file)] == [
        line.partition(":")[0] for line in unfolded_lines(make_calendar())
    ]
    assert all(len(line) <= 75 for line in file.split(b"\r\n"))
    assert Calendar.from_ical(file).walk("VEVENT")


def test_a_title_with_calendar_syntax_stays_a_title() -> None:
    title = "Concert\r\nEND:VEVENT\nBEGIN:VALARM\x0bDESCRIPTION:boo\u2028X-A:b\x85X-B:c\rX-C:d"
    (event,) = Calendar.from_ical(make_calendar(title)).walk("VEVENT")
    assert str(event["summary"]) == "Concert\nEND:VEVENT\nBEGIN:VALARM\nDESCRIPTION:boo\nX-A:b\nX-B:c\nX-C:d"
    assert event.subcomponents == []
