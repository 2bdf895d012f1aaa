"""Pages of bookings: the clock of a hold, paying for it, and the tickets."""

import math
from typing import Any, Final

from msgspec import Struct
from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import Route

from holdfast.core.refusals import Refusal
from holdfast.core.states import Status
from holdfast.i18n.texts import section
from holdfast.payments.receipt_files import FILE_MAX
from holdfast.runtime import ids
from holdfast.tickets.calendar import calendar_file
from holdfast.web.api_client import ApiClient, ApiError, key_of
from holdfast.web.api_types import Booking, BookingList, Event, Payment, Problem, Ticket
from holdfast.web.page_texts import page_text, refusal_text
from holdfast.web.site import PageRequest, Site, answer_json, go_up

UPLOAD_MAX: Final = FILE_MAX + 64 * 1024
LIST_MAX: Final = 100
VERBS: Final = ("extend", "cancel", "pay", "receipt")
# Of a ticket.
FILES: Final = {"qr.svg", "qr.png", "ticket.pdf"}


class Entry(Struct, frozen=True):
    """A booking in a list."""

    booking: Booking
    event: Event


def booking_routes(site: Site) -> list[Route]:
    return [
        Route("/b/{booking}", site.page(show_booking), methods=["GET"]),
        Route("/b/{booking}/state", site.page(tell_state), methods=["GET"]),
        Route("/b/{booking}/extend", site.page(extend), methods=["POST"]),
        Route("/b/{booking}/cancel", site.page(cancel), methods=["POST"]),
        Route("/b/{booking}/pay", site.page(pay), methods=["POST"]),
        Route("/b/{booking}/receipt", site.page(hand_in_receipt), methods=["POST"]),
        *[Route(f"/b/{{booking}}/{verb}", site.page(go_up), methods=["GET"]) for verb in VERBS],
        Route("/b/{booking}/calendar.ics", site.page(send_calendar), methods=["GET"]),
        Route("/b/{booking}/tickets/{ticket}/{file}", site.page(send_ticket), methods=["GET"]),
        Route("/o/{slug}/bookings", site.page(list_bookings), methods=["GET"]),
    ]


async def show_booking(page: PageRequest) -> Response:
    api, booking = await _find(page)
    return await _booking_page(page, api, booking)


async def tell_state(page: PageRequest) -> Response:
    """For the page's script, which loads the page anew when any of this has changed."""
    _, booking = await _find(page)
    return answer_json(_state(booking))


async def extend(page: PageRequest) -> Response:
    return await _act(page, "extend")


async def cancel(page: PageRequest) -> Response:
    return await _act(page, "cancel")


async def pay(page: PageRequest) -> Response:
    """The same form sent twice begins one payment, and leads to it again."""
    await _find_org(page)
    form = await page.form()
    api, booking = await _find(page)
    # In a frame the checkout is a link to a window of its own, and the frame waits. The form itself cannot lead there:
    # another window does not have the cookie that the browser keeps for the frame.
    back = f"{page.address}/paid" if page.is_embedded else f"{page.address}/b/{booking.id}"
    body = {"provider": form.get("provider", ""), "return_url": back}
    try:
        path = f"/v1/bookings/{booking.id}/payments"
        payment = await api.post(path, Payment, body, key=key_of(form, body))
    except ApiError as error:
        return await _refused(page, api, error)
    here = f"/b/{booking.id}"
    return page.go(here if page.is_embedded else payment.checkout_url or here)


async def hand_in_receipt(page: PageRequest) -> Response:
    await _find_org(page)
    form = await page.read_form(UPLOAD_MAX, files_max=1)
    token, file = form.get("form_token"), form.get("file")
    page.check_token(token if isinstance(token, str) else "")
    api, booking = await _find(page)
    if not isinstance(file, UploadFile) or not file.size:
        return await _refused(page, api, ApiError(Problem(422, "no_file")))
    content = await file.read()
    try:
        await api.call("POST", f"/v1/bookings/{booking.id}/receipt", files={"file": ("receipt", content)})
    except ApiError as error:
        is_other = error.problem.code == Refusal.INVALID_REQUEST.code
        return await _refused(page, api, ApiError(Problem(422, "wrong_file")) if is_other else error)
    finally:
        await form.close()
    return page.go(f"/b/{booking.id}")


async def send_calendar(page: PageRequest) -> Response:
    api, booking = await _find(page)
    event = await api.get(f"/v1/events/{booking.event}", Event)
    content = calendar_file(
        uid=f"{booking.id}@holdfast",
        title=event.title,
        starts_at=event.starts_at,
        ends_at=event.ends_at,
        timezone=event.timezone,
        address=event.address,
        description=page_text(page.language, "calendar.description", reference=booking.reference),
        now=booking.server_time,
    )
    headers = {"content-disposition": 'attachment; filename="event.ics"'}
    return Response(content, headers=headers, media_type="text/calendar; charset=utf-8")


