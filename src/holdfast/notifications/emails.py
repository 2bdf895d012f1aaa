"""Emails to buyers about their bookings, as messages that any mail client can show."""

import re
import unicodedata
from datetime import UTC, datetime
from email.header import Header
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8, Policy
from email.utils import parseaddr, quote
from enum import StrEnum
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from msgspec import Struct

from holdfast.core.shift import Shift
from holdfast.core.time_slot import TimeSlot
from holdfast.i18n.formatting import format_money, format_period
from holdfast.i18n.languages import language_of
from holdfast.i18n.texts import translate
from holdfast.notifications.channel import UndeliveredError
from holdfast.tickets.shift_facts import shift_facts

# A longer header, or one that a client could misread, is encoded.
PLAIN_HEADER_CHARS_MAX: Final = 60
ADDRESS_MAX: Final = 254

_ADDRESS: Final = re.compile(r'[^\s\x00-\x20\x7f-\x9f<>()\[\]\\,;:"@]+@[^\s\x00-\x20\x7f-\x9f<>()\[\]\\,;:"@]+')
_TIMES: Final = "\u00d7"
_UNSAFE_IN_FILE_NAME: Final = re.compile(r"[^\w .()-]")


class EmailKind(StrEnum):
    """What an email is about. Each kind has its texts in the section `email` of every language."""

    CONFIRMED = "confirmed"
    EXPIRED = "expired"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    # The org took the booking back and refunds it.
    REFUNDED = "refunded"
    # The same for a holder who received the booking from the person who paid.
    REFUNDED_TO_PAYER = "refunded_to_payer"
    # The money arrived after the hold expired and its units were gone.
    LATE_REFUND = "late_refund"
    # The buyer paid more than once; the booking stands and the surplus is refunded.
    EXTRA_REFUND = "extra_refund"
    # Goes to the new holder.
    TRANSFERRED = "transferred"
    REMINDER = "reminder"


WITH_TICKETS: Final = frozenset({EmailKind.CONFIRMED, EmailKind.TRANSFERRED})
_GOOD_NEWS: Final = WITH_TICKETS | {EmailKind.REMINDER}
_REFUNDS: Final = frozenset({EmailKind.REFUNDED, EmailKind.LATE_REFUND, EmailKind.EXTRA_REFUND})

