"""Letters to buyers: what is told of a booking, as an e-mail that any client can show."""

import re
import unicodedata
from datetime import UTC, datetime
from email.header import Header
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8, Policy
from email.utils import parseaddr, quote
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from msgspec import Struct

from holdfast.i18n.formatting import language_of, moment, money
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.email_texts import TEXTS, Texts, Wording
from holdfast.notifications.email_texts import Kind as Kind

# Longer text, or any that could be taken for something else, goes into headers encoded.
PLAIN_HEADER_MAX: Final = 60
ADDRESS_MAX: Final = 254

_ADDRESS: Final = re.compile(r'[^\s\x00-\x20\x7f-\x9f<>()\[\]\\,;:"@]+@[^\s\x00-\x20\x7f-\x9f<>()\[\]\\,;:"@]+')
_TIMES: Final = "\u00d7"
_UNSAFE_IN_NAME: Final = re.compile(r"[^\w .()-]")

# To whom a booking was handed over is not told what it cost.
_WITHOUT_PRICES: Final = frozenset({Kind.TRANSFERRED})
_GOOD_NEWS: Final = frozenset({Kind.CONFIRMED, Kind.TRANSFERRED})

_templates: Final = Environment(
    loader=PackageLoader("holdfast.notifications"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


class EmailItem(Struct, frozen=True):
    """So many of one thing, such as "Stalls, A-5, Full price"."""

    label: str
    quantity: int
    unit_price: int


class Attachment(Struct, frozen=True):
    """The content type may have parameters, such as `text/calendar; charset=utf-8`."""

    name: str
    content_type: str
    content: bytes


class Email(Struct, frozen=True, kw_only=True):
    """`message_id` stays the same when a letter is sent again, so that a mailbox can tell. `booking` is the number that
    buyers know it by."""

    kind: Kind
    language: str
    to: str
    org_name: str
    event_title: str
    starts_at: datetime
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


class EmailRow(Struct, frozen=True):
    """An item as it is shown. The price is told where there are several; where no prices are told at all, the label
    says how many."""

    label: str
    price: str | None
    amount: str | None


class EmailTotals(Struct, frozen=True):
    """Subtotal and tax are told only where there is a tax."""

    subtotal: str | None
    tax: str | None
    total: str


class EmailContent(Struct, frozen=True, kw_only=True):
    """A letter in words, as templates show it: all that is left to them is where things stand."""

    language: str
    good_news: bool
    org: str
    wording: Wording
    texts: Texts
    tickets: str | None
    event: str
    when: str
    where: str | None
    booking: str
    reason: tuple[str, ...]
    rows: tuple[EmailRow, ...]
    sums: EmailTotals | None
    footer: str


def compose(email: Email, sender: str) -> EmailMessage:
    """The message to send. An address that cannot be used raises `UndeliveredError`."""
    sheet = describe(email)
    message = EmailMessage(policy=SMTP if (sender + email.to).isascii() else SMTPUTF8)
    _address(message, sheet.org, sender, email.to)
    _put(message, "Subject", _encoded(sheet.wording.subject))
    _put(message, "Message-ID", f"<{_one_line(email.message_id).strip('<>')}>")
    message["Date"] = datetime.now(UTC)
    # No out-of-office reply is wanted.
    message["Auto-Submitted"] = "auto-generated"
    message["X-Auto-Response-Suppress"] = "All"
    message.set_content(_render("letter.txt", sheet), cte="quoted-printable")
    message.add_alternative(_render("letter.html", sheet), subtype="html", cte="quoted-printable")
    for attachment in email.attachments:
        _attach(message, attachment)
    # Put in earlier, it would have gone down into the first part.
    message["Content-Language"] = sheet.language
    return message


def describe(email: Email) -> EmailContent:
    """Put a letter into words. What others wrote becomes one line each, but for the reason."""
    language = language_of(email.language)
    texts = TEXTS[language]
    event, org, booking = _one_line(email.event_title), _one_line(email.org_name), _one_line(email.booking)
    wording = _fill(texts.kinds[email.kind], event, org, booking)
    return EmailContent(
        language=language,
        good_news=email.kind in _GOOD_NEWS,
        org=org,
        wording=wording,
        texts=texts,
        tickets=texts.tickets if email.attachments and email.kind in _GOOD_NEWS else None,
        event=event,
        when=moment(email.starts_at, email.timezone, language),
        where=", ".join(_lines(email.address)) or None,
        booking=booking,
        reason=_lines(email.reason),
        rows=tuple(_row(email, item, language) for item in email.items),
        sums=None if email.kind in _WITHOUT_PRICES else _sums(email, language),
        footer=texts.footer.format(booking=booking, org=org),
    )


def is_address(text: str) -> bool:
    """Whether mail can be sent to it. Quoted names and bare IP addresses are legal, but nobody's."""
    return len(text) <= ADDRESS_MAX and _ADDRESS.fullmatch(text) is not None


def _fill(wording: Wording, event: str, org: str, booking: str) -> Wording:
    texts = {name: getattr(wording, name) for name in Wording.__struct_fields__}
    return Wording(**{name: text.format(event=event, org=org, booking=booking) for name, text in texts.items()})


def _row(email: Email, item: EmailItem, language: str) -> EmailRow:
    label = _one_line(item.label)
    if email.kind in _WITHOUT_PRICES:
        return EmailRow(f"{item.quantity} {_TIMES} {label}", None, None)
    price = money(item.unit_price, email.currency, language)
    amount = money(item.quantity * item.unit_price, email.currency, language)
    return EmailRow(label, f"{item.quantity} {_TIMES} {price}" if item.quantity > 1 else None, amount)


def _sums(email: Email, language: str) -> EmailTotals:
    total = money(email.total, email.currency, language)
    if email.tax == 0:
        return EmailTotals(None, None, total)
    return EmailTotals(
        money(email.subtotal, email.currency, language), money(email.tax, email.currency, language), total
    )


def _render(template: str, sheet: EmailContent) -> str:
    return _templates.get_template(template).render(sheet=sheet, texts=sheet.texts, wording=sheet.wording)


def _address(message: EmailMessage, org: str, sender: str, to: str) -> None:
    sender_address = parseaddr(sender)[1]
    if not is_address(sender_address):
        raise UndeliveredError("The address that mail is sent from is not an e-mail address.")
    if not is_address(to):
        raise UndeliveredError("The buyer's address is not an e-mail address.", for_good=True)
    _put(message, "From", f"{_phrase(org)} <{sender_address}>")
    _put(message, "To", to)


def _attach(message: EmailMessage, attachment: Attachment) -> None:
    type_ = SMTP.header_factory("Content-Type", _one_line(attachment.content_type))
    message.add_attachment(
        attachment.content,
        maintype=type_.maintype,
        subtype=type_.subtype,
        params=dict(type_.params),
        filename=_UNSAFE_IN_NAME.sub("_", _one_line(attachment.name)),
    )


class _Written(str):
    """A header just as it is to be sent.

    The email package would read what it is given, and write that anew: it unfolds encoded newlines that a title may
    hide into headers of their own, and long names with commas into several senders.
    """

    name: str

    def fold(self, *, policy: Policy) -> str:
        return f"{self.name}: {self}\n".replace("\n", policy.linesep)


def _put(message: EmailMessage, name: str, text: str) -> None:
    header = _Written(text)
    header.name = name
    message[name] = header


def _encoded(text: str) -> str:
    if text.isascii() and "=?" not in text and len(text) <= PLAIN_HEADER_MAX:
        return text
    return Header(text, "utf-8", header_name="Subject").encode()


def _phrase(name: str) -> str:
    """A name in front of an address."""
    encoded = _encoded(name)
    return f'"{quote(name)}"' if encoded == name else encoded


def _one_line(text: str) -> str:
    return " ".join(_visible(text).split())


def _lines(text: str | None) -> tuple[str, ...]:
    lines = (_one_line(line) for line in (text or "").splitlines())
    return tuple(line for line in lines if line)


def _visible(text: str) -> str:
    """Without control characters other than spaces, and without halves of characters, which cannot be encoded."""
    return "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs"))