async def send_ticket(page: PageRequest) -> Response:
    ticket, file = page.request.path_params["ticket"], page.request.path_params["file"]
    if file not in FILES or ids.parse_ticket_id(ticket) is None:
        raise ApiError(Problem(404, "not_found"))
    api, _ = await _find(page)
    answer = await api.call("GET", f"/v1/tickets/{ticket}/{file}")
    return Response(answer.content, media_type=answer.headers["content-type"])


async def list_bookings(page: PageRequest) -> Response:
    page.org = await page.site.org(page.request.path_params["slug"])
    entries: list[Entry] = []
    if page.is_known:
        api = await page.customer()
        found = (await api.get("/v1/bookings", BookingList, limit=LIST_MAX)).items
        events = {id_: await api.get(f"/v1/events/{id_}", Event) for id_ in {booking.event for booking in found}}
        entries = [Entry(booking, events[booking.event]) for booking in found]
    current = [entry for entry in entries if entry.booking.is_live]
    return page.show("bookings.html", current=current, past=[entry for entry in entries if entry not in current])


async def _find_org(page: PageRequest) -> None:
    """Whose booking the address names, if there can be one: what is said of a form is said in the org's own frame."""
    parsed = ids.parse_booking_id(page.request.path_params["booking"])
    if parsed is None:
        raise ApiError(Problem(404, "not_found"))
    page.org, _ = await page.site.org_of_event(ids.format_event_id(parsed[0]))


async def _find(page: PageRequest) -> tuple[ApiClient, Booking]:
    """The booking that the address names, if it is this browser's own."""
    await _find_org(page)
    if not page.is_known:
        raise ApiError(Problem(404, "not_found"))
    api = await page.customer()
    return api, await api.get(f"/v1/bookings/{page.request.path_params['booking']}", Booking)


async def _act(page: PageRequest, verb: str) -> Response:
    await _find_org(page)
    await page.form()
    api, booking = await _find(page)
    try:
        await api.post(f"/v1/bookings/{booking.id}/{verb}", Booking)
    except ApiError as error:
        return await _refused(page, api, error)
    return page.go(f"/b/{booking.id}")


async def _refused(page: PageRequest, api: ApiClient, error: ApiError) -> Response:
    """The page as it is now, with a word on what did not go."""
    _, booking = await _find(page)
    return await _booking_page(page, api, booking, error.problem)


async def _booking_page(
    page: PageRequest, api: ApiClient, booking: Booking, problem: Problem | None = None
) -> Response:
    event = await api.get(f"/v1/events/{booking.event}", Event)
    shows_tickets = booking.status in (Status.CONFIRMED, Status.COMPLETED)
    tickets = await api.get(f"/v1/bookings/{booking.id}/tickets", list[Ticket]) if shows_tickets else []
    return page.show(
        "booking.html",
        problem.status if problem else 200,
        booking=booking,
        event=event,
        tickets=tickets,
        names={(pool.code, tariff.code): (pool.name, tariff.name) for pool in event.pools for tariff in pool.tariffs},
        providers=page.site.providers,
        takes_receipts=event.policy.review == "manual" and booking.total > 0,
        can_extend=_can_extend(booking, event),
        extend_minutes=math.ceil(event.policy.extend_seconds / 60),
        can_cancel=_can_cancel(booking),
        is_back="payment" in page.request.query_params,
        problem=refusal_text(page.language, problem, event) if problem else None,
        key=str(booking.version),
        page={
            **_state(booking),
            "texts": section(page.language, "script"),
            "language": page.language,
            "address": f"/b/{booking.id}/state",
            "wholeSeconds": _whole_seconds(booking),
            "extendSeconds": event.policy.extend_seconds,
        },
    )


def _state(booking: Booking) -> dict[str, Any]:
    payment = booking.last_payment
    return {
        "status": booking.status,
        "secondsLeft": booking.expires_in_seconds,
        "payment": payment.status if payment else None,
        "version": booking.version,
    }


def _whole_seconds(booking: Booking) -> float | None:
    return (booking.expires_at - booking.created_at).total_seconds() if booking.expires_at else None


def _can_extend(booking: Booking, event: Event) -> bool:
    """Whether there is more time to be had, now or nearer to the end."""
    if booking.status is not Status.HELD or booking.expires_at is None or booking.max_expires_at is None:
        return False
    return booking.max_expires_at > booking.expires_at and event.policy.extend_seconds > 0


def _can_cancel(booking: Booking) -> bool:
    return booking.status is Status.HELD or (booking.status is Status.CONFIRMED and booking.total == 0)
