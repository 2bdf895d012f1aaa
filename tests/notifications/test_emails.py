"""Emails tell buyers everything they need in their own language, and no text from others can change an email's headers
or markup."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import compat32, default
from email.utils import getaddresses
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core.shift import Shift
from holdfast.core.time_slot import TimeSlot
from holdfast.i18n.formatting import format_moment, format_money
from holdfast.i18n.languages import LANGUAGES, language_of
from holdfast.i18n.texts import translate
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.emails import Attachment, Email, EmailItem, EmailKind, compose, describe, is_address
from tests.notifications.test_smtp import send
from tests.support.harness import IS_LONG
from tests.support.mail_server import Mailbox, mail_server

SENDER = "tickets@example.net"
PDF = Attachment("tickets.pdf", "application/pdf", bytes(range(256)) * 40)
CALENDAR = Attachment("entradas-ñandú.ics", "text/calendar; charset=utf-8", "SUMMARY:Ñandú\r\n".encode())
HEADERS = {
    "From", "To", "Subject", "Date", "Message-ID", "MIME-Version", "Content-Type", "Content-Language",
    "Auto-Submitted", "X-Auto-Response-Suppress",
}  # fmt: skip
ATTACKS = [
    "Night\r\nBcc: thief@example.com",
    "Night\nBcc: thief@example.com",
    "Night\rBcc: thief@example.com",
    "Night\u2028Bcc: thief@example.com",
    "Night\x85Bcc: thief@example.com",
    "Night\x0bBcc: thief@example.com",
    "=?utf-8?q?Night=0D=0ABcc:_thief@example.com?=",
    "Night =?utf-8?b?DQpCY2M6IHRoaWVmQGV4YW1wbGUuY29t?= out",
    'Night" <thief@example.com>, "Day',
    "Night <thief@example.com>, Day",
    "Ñight, <thief@example.com>, " * 8,
    "words, with, commas; and: more " * 10,
    "\r\n\r\n<script>alert(1)</script>",
    "{event.__class__} %s {{ 7 * 7 }} {% raw %}",
    "Night\x00\x1b[31m\ud800",
]
EVENT_TIME = TimeSlot(datetime(2027, 3, 5, 19, tzinfo=UTC), None, is_of_pool=False)
MORNING = TimeSlot(datetime(2027, 3, 6, 9, tzinfo=UTC), datetime(2027, 3, 6, 10, 30, tzinfo=UTC), is_of_pool=True)


def make_email(kind: EmailKind = EmailKind.CONFIRMED, **changes: Any) -> Email:
    email = Email(
        kind=kind,
        language="en",
        to="ana@example.org",
        org_name="Teatro Ñandú, S.A.",
        event_title="Вечер джаза «Весна»",
        timezone="Europe/Madrid",
        address="Calle Mayor 12, Madrid",
        booking="bkg_7F3K92QX",
        items=(
            EmailItem("Stalls, A-5, Full price", 1, 3000, EVENT_TIME),
            EmailItem("Standing, Child", 2, 700, EVENT_TIME),
        ),
        subtotal=4400,
        tax=836,
        total=5236,
        currency="EUR",
        reason=None,
        attachments=(PDF, CALENDAR),
        message_id="<bkg-7.12@example.net>",
    )
    return structs.replace(email, **changes)


def parse(raw: bytes) -> EmailMessage:
    return message_from_bytes(raw, policy=default)


def bodies(message: EmailMessage) -> tuple[str, str]:
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    assert plain is not None
    assert html is not None
    return plain.get_content(), html.get_content()


def read_header(raw: bytes, name: str) -> str:
    """The value as a client shows it, decoded by the rules for encoded words."""
    (value,) = message_from_bytes(raw, policy=compat32).get_all(name) or [""]
    return str(make_header(decode_header(re.sub(r"\r?\n(?=[ \t])", "", value))))


class HtmlText(HTMLParser):
    """The text, tags and attributes of an HTML document."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def expected_texts(kind: EmailKind, language: str) -> Iterator[str]:
    """The texts that an email must have in plain text and in HTML."""
    content = describe(make_email(kind, language=language, reason="The receipt\nis for another day."))
    yield from (
        content.heading,
        content.lead,
        content.next_step,
        content.footer,
        content.event,
        content.org,
        content.booking,
    )
    yield from (*content.when, "Calle Mayor 12, Madrid", "The receipt", "is for another day.")
    yield from ("Stalls, A-5, Full price", "Standing, Child")
    if content.totals is not None:
        yield from (content.total_label, format_money(5236, "EUR", language), format_money(836, "EUR", language))
        yield from (
            format_money(4400, "EUR", language),
            format_money(1400, "EUR", language),
            format_money(700, "EUR", language),
        )


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_email_of_each_kind_arrives_complete(language: str) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as address:
        for kind in EmailKind:
            send(f"smtp://{address}", compose(make_email(kind, language=language, reason="The receipt"), SENDER))
    assert len(mailbox.messages) == len(EmailKind)
    for kind, message, (envelope, _) in zip(EmailKind, mailbox.messages, mailbox.accepted, strict=True):
        raw = envelope.original_content or b""
        assert (envelope.mail_from, envelope.rcpt_tos) == (SENDER, ["ana@example.org"])
        assert set(message.keys()) == HEADERS
        assert read_header(raw, "Subject") == translate(language, f"email.{kind}.subject", event="Вечер джаза «Весна»")
        assert [(a.display_name, a.addr_spec) for a in message["From"].addresses] == [("Teatro Ñandú, S.A.", SENDER)]
        assert (message["To"], message["Message-ID"]) == ("ana@example.org", "<bkg-7.12@example.net>")
        assert (message["Auto-Submitted"], message["Content-Language"]) == ("auto-generated", language)
        assert message["Date"].datetime.tzinfo is not None
        assert raw.isascii()
        assert max(map(len, raw.split(b"\r\n"))) <= 998


