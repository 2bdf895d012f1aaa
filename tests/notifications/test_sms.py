"""An SMS says what the buyer needs in their own language, and never costs more than a few segments."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.i18n.languages import LANGUAGES
from holdfast.notifications.retry_after import RETRY_AFTER_SECONDS_MAX, parse_retry_after
from holdfast.notifications.sms import SEGMENTS_MAX, Sms, SmsKind, count_segments, write_sms

LINK = "https://tickets.example.com/b/bk_" + "0123456789abcdef" * 4


def make_sms(kind: SmsKind = SmsKind.CONFIRMED, **changes: Any) -> Sms:
    facts: dict[str, Any] = {
        "language": "en",
        "org_name": "Acme Hall",
        "event_title": "Friday night",
        "booking": "0A1B2C3D4E",
        "starts_at": datetime(2027, 3, 5, 19, tzinfo=UTC),
        "timezone": "Europe/Madrid",
        "link": LINK,
    }
    return Sms(kind=kind, **{**facts, **changes})


def test_a_confirmation_names_the_booking_and_links_to_the_tickets() -> None:
    assert write_sms(make_sms()) == f"Acme Hall: your booking 0A1B2C3D4E is confirmed. Tickets: {LINK}"
    assert write_sms(make_sms(link=None)) == "Acme Hall: your booking 0A1B2C3D4E is confirmed."


def test_a_reminder_says_what_starts_when_it_starts_there() -> None:
    text = write_sms(make_sms(SmsKind.REMINDER, link=None))
    assert text == "Reminder: Friday night starts Mar 5, 2027, 8:00 PM. Booking 0A1B2C3D4E."
    assert "5 мар. 2027" in write_sms(make_sms(SmsKind.REMINDER, language="ru-RU"))


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("a" * 160, 1),
        ("a" * 161, 2),
        ("a" * 306, 2),
        ("a" * 307, 3),
        ("€" * 80, 1),
        ("€" * 81, 2),
        ("я" * 70, 1),
        ("я" * 71, 2),
        ("я" * 134, 2),
        ("я" * 135, 3),
        ("a" * 69 + "я", 1),
        ("😀" * 35, 1),
        ("😀" * 36, 2),
    ],
)
def test_segments_are_counted_as_carriers_do(text: str, segments: int) -> None:
    assert count_segments(text) == segments


@given(
    st.sampled_from(LANGUAGES),
    st.sampled_from(SmsKind),
    st.text(max_size=300),
    st.text(max_size=300),
    st.sampled_from([None, LINK, "https://" + "x" * 500 + ".example/b/1"]),
)
def test_no_text_has_more_segments_than_the_limit(
    language: str, kind: SmsKind, org: str, title: str, link: str | None
) -> None:
    sms = make_sms(kind, language=language, org_name=org, event_title=title, link=link)
    text = write_sms(sms)
    assert count_segments(text) <= SEGMENTS_MAX
    assert sms.booking in text
    assert "\n" not in text


def test_a_long_name_gets_shorter_before_the_link_goes() -> None:
    text = write_sms(make_sms(SmsKind.REMINDER, language="ru", event_title="Очень длинное название " * 20))
    assert text.endswith(LINK)
    assert "…" in text


def test_a_link_that_does_not_fit_is_left_out_whole() -> None:
    assert "http" not in write_sms(make_sms(link="https://" + "x" * 500))


@pytest.mark.parametrize("language", ["es", "uz"])
def test_typographic_characters_do_not_make_an_sms_more_expensive(language: str) -> None:
    title = "Bahor oqshomi — “Oʻzbekiston”"  # noqa: RUF001
    text = write_sms(make_sms(SmsKind.REMINDER, language=language, event_title=title))
    assert count_segments(text) <= 2
    assert "O'zbekiston" in text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("7", 7),
        (" 30 ", 30),
        ("999999999999", RETRY_AFTER_SECONDS_MAX),
        ("-5", 0),
        ("soon", 0),
        ("٣", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", RETRY_AFTER_SECONDS_MAX),
        ("Wed, 21 Oct 2099 07:28:00", 0),
    ],
)
def test_retry_after_is_read_within_bounds(value: str | None, seconds: float) -> None:
    assert parse_retry_after(value) == seconds
