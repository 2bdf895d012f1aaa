"""Messages that show an event or a booking as it is at the moment: the channel post, a worker's card with its
countdown, and the review of a receipt. The sender sends or edits them whenever they are due."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Final, Literal

from msgspec import Struct, structs

from holdfast import sql
from holdfast.api import booking_handlers as bookings
from holdfast.api import org_handlers as orgs
from holdfast.api import receipt_handlers as receipts
from holdfast.api.booking_schemas import BookingView
from holdfast.api.responses import EventView, ReceiptView
from holdfast.bot.buttons import DecideButton, GiveUpButton, ReasonButton, ShiftButton
from holdfast.bot.markup import (
    CAPTION_MAX,
    TEXT_MAX,
    Button,
    MessageBody,
    bold,
    escape,
    fit_html,
    label,
    pack_id,
    paragraphs,
    say,
    shorten_name,
)
from holdfast.bot.org_api import OrgApi, booking_ids_of, event_id_of, person_of
from holdfast.bot.outbox import MessageKind, NewMessage, write_messages
from holdfast.bot.people import find_decider, load_person
from holdfast.bot.roster import load_attendees
from holdfast.bot.roster_export import roster_csv
from holdfast.bot.shift_texts import (
    SHORT_FACT_MAX,
    brief_html,
    offer_body,
    price,
    shift_html,
    time_of_day,
    title_html,
)
from holdfast.bot.shifts import DAY_MAX, NOT_CANCELLED, find_shifts, local_day
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.core.states import Status
from holdfast.i18n.formatting import shorten
from holdfast.i18n.reason_texts import reason_text
from holdfast.runtime import ids
from holdfast.runtime.db import Database

# A card is edited when this many seconds are left.
COUNTDOWN_SECONDS: Final = (3600, 1800, 900, 600, 300, 240, 180, 120, 60, 30, 10, 0)
# A review is edited when it has waited for so many minutes.
REVIEW_MINUTES: Final = (5, 10, 20, 30, 60)
PHOTO_TYPES: Final = ("image/jpeg", "image/png", "image/webp")
FILE_ENDINGS: Final = {"application/pdf": "pdf", "image/heic": "heic", "image/png": "png", "image/webp": "webp"}


class File(Struct, frozen=True):
    content: bytes
    name: str
    is_photo: bool = False


class Rendered(Struct, frozen=True):
    """`next_due_at` is when the message will have to change, even if nothing happens until then."""

    body: MessageBody
    # Files stay as they are once they are sent.
    load_file: Callable[[], Awaitable[File]] | None = None
    next_due_at: datetime | None = None


class Renderer:
    def __init__(self, database: Database, api: OrgApi) -> None:
        self._database = database
        self._api = api

    async def render(
        self, bot: TelegramBot, kind: MessageKind, body: MessageBody, event: bytes | None, booking: bytes | None
    ) -> Rendered:
        """The message as it looks now, no longer than Telegram allows."""
        rendered = await self._render(bot, kind, body, event, booking)
        length_max = TEXT_MAX if rendered.load_file is None else CAPTION_MAX
        body = structs.replace(rendered.body, text=fit_html(rendered.body.text, length_max))
        return structs.replace(rendered, body=body)

    async def _render(
        self, bot: TelegramBot, kind: MessageKind, body: MessageBody, event: bytes | None, booking: bytes | None
    ) -> Rendered:
        if kind is MessageKind.TEXT:
            return Rendered(body)
        if kind is MessageKind.ROSTER:
            return await (self._roster(bot, event) if event is not None else self._roster_of_day(bot, body.text))
        assert event is not None
        if kind is MessageKind.POST:
            return await self._post(bot, event)
        assert booking is not None
        if kind is MessageKind.CARD:
            return await self._card(bot, event, booking)
        if kind is MessageKind.RECEIPT:
            return await self._receipt(bot, event, booking, body.text)
        return await self._review(bot, event, booking)

    async def report_post(
        self, bot: TelegramBot, kind: MessageKind, event: bytes | None, problem: Literal["deleted", "failed"]
    ) -> None:
        """Tell staff that somebody has deleted a channel post, or that there is none, and offer to post it again."""
        if kind is not MessageKind.POST or event is None or bot.admin_chat_id is None:
            return
        view = await self._api.load_event(event)
        text = say(bot.language, f"post.{problem}", title=view.title)
        again = ShiftButton(action="post", event=pack_id(event)).button(label(bot.language, "shift.post"))
        message = NewMessage(
            key=f"{problem}:{event.hex()}:{view.version}", chat_id=bot.admin_chat_id, body=MessageBody(text, [[again]])
        )
        await write_messages(self._database.org(bot.org_id), bot.org_id, [message])

    async def _booking(self, event: bytes, booking: bytes) -> BookingView:
        return await self._api.as_staff(None, bookings.get_booking, ids.format_booking_id(event, booking))

    async def _post(self, bot: TelegramBot, event: bytes) -> Rendered:
        view, places = await self._api.load_event(event), await self._api.load_places(event)
        url = f"https://t.me/{bot.username}?start={ids.format_event_id(event)}"
        return Rendered(offer_body(view, places, bot.language, Button(label(bot.language, "take"), url=url)))

    async def _card(self, bot: TelegramBot, event: bytes, booking: bytes) -> Rendered:
        view, shown = await self._api.load_event(event), await self._booking(event, booking)
        person = person_of(shown.user)
        language = shown.language or bot.language
        if person is not None:
            found = await load_person(self._database, bot.org_id, person)
            language = found.language if found is not None else language
        if shown.status is Status.HELD:
            return await self._held_card(view, shown, language)
        text = paragraphs(
            shift_html(view, language) if shown.status is Status.CONFIRMED else title_html(view),
            bold(say(language, f"card.{shown.status}", org=bot.org_name)),
            say(language, "reference", reference=shown.reference),
        )
        return Rendered(MessageBody(text))

    async def _held_card(self, view: EventView, shown: BookingView, language: str) -> Rendered:
        assert shown.expires_at is not None
        seconds = max(0, shown.expires_in_seconds or 0)
        instructions = view.payment_instructions
        if instructions is None:
            instructions = (await self._api.as_staff(None, orgs.get_org)).payment_instructions
        event, booking = booking_ids_of(shown)
        text = paragraphs(
            shift_html(view, language, SHORT_FACT_MAX),
            bold(say(language, "card.held", time=_time_left(seconds, language))),
            say(
                language, "card.pay", price=price(shown.total, view, language),
                until=time_of_day(shown.expires_at, view.timezone, language),
            ),
            escape(instructions) if instructions else None,
            say(language, "card.reference", reference=shown.reference),
            say(language, "card.receipt"),
        )  # fmt: skip
        buttons = [[GiveUpButton(booking=pack_id(event, booking)).button(label(language, "give_up"))]]
        later = next((step for step in COUNTDOWN_SECONDS if step < seconds), None)
        next_due_at = shown.expires_at - timedelta(seconds=later) if later is not None else shown.expires_at
        return Rendered(MessageBody(text, buttons), next_due_at=next_due_at + timedelta(milliseconds=50))

    async def _review(self, bot: TelegramBot, event: bytes, booking: bytes) -> Rendered:
        view, shown = await self._api.load_event(event), await self._booking(event, booking)
        found = (await self._api.as_staff(None, receipts.list_receipts, shown.id)).items
        waiting_minutes = _minutes_since(shown, found)
        text = paragraphs(
            bold(say(bot.language, "review.title", price=price(shown.total, view, bot.language))),
            await self._buyer_html(bot, shown),
            await self._seen_warning(bot, event, booking, found),
            await self._review_state(bot, event, booking, shown, waiting_minutes),
            say(bot.language, "reference", reference=shown.reference),
            # A caption is short. If anything has to be cut off, it is the end of the address.
            brief_html(view, bot.language),
        )
        is_open = shown.status is Status.PAYMENT_SUBMITTED
        body = MessageBody(text, _review_buttons(bot.language, event, booking) if is_open else [])
        later = next((minutes for minutes in REVIEW_MINUTES if minutes > waiting_minutes), None)
        next_due_at = (
            shown.server_time + timedelta(minutes=later - waiting_minutes) if is_open and later is not None else None
        )
        load_file = partial(self._load_file, found[0]) if found and found[0].file_url else None
        return Rendered(body, load_file, next_due_at)

    async def _buyer_html(self, bot: TelegramBot, shown: BookingView) -> str:
        """The name opens a chat with the worker, even with one who has no user name."""
        person = person_of(shown.user)
        name = escape(shorten_name(shown.contact.name or shown.user))
        linked = f'<a href="tg://user?id={person}">{name}</a>' if person is not None else name
        absences = 0
        if person is not None:
            absences = await self._database.org(bot.org_id).fetchval(sql.telegram.no_shows, bot.org_id, person)
        warning = say(bot.language, "review.no_shows", count=absences) if absences else None
        return "\n".join(part for part in (linked, escape(shown.contact.phone or ""), warning) if part)

    async def _seen_warning(
        self, bot: TelegramBot, event: bytes, booking: bytes, found: list[ReceiptView]
    ) -> str | None:
        other = {reference for receipt in found for reference in receipt.also_on}
        same_file: int = await self._database.event(event).fetchval(sql.telegram.receipt_seen, event, booking)
        count = max(len(other), same_file)
        return "⚠️ " + bold(say(bot.language, "review.seen", count=count)) if count else None

    async def _review_state(
        self, bot: TelegramBot, event: bytes, booking: bytes, shown: BookingView, waiting_minutes: int
    ) -> str:
        if shown.status is Status.PAYMENT_SUBMITTED:
            key = "review.waiting" if waiting_minutes else "review.just_sent"
            return say(bot.language, key, minutes=waiting_minutes)
        # Nobody decides again when the shift is over.
        decided = Status.CONFIRMED if shown.status is Status.COMPLETED else shown.status
        person = await find_decider(self._database, event, booking, decided)
        name = shorten_name(person.name) if person is not None else label(bot.language, "review.elsewhere")
        outcome = bold(say(bot.language, f"review.{shown.status}"))
        reason = shorten(reason_text(bot.language, shown.reason), SHORT_FACT_MAX) if shown.reason else None
        is_decided = decided in (Status.CONFIRMED, Status.REJECTED)
        by = say(bot.language, "review.by", name=name) if is_decided else None
        return "\n".join(part for part in (outcome, escape(reason) if reason else None, by) if part)

    async def _receipt(self, bot: TelegramBot, event: bytes, booking: bytes, receipt: str) -> Rendered:
        """One more file of a receipt that is under review. The body of the message names it."""
        shown = await self._booking(event, booking)
        found = (await self._api.as_staff(None, receipts.list_receipts, shown.id)).items
        one = next(item for item in found if item.id == receipt)
        text = say(bot.language, "review.more", name=shorten_name(shown.contact.name or ""), reference=shown.reference)
        return Rendered(MessageBody(text), partial(self._load_file, one))

    async def _load_file(self, receipt: ReceiptView) -> File:
        content, content_type = await self._api.download(receipts.get_receipt, receipt.id)
        ending = FILE_ENDINGS.get(content_type, "jpg")
        return File(content, f"receipt.{ending}", is_photo=content_type in PHOTO_TYPES)

    async def _roster(self, bot: TelegramBot, event: bytes) -> Rendered:
        """Who is coming to a shift, as a file."""
        view = await self._api.load_event(event)
        name = view.shift.order_number if view.shift is not None else None
        load_file = partial(self._roster_file, bot, f"shift-{name or view.id[-6:]}", [view])
        return Rendered(MessageBody(title_html(view)), load_file)

    async def _roster_of_day(self, bot: TelegramBot, day: str) -> Rendered:
        """Who is coming to all shifts of a day. The body of the message names the day."""
        starts_at, ends_at = local_day(date.fromisoformat(day), bot.timezone)
        found = await find_shifts(self._database, bot.org_id, starts_at, ends_at, NOT_CANCELLED, DAY_MAX)
        views = [await self._api.load_event(shift.id) for shift in found]
        load_file = partial(self._roster_file, bot, f"shifts-{day}", views)
        return Rendered(MessageBody(say(bot.language, "roster.of_day")), load_file)

    async def _roster_file(self, bot: TelegramBot, name: str, views: Sequence[EventView]) -> File:
        rosters = [(view, await load_attendees(self._database, bot.org_id, event_id_of(view))) for view in views]
        return File(roster_csv(rosters, bot.language), f"{name}.csv".replace("/", "-"))


def _time_left(seconds: int, language: str) -> str:
    minutes, rest = divmod(seconds, 60)
    return label(language, "time_left", minutes=minutes, seconds=f"{rest:02}")


def _minutes_since(shown: BookingView, found: list[ReceiptView]) -> int:
    first = min((receipt.at for receipt in found), default=shown.server_time)
    return max(0, int((shown.server_time - first).total_seconds() // 60))


def _review_buttons(language: str, event: bytes, booking: bytes) -> list[list[Button]]:
    packed = pack_id(event, booking)
    return [
        [
            DecideButton(booking=packed).button(label(language, "review.approve")),
            ReasonButton(booking=packed, reason="").button(label(language, "review.reject")),
        ]
    ]