# Every pair, because each kind of email has a text of its own in each language.
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", EmailKind)
def test_the_plain_text_and_html_of_an_email_say_the_same(kind: EmailKind, language: str) -> None:
    sent = make_email(kind, language=language, reason="The receipt\nis for another day.")
    plain, html = bodies(parse(compose(sent, SENDER).as_bytes()))
    html_text = HtmlText(html)
    for text in expected_texts(kind, language):
        assert collapse_spaces(text) in collapse_spaces(plain)
        assert collapse_spaces(text) in html_text.text
    assert not re.search(r"[{}]", plain)


def test_attachments_arrive_unchanged_with_their_names_and_types() -> None:
    message = parse(compose(make_email(), SENDER).as_bytes())
    assert message.get_content_type() == "multipart/mixed"
    assert [part.get_content_type() for part in message.iter_parts()] == [
        "multipart/alternative",
        "application/pdf",
        "text/calendar",
    ]
    pdf, calendar = message.iter_attachments()
    assert [pdf.get_filename(), calendar.get_filename()] == ["tickets.pdf", "entradas-ñandú.ics"]
    assert pdf.get_payload(decode=True) == PDF.content
    assert calendar.get_payload(decode=True) == CALENDAR.content
    assert calendar.get_content_charset() == "utf-8"


@pytest.mark.parametrize("kind", EmailKind)
def test_only_an_email_with_tickets_mentions_them(kind: EmailKind) -> None:
    tickets = describe(make_email(kind)).tickets
    assert (tickets is not None) is (kind in (EmailKind.CONFIRMED, EmailKind.TRANSFERRED))
    assert describe(make_email(kind, attachments=())).tickets is None


def test_a_new_holder_does_not_see_the_price() -> None:
    plain, html = bodies(compose(make_email(EmailKind.TRANSFERRED, shows_prices=False), SENDER))
    for text in (plain, HtmlText(html).text):
        assert "€" not in text
        assert "2 × Standing, Child" in text  # noqa: RUF001


