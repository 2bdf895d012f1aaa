"""Booking pages: the countdown of a hold, the ways to pay, and the tickets."""

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, get_args

from msgspec import Struct
from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import Route

from holdfast import sql
from holdfast.api.booking_schemas import BookingView
from holdfast.api.receipt_handlers import UPLOAD_BYTES_MAX
from holdfast.api.receipt_upload import FILE_BYTES_MAX
from holdfast.api.requests import BookingsQuery, PaymentNew
from holdfast.api.responses import EventView
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import SOLD
from holdfast.core.time_slot import TimeSlot
from holdfast.i18n.texts import section
from holdfast.runtime import ids
from holdfast.tickets.calendar import calendar_file
from holdfast.tickets.shift_facts import shift_facts
from holdfast.web.booking_answers import booking_answers, unit_answers
from holdfast.web.booking_summary import (
    booked_slots,
    can_cancel,
    can_extend,
    distinct_slots,
    is_live,
    last_payment,
    late_receipt_deadline,
    takes_receipts,
    unit_count,
)
from holdfast.web.customer_api import CustomerApi, TicketFile, idempotency_key
from holdfast.web.event_listing import EventListing
from holdfast.web.page_problems import NOT_FOUND, PageError, PageProblem, problem_of, refusal_text
from holdfast.web.page_request import PageRequest
from holdfast.web.push_pages import push_data
from holdfast.web.recovered_bookings import act_for_owner, list_recovered
from holdfast.web.site import Site, json_response, redirect_to_parent

BOOKINGS_MAX: Final = 100
ACTIONS: Final = ("extend", "cancel", "pay", "receipt", "notify")
LATE_RECEIPT: Final = PageProblem(410, "late_receipt")


class BookedPool(Struct, frozen=True):
    """A pool with its own time."""

    code: str
    starts_at: datetime
    ends_at: datetime | None


class BookedEvent(Struct, frozen=True):
    """What a list of bookings says about an event. `pools` are those with their own time."""

    id: bytes
    title: str
    starts_at: datetime
    ends_at: datetime | None
    timezone: str
    pools: list[BookedPool]


class BookingEntry(Struct, frozen=True):
    """A booking in a list. `times` has at least one, earliest first."""

    booking: BookingView
    event: BookedEvent
    times: list[TimeSlot]

    @property
    def starts_at(self) -> datetime:
        return self.times[0].starts_at


def booking_routes(site: Site) -> list[Route]:
    return [
        Route("/b/{booking}", site.page(show_booking), methods=["GET"]),
        Route("/b/{booking}/state", site.page(send_state), methods=["GET"]),
        Route("/b/{booking}/extend", site.page(extend), methods=["POST"]),
        Route("/b/{booking}/cancel", site.page(cancel), methods=["POST"]),
        Route("/b/{booking}/pay", site.page(pay), methods=["POST"]),
        Route("/b/{booking}/receipt", site.page(submit_receipt), methods=["POST"]),
        *[Route(f"/b/{{booking}}/{action}", site.page(redirect_to_parent), methods=["GET"]) for action in ACTIONS],
        Route("/b/{booking}/calendar.ics", site.page(send_calendar), methods=["GET"]),
        Route("/b/{booking}/tickets/{ticket}/{file}", site.page(send_ticket), methods=["GET"]),
        Route("/o/{slug}/bookings", site.page(list_bookings), methods=["GET"]),
    ]


async def show_booking(page: PageRequest) -> Response:
    listing = await _load_event(page)
    return await _booking_page(page, listing, await _load_booking(page))


async def send_state(page: PageRequest) -> Response:
    """The page's script polls this, and reloads the page when anything changes."""
    await _load_org(page)
    return json_response(_state(await _load_booking(page)))


async def extend(page: PageRequest) -> Response:
    return await _act(page, CustomerApi.extend_booking)


async def cancel(page: PageRequest) -> Response:
    return await _act(page, CustomerApi.cancel_booking)


async def _act(page: PageRequest, action: Callable[[CustomerApi, str], Awaitable[BookingView]]) -> Response:
    listing = await _load_event(page)
    await page.read_fields()
    try:
        await action(page.customer, _booking_id(page))
    except RefusedError as error:
        return await _refused_page(page, listing, problem_of(error))
    return page.redirect(_booking_path(page))