templates: Final = Environment(
    loader=PackageLoader("holdfast.notifications"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


class EmailItem(Struct, frozen=True):
    """A quantity of one thing, such as "Stalls, A-5, Full price"."""

    label: str
    quantity: int
    unit_price: int
    slot: TimeSlot


class Attachment(Struct, frozen=True):
    """The content type may have parameters, such as `text/calendar; charset=utf-8`."""

    name: str
    content_type: str
    content: bytes


class Email(Struct, frozen=True, kw_only=True):
    """The facts of an email. `message_id` stays the same when the email is sent again, so that a mailbox can drop the
    duplicate. `booking` is the reference that the buyer knows. `shows_prices` is false for a new holder, who must
    not see what the former owner paid."""

    kind: EmailKind
    language: str
    to: str
    org_name: str
    event_title: str
    timezone: str
    address: str | None
    booking: str
    items: tuple[EmailItem, ...]
    subtotal: int
    tax: int
    total: int
    currency: str
    reason: str | None
    attachments: tuple[Attachment, ...]
    message_id: str
    shows_prices: bool = True
    shift: Shift | None = None


class EmailRow(Struct, frozen=True):
    """An item as the reader sees it. `when` is its time if the booking has several. `breakdown` is quantity times
    price, for more than one of a kind."""

    label: str
    when: str | None
    breakdown: str | None
    amount: str | None


class EmailFact(Struct, frozen=True):
    """Something that the organiser tells everybody who comes."""

    label: str
    lines: tuple[str, ...]


class EmailTotals(Struct, frozen=True):
    """Subtotal and tax are there only if the booking is taxed."""

    subtotal: str | None
    tax: str | None
    total: str


class EmailContent(Struct, frozen=True, kw_only=True):
    """Everything a reader sees, translated and formatted. Templates only arrange it."""

    language: str
    is_good_news: bool
    org: str
    subject: str
    heading: str
    lead: str
    tickets: str | None
    event: str
    when: tuple[str, ...]
    where: str | None
    facts: tuple[EmailFact, ...]
    booking: str
    reason: tuple[str, ...]
    rows: tuple[EmailRow, ...]
    totals: EmailTotals | None
    total_label: str
    next_step: str
    footer: str


def compose(email: Email, sender: str) -> EmailMessage:
    """Build the message to send. Raises `UndeliveredError` if an address is unusable."""
    content = describe(email)
    return build_message(
        org=content.org,
        sender=sender,
        to=email.to,
        subject=content.subject,
        message_id=email.message_id,
        language=content.language,
        text=_render("email.txt", content),
        html=_render("email.html", content),
        attachments=email.attachments,
    )


def build_message(
    *,
    org: str,
    sender: str,
    to: str,
    subject: str,
    message_id: str,
    language: str,
    text: str,
    html: str,
    attachments: tuple[Attachment, ...] = (),
) -> EmailMessage:
    """A message from an org, whose name and subject are one line each. Raises `UndeliveredError` if an address is
    unusable."""
    message = EmailMessage(policy=SMTP if (sender + to).isascii() else SMTPUTF8)
    _set_addresses(message, org, sender, to)
    _set_header(message, "Subject", _encode_header(subject))
    _set_header(message, "Message-ID", f"<{_one_line(message_id).strip('<>')}>")
    message["Date"] = datetime.now(UTC)
    # These two keep out-of-office replies away.
    message["Auto-Submitted"] = "auto-generated"
    message["X-Auto-Response-Suppress"] = "All"
    message.set_content(text, cte="quoted-printable")
    message.add_alternative(html, subtype="html", cte="quoted-printable")
    for attachment in attachments:
        _attach(message, attachment)
    # Set before the attachments, this header would move down into the first part.
    message["Content-Language"] = language
    return message


def describe(email: Email) -> EmailContent:
    """Translate and format an email. Names and addresses become one line each; a reason keeps its lines."""
    language = language_of(email.language)
    event, org, booking = _one_line(email.event_title), _one_line(email.org_name), _one_line(email.booking)

    def text(key: str) -> str:
        return translate(language, f"email.{key}", event=event, org=org, booking=booking)

    times = {item.slot: _time(item.slot, email.timezone, language) for item in email.items}
    return EmailContent(
        language=language,
        is_good_news=email.kind in _GOOD_NEWS,
        org=org,
        subject=text(f"{email.kind}.subject"),
        heading=text(f"{email.kind}.heading"),
        lead=text(f"{email.kind}.lead"),
        tickets=text("tickets") if email.attachments and email.kind in WITH_TICKETS else None,
        event=event,
        when=tuple(dict.fromkeys(times[slot] for slot in sorted(times, key=lambda slot: slot.starts_at))),
        where=", ".join(_lines(email.address)) or None,
        facts=_facts(email, language) if email.kind in _GOOD_NEWS else (),
        booking=booking,
        reason=_lines(email.reason),
        rows=tuple(_row(email, item, language, times[item.slot] if len(times) > 1 else None) for item in email.items),
        totals=_totals(email, language) if email.shows_prices else None,
        total_label=text("refund_total" if email.kind in _REFUNDS else "total"),
        next_step=text(f"{email.kind}.next"),
        footer=text("footer"),
    )


def is_address(text: str) -> bool:
    """Whether we can send mail to it. Quoted local parts and IP literals are legal, but nobody uses them."""
    return len(text) <= ADDRESS_MAX and _ADDRESS.fullmatch(text) is not None


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _time(slot: TimeSlot, timezone: str, language: str) -> str:
    return _capitalize(format_period(slot.starts_at, slot.shown_end, timezone, language))


def _facts(email: Email, language: str) -> tuple[EmailFact, ...]:
    """What a worker needs to know about a shift, except for an address that the email shows anyway."""
    found = [(fact.label, _lines(fact.value)) for fact in shift_facts(email.shift, email.currency, language)]
    return tuple(EmailFact(label, lines) for label, lines in found if lines and lines != _lines(email.address))


def _row(email: Email, item: EmailItem, language: str, when: str | None) -> EmailRow:
    label = _one_line(item.label)
    if not email.shows_prices:
        return EmailRow(f"{item.quantity} {_TIMES} {label}", when, None, None)
    price = format_money(item.unit_price, email.currency, language)
    amount = format_money(item.quantity * item.unit_price, email.currency, language)
    return EmailRow(label, when, f"{item.quantity} {_TIMES} {price}" if item.quantity > 1 else None, amount)


def _totals(email: Email, language: str) -> EmailTotals:
    total = format_money(email.total, email.currency, language)
    if email.tax == 0:
        return EmailTotals(None, None, total)
    return EmailTotals(
        format_money(email.subtotal, email.currency, language), format_money(email.tax, email.currency, language), total
    )


def _render(template: str, content: EmailContent) -> str:
    return templates.get_template(template).render(
        email=content, t=lambda key: translate(content.language, f"email.{key}")
    )


def _set_addresses(message: EmailMessage, org: str, sender: str, to: str) -> None:
    sender_address = parseaddr(sender)[1]
    if not is_address(sender_address):
        raise UndeliveredError("The sender's address is not an email address.")
    if not is_address(to):
        raise UndeliveredError("The buyer's address is not an email address.", is_permanent=True)
    _set_header(message, "From", f"{_phrase(org)} <{sender_address}>")
    _set_header(message, "To", to)


def _attach(message: EmailMessage, attachment: Attachment) -> None:
    type_ = SMTP.header_factory("Content-Type", _one_line(attachment.content_type))
    message.add_attachment(
        attachment.content,
        maintype=type_.maintype,
        subtype=type_.subtype,
        params=dict(type_.params),
        filename=_UNSAFE_IN_FILE_NAME.sub("_", _one_line(attachment.name)),
    )


class _FinalHeader(str):
    """A header that the email package sends exactly as we wrote it.

    The package parses and rewrites what it gets. It would turn encoded newlines hidden in a title into headers of their
    own, and a long name with commas into several senders.
    """

    name: str

    def fold(self, *, policy: Policy) -> str:
        return f"{self.name}: {self}\n".replace("\n", policy.linesep)


def _set_header(message: EmailMessage, name: str, text: str) -> None:
    header = _FinalHeader(text)
    header.name = name
    message[name] = header


def _encode_header(text: str) -> str:
    if text.isascii() and "=?" not in text and len(text) <= PLAIN_HEADER_CHARS_MAX:
        return text
    return Header(text, "utf-8", header_name="Subject").encode()


def _phrase(name: str) -> str:
    """A display name, which stands in front of an address."""
    encoded = _encode_header(name)
    return f'"{quote(name)}"' if encoded == name else encoded


def _one_line(text: str) -> str:
    return " ".join(_visible(text).split())


def _lines(text: str | None) -> tuple[str, ...]:
    lines = (_one_line(line) for line in (text or "").splitlines())
    return tuple(line for line in lines if line)


def _visible(text: str) -> str:
    """Drop control characters except whitespace, and lone surrogates, which cannot be encoded."""
    return "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs"))