def test_an_email_about_one_slot_shows_its_time_and_end() -> None:
    sent = make_email(items=(EmailItem("Morning tour, Adult", 2, 1000, MORNING),))
    expected = "Saturday, March 6, 2027, 10:00 AM – 11:30 AM (Central European Standard Time)"  # noqa: RUF001
    for text in bodies(compose(sent, SENDER)):
        assert collapse_spaces(text).count(expected) == 1
        assert "March 5" not in text


def test_an_email_about_several_times_shows_the_time_of_each_item() -> None:
    tour, concert = EmailItem("Morning tour", 1, 1000, MORNING), EmailItem("Concert", 1, 3000, EVENT_TIME)
    content = describe(make_email(items=(tour, concert)))
    assert [collapse_spaces(text)[:21] for text in content.when] == ["Friday, March 5, 2027", "Saturday, March 6, 20"]
    assert [row.when for row in content.rows] == [content.when[1], content.when[0]]
    for text in bodies(compose(make_email(items=(tour, concert)), SENDER)):
        assert [text.count(when) for when in content.when] == [2, 2]


SHIFT = Shift(
    date=date(2027, 3, 5),
    order_number=4711,
    work_time="20:00 to 04:00",
    address="Calle Mayor 12, Madrid",
    buses="N3 until 23:30",
    food="Dinner at midnight",
    salary=9550,
    service_fee=500,
    additional_info="Bring black shoes.\n<b>No</b> jewellery.",
)


@pytest.mark.parametrize(
    ("language", "day", "pay"), [("en", "Friday, March 5, 2027", "€95.50"), ("es", "Viernes, 5 de marzo", "95,50 €")]
)
def test_the_confirmation_of_a_shift_says_what_the_worker_has_to_know(language: str, day: str, pay: str) -> None:
    plain, html = bodies(compose(make_email(shift=SHIFT, language=language), SENDER))
    for text in (collapse_spaces(plain), HtmlText(html).text):
        for expected in (day, "20:00 to 04:00", "N3 until 23:30", "Dinner at midnight", pay, "<b>No</b> jewellery."):
            assert expected in text, expected
        assert text.count("Calle Mayor 12, Madrid") == 1
        assert "4711" not in text
    assert "b" not in HtmlText(html).tags
    assert "15 € an hour" in bodies(compose(make_email(shift=Shift(salary="15 € an hour")), SENDER))[0]


@pytest.mark.parametrize(
    "kind", sorted(set(EmailKind) - {EmailKind.CONFIRMED, EmailKind.TRANSFERRED, EmailKind.REMINDER})
)
def test_only_emails_to_those_who_come_have_facts_about_a_shift(kind: EmailKind) -> None:
    assert describe(make_email(kind, shift=SHIFT)).facts == ()
    assert describe(make_email(EmailKind.REMINDER, shift=SHIFT)).facts != ()


def test_an_email_leaves_out_a_missing_tax_place_or_reason() -> None:
    sent = make_email(tax=0, subtotal=4400, total=4400, address=None)
    for text in bodies(compose(sent, SENDER)):
        assert not any(label in text for label in ("Subtotal", "Tax", "Where", "Reason"))


# The name of the org is part of the sender and the title is part of the subject, so both get every attack.
@pytest.mark.parametrize(
    ("field", "attack"),
    [
        *(("org_name", attack) for attack in ATTACKS),
        *(("event_title", attack) for attack in ATTACKS),
        *((field, ATTACKS[0]) for field in ("reason", "address", "booking", "message_id", "timezone")),
    ],
)
def test_text_from_others_never_becomes_a_header_or_an_address(field: str, attack: str) -> None:
    raw = compose(make_email(EmailKind.REJECTED, **{field: attack}), SENDER).as_bytes()
    assert set(parse(raw).keys()) == HEADERS
    (sender,) = message_from_bytes(raw, policy=compat32).get_all("From") or []
    assert [address for _, address in getaddresses([sender])] == [SENDER]
    assert b"\nBcc:" not in raw.partition(b"\r\n\r\n")[0]