async def pay(page: PageRequest) -> Response:
    """The same form sent twice starts one payment, and leads to its checkout again."""
    listing = await _load_event(page)
    fields = await page.read_fields()
    here = _booking_path(page)
    # In a frame, the checkout opens in a window of its own while the frame waits. The form itself cannot lead there:
    # another window does not have the cookie that the browser keeps for the frame.
    return_url = page.base_url + ("/paid" if page.is_embedded else here)
    payment = PaymentNew(provider=fields.get("provider", ""), return_url=return_url)
    try:
        started = await page.customer.start_payment(_booking_id(page), payment, idempotency_key(fields, payment))
    except RefusedError as error:
        return await _refused_page(page, listing, problem_of(error))
    return page.redirect(here if page.is_embedded else started.checkout_url or here)


async def submit_receipt(page: PageRequest) -> Response:
    listing = await _load_event(page)
    page.check_sender()
    try:
        await page.customer.check_receipt(_booking_id(page))
    except RefusedError as error:
        return await _refused_page(page, listing, _receipt_problem(error))
    form = await page.read_upload(UPLOAD_BYTES_MAX)
    try:
        token, file = form.get("form_token"), form.get("file")
        page.check_token(token if isinstance(token, str) else "")
        if not isinstance(file, UploadFile) or not file.size:
            return await _refused_page(page, listing, PageProblem(422, "no_file"))
        await page.customer.submit_receipt(_booking_id(page), await file.read())
    except RefusedError as error:
        return await _refused_page(page, listing, _receipt_problem(error))
    finally:
        await form.close()
    return page.redirect(_booking_path(page))


def _receipt_problem(error: RefusedError) -> PageProblem:
    match error.refused.refusal:
        case Refusal.INVALID_REQUEST:
            return PageProblem(422, "wrong_file")
        case Refusal.HOLD_EXPIRED:
            return LATE_RECEIPT
        case _:
            return problem_of(error)


async def send_calendar(page: PageRequest) -> Response:
    listing = await _load_event(page)
    booking, event = await _load_booking(page), listing.event
    content = calendar_file(
        booking=booking.id,
        reference=booking.reference,
        language=page.language,
        title=event.title,
        slots=_slots(booking, listing),
        timezone=event.timezone,
        address=listing.address,
        now=booking.server_time,
    )
    headers = {"content-disposition": 'attachment; filename="event.ics"'}
    return Response(content, headers=headers, media_type="text/calendar; charset=utf-8")


async def send_ticket(page: PageRequest) -> Response:
    ticket, file = page.request.path_params["ticket"], page.request.path_params["file"]
    if file not in get_args(TicketFile) or ids.parse_ticket_id(ticket) is None:
        raise PageError(NOT_FOUND)
    await _load_org(page)
    if not _has_ticket(page, ticket):
        raise PageError(NOT_FOUND)
    content, content_type = await page.customer.get_ticket_file(ticket, file)
    return Response(content, media_type=content_type)


async def list_bookings(page: PageRequest) -> Response:
    page.org = await page.site.load_org(page.request.path_params["slug"])
    entries = await _load_entries(page) if page.has_session else []
    entries.sort(key=lambda entry: entry.starts_at)
    current = [entry for entry in entries if is_live(entry.booking)]
    past = [entry for entry in reversed(entries) if not is_live(entry.booking)]
    recovered = [recovery.email for recovery in page.session.recoveries_in(page.org.id)]
    return await page.render_rows("bookings.html", len(entries), current=current, past=past, recovered=recovered)


async def _load_entries(page: PageRequest) -> list[BookingEntry]:
    """The bookings of this browser and those that it has recovered."""
    assert page.org is not None
    own = await page.customer.list_bookings(BookingsQuery(limit=BOOKINGS_MAX))
    recovered = await list_recovered(page, BOOKINGS_MAX)
    bookings = {booking.id: booking for booking in (*own, *recovered)}.values()
    booked = {
        (event, item.pool)
        for booking in bookings
        if (event := ids.parse_event_id(booking.event))
        for item in booking.items
    }
    events, pools = [event for event, _ in booked], [pool for _, pool in booked]
    rows = await page.site.database.org(page.org.id).rows(
        BookedEvent, sql.pages.booked_events, list(set(events)), events, pools
    )
    by_id = {ids.format_event_id(event.id): event for event in rows}
    return [_entry(booking, by_id[booking.event]) for booking in bookings]


def _entry(booking: BookingView, event: BookedEvent) -> BookingEntry:
    slots = booked_slots(booking, event, {pool.code: pool for pool in event.pools})
    return BookingEntry(booking, event, distinct_slots(slots))


def _slots(booking: BookingView, listing: EventListing) -> dict[str, TimeSlot]:
    return booked_slots(booking, listing.event, {pool.code: pool for pool in listing.event.pools})