def test_a_name_that_looks_encoded_is_shown_unchanged() -> None:
    raw = compose(make_email(event_title="=?utf-8?q?A?=", org_name="=?utf-8?q?B?="), SENDER).as_bytes()
    assert read_header(raw, "Subject") == "Your tickets for =?utf-8?q?A?="
    assert read_header(raw, "From") == f"=?utf-8?q?B?= <{SENDER}>"


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_name_of_an_attachment_never_becomes_a_header_or_another_part(attack: str) -> None:
    attachment = Attachment(attack, "application/pdf", b"%PDF")
    message = parse(compose(make_email(attachments=(attachment,)), SENDER).as_bytes())
    (part,) = message.iter_attachments()
    assert set(part.keys()) == {"Content-Type", "Content-Transfer-Encoding", "Content-Disposition", "MIME-Version"}
    assert part.get_payload(decode=True) == b"%PDF"


@pytest.mark.parametrize("field", ["org_name", "event_title", "reason", "address", "booking"])
def test_text_from_others_never_becomes_markup(field: str) -> None:
    attack = "</td><script>alert(1)</script><img src=x onerror=alert(1)> & \"quoted\" 'too'"
    plain, html = bodies(compose(make_email(EmailKind.REJECTED, **{field: attack}), SENDER))
    html_text = HtmlText(html)
    assert not {"script", "img"} & set(html_text.tags)
    assert attack in html_text.text
    assert attack in plain


@pytest.mark.parametrize("kind", EmailKind)
def test_an_email_loads_no_remote_content(kind: EmailKind) -> None:
    """Nobody is tracked, and an email looks the same offline."""
    _, html = bodies(compose(make_email(kind), SENDER))
    html_text = HtmlText(html)
    assert not {"img", "link", "script", "iframe", "a", "form"} & set(html_text.tags)
    assert not {"src", "href", "background"} & {name for name, _ in html_text.attributes}
    assert not re.search(r"url\(|@import|https?:", html)


@settings(max_examples=60 if IS_LONG else 25, deadline=None)
@given(org=st.text(max_size=200), title=st.text(max_size=200), reason=st.text(max_size=2000))
def test_any_names_and_reasons_arrive_unchanged(org: str, title: str, reason: str) -> None:
    sent = make_email(EmailKind.REJECTED, org_name=org, event_title=title, reason=reason)
    content = describe(sent)
    raw = compose(sent, SENDER).as_bytes()
    message = parse(raw)
    assert set(message.keys()) == HEADERS
    assert read_header(raw, "Subject") == content.subject
    (sender,) = message_from_bytes(raw, policy=compat32).get_all("From") or []
    assert [address for _, address in getaddresses([sender])] == [SENDER]
    plain, _ = bodies(message)
    for line in (content.org, content.event, *content.reason):
        assert line in plain


def test_a_long_reason_arrives_line_by_line() -> None:
    lines = [f"{number}. " + "Этот чек не подходит. " * 40 for number in range(60)]
    mailbox = Mailbox()
    with mail_server(mailbox) as address:
        send(
            f"smtp://{address}",
            compose(make_email(EmailKind.REJECTED, reason="\r\n".join(["x" * 5000, ".", *lines])), SENDER),
        )
    plain, html = bodies(mailbox.messages[0])
    arrived = [line.strip() for line in plain.splitlines()]
    assert {"x" * 5000, "."} <= set(arrived)
    assert {line.strip() for line in lines} <= set(arrived)
    assert HtmlText(html).tags.count("br") >= len(lines)


@pytest.mark.parametrize(
    "address",
    [
        "", "ana", "@example.org", "ana@", "ana@example.org\r\nBcc: thief@example.com", "a@b, c@d", "Ana <a@b.org>",
        "a b@c.org", "<a@b.org>", '"a"@b.org', "a@b@c", "a\x00@b.org", "a@b.org\n", f"{'a' * 250}@b.org",
        "a@b\u2028.org",
    ],
)  # fmt: skip
def test_an_unusable_address_fails_permanently_and_is_not_in_the_error(address: str) -> None:
    with pytest.raises(UndeliveredError) as caught:
        compose(make_email(to=address), SENDER)
    assert caught.value.is_permanent
    assert caught.value.__context__ is None
    assert not address or address not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["a@b.org", "o'neill+x@b.co", "josé@example.org", "a@bücher.de", f"{'a' * 64}@b.org"]
)
def test_a_valid_address_is_kept_unchanged(address: str) -> None:
    raw = compose(make_email(to=address), SENDER).as_bytes()
    assert is_address(address)
    assert f"\r\nTo: {address}\r\n" in raw.decode()