async def _load_event(page: PageRequest) -> EventListing:
    """The event of the booking that the address names, so that refusals of a form appear in the org's own page."""
    listing = await page.load_event(_event_id(page))
    await act_for_owner(page, _booking_id(page))
    return listing


async def _load_org(page: PageRequest) -> None:
    await page.load_org_of(_event_id(page))
    await act_for_owner(page, _booking_id(page))


def _event_id(page: PageRequest) -> bytes | None:
    booking = ids.parse_booking_id(_booking_id(page))
    return booking[0] if booking else None


def _has_ticket(page: PageRequest, ticket: str) -> bool:
    """Whether the ticket belongs to the booking that the address names. The same guest may have others, which this
    browser has not recovered."""
    parsed = ids.parse_ticket_id(ticket)
    return parsed is not None and parsed[:2] == ids.parse_booking_id(_booking_id(page))


async def _load_booking(page: PageRequest) -> BookingView:
    """The booking that the address names, if it belongs to this browser."""
    if not page.has_session:
        raise PageError(NOT_FOUND)
    return await page.customer.get_booking(_booking_id(page))


def _booking_id(page: PageRequest) -> str:
    booking: str = page.request.path_params["booking"]
    return booking


def _booking_path(page: PageRequest) -> str:
    return f"/b/{_booking_id(page)}"


async def _refused_page(page: PageRequest, listing: EventListing, problem: PageProblem) -> Response:
    """The booking as it is now, and why the form had no effect."""
    return await _booking_page(page, listing, await _load_booking(page), problem)


async def _booking_page(
    page: PageRequest, listing: EventListing, booking: BookingView, problem: PageProblem | None = None
) -> Response:
    event = listing.event
    if is_live(booking):
        # In a frame of another site, the browser dropped the cookie of the hold: a script had placed it, and only pages
        # that the frame itself opens can set cookies there.
        page.keep_session_for(event)
    has_tickets = booking.status in SOLD
    slots = _slots(booking, listing)
    late_until = late_receipt_deadline(booking, event, listing.availability) if problem != LATE_RECEIPT else None
    return await page.render_rows(
        "booking.html",
        unit_count(booking),
        problem.status if problem else 200,
        booking=booking,
        listing=listing,
        event=event,
        tickets=await page.customer.list_tickets(booking.id) if has_tickets else [],
        names={(pool.code, tariff.code): (pool.name, tariff.name) for pool in event.pools for tariff in pool.tariffs},
        slots=slots,
        times=distinct_slots(slots),
        shift_facts=shift_facts(event.shift, event.currency, page.language),
        answers=booking_answers(booking, event),
        unit_answers=unit_answers(booking, event),
        providers=_offered_providers(page, event),
        takes_receipts=takes_receipts(booking, event),
        late_until=late_until,
        late_seconds=_seconds_until(late_until, booking),
        is_current=is_live(booking),
        can_extend=can_extend(booking, event),
        extend_minutes=math.ceil(event.policy.extend_seconds / 60),
        can_cancel=can_cancel(booking, event),
        is_back="payment" in page.request.query_params,
        problem=refusal_text(page.language, problem) if problem else None,
        key=str(booking.version),
        script_data={**_booking_data(page, listing, booking, late_until), "push": await push_data(page, booking)},
    )


def _seconds_until(at: datetime | None, booking: BookingView) -> int | None:
    return math.ceil((at - booking.server_time).total_seconds()) if at is not None else None


def _offered_providers(page: PageRequest, event: EventView) -> list[str]:
    return [name for name in page.site.providers if event.providers is None or name in event.providers]


def _booking_data(
    page: PageRequest, listing: EventListing, booking: BookingView, late_until: datetime | None
) -> dict[str, Any]:
    """What the page's script needs to know about a booking. While an expired hold can be revived, the script counts
    that time down."""
    total_seconds = (booking.expires_at - booking.created_at).total_seconds() if booking.expires_at else None
    late_seconds = _seconds_until(late_until, booking)
    return {
        **_state(booking),
        "secondsLeft": booking.expires_in_seconds if late_seconds is None else late_seconds,
        "isLate": late_seconds is not None,
        "texts": section(page.language, "script"),
        "language": page.language,
        "stateUrl": f"/b/{booking.id}/state",
        "totalSeconds": total_seconds if late_seconds is None else listing.event.policy.late_grace_seconds,
        "extendSeconds": listing.event.policy.extend_seconds,
        "fileBytesMax": FILE_BYTES_MAX,
    }


def _state(booking: BookingView) -> dict[str, Any]:
    payment = last_payment(booking)
    return {
        "status": booking.status,
        "secondsLeft": booking.expires_in_seconds,
        "payment": payment.status if payment else None,
        "version": booking.version,
    }