def test_the_org_name_replaces_the_sender_name() -> None:
    raw = compose(make_email(org_name="Acme"), "Holdfast <tickets@example.net>").as_bytes()
    assert b'From: "Acme" <tickets@example.net>\r\n' in raw


def test_an_invalid_sender_is_not_a_permanent_failure() -> None:
    with pytest.raises(UndeliveredError) as caught:
        compose(make_email(), "nobody")
    assert not caught.value.is_permanent


@pytest.mark.parametrize(
    ("amount", "currency", "english", "spanish"),
    [
        (123456, "EUR", "€1,234.56", "1.234,56 €"),
        (5, "EUR", "€0.05", "0,05 €"),
        (0, "USD", "$0.00", "0,00 US$"),
        (5000, "JPY", "¥5,000", "5.000 JPY"),
        (12345, "KWD", "KWD 12.345", "12,345 KWD"),
        (12000000, "COP", "COP 120,000.00", "120.000,00 COP"),
        (10000, "RSD", "RSD 100.00", "100,00 RSD"),
        (10_000_000_000_000_001, "EUR", "€100,000,000,000,000.01", "100.000.000.000.000,01 €"),
    ],
)
def test_amounts_follow_the_language_and_the_currency(amount: int, currency: str, english: str, spanish: str) -> None:
    written = [format_money(amount, currency, language).replace("\u00a0", " ") for language in ("en", "es")]
    assert written == [english, spanish]


@pytest.mark.parametrize(
    ("timezone", "english", "spanish"),
    [
        (
            "Europe/Madrid",
            "Friday, March 5, 2027, 8:00 PM (Central European Standard Time)",
            "viernes, 5 de marzo de 2027, 20:00 (hora estándar de Europa central)",
        ),
        (
            "America/Bogota",
            "Friday, March 5, 2027, 2:00 PM (Colombia Standard Time)",
            "viernes, 5 de marzo de 2027, 14:00 (hora estándar de Colombia)",
        ),
        (
            "Asia/Tokyo",
            "Saturday, March 6, 2027, 4:00 AM (Japan Standard Time)",
            "sábado, 6 de marzo de 2027, 4:00 (hora estándar de Japón)",
        ),
        (
            "Nowhere/At_All",
            "Friday, March 5, 2027, 7:00 PM (Coordinated Universal Time)",
            "viernes, 5 de marzo de 2027, 19:00 (tiempo universal coordinado)",
        ),
    ],
)
def test_times_name_the_time_zone_of_the_event(timezone: str, english: str, spanish: str) -> None:
    at = datetime(2027, 3, 5, 19, tzinfo=UTC)
    written = [format_moment(at, timezone, language).replace("\u00a0", " ") for language in ("en", "es")]
    assert written == [english, spanish]


def test_the_repeated_hour_of_a_clock_change_is_unambiguous() -> None:
    before, after = (
        format_moment(datetime(2027, 10, 31, hour, 30, tzinfo=UTC), "Europe/Madrid", "en") for hour in (0, 1)
    )
    assert "2:30" in before
    assert "2:30" in after
    assert before != after


@pytest.mark.parametrize(
    ("tag", "language"),
    [
        ("es", "es"), ("es-CO", "es"), ("ES_mx", "es"), ("en-GB", "en"), ("de", "en"), ("est", "en"), ("", "en"),
        (None, "en"), ("es-419", "es"), ("\n", "en"),
    ],
)  # fmt: skip
def test_an_unknown_language_falls_back_to_english(tag: str | None, language: str) -> None:
    assert language_of(tag) == language
