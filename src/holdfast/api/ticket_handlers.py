"""Tickets: shown to their holder, printed, and let in at the door."""

import base64
from typing import Any, Final

from holdfast import sql
from holdfast.api.booking_handlers import named_booking
from holdfast.api.call import ApiResponse, Call
from holdfast.api.event_handlers import visible_event
from holdfast.api.problems import problem_about
from holdfast.api.responses import CheckinView, KeyView, TicketKeyView, TicketView
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import EventStatus, Status
from holdfast.runtime import ids
from holdfast.tickets.booking_tickets import VALID, TicketStatus, ticket_at, tickets_of
from holdfast.tickets.codes import TicketRef, is_genuine, parse
from holdfast.tickets.issue import BookingSheet, Issued, issue, load_booking_sheet, print_tickets
from holdfast.tickets.keys import rotate_key, signing_key
from holdfast.tickets.qr import qr_png, qr_svg

PRIVATE: Final = ((b"cache-control", b"private, no-store"), (b"x-content-type-options", b"nosniff"))


async def list_tickets(call: Call) -> ApiResponse:
    """There are none before the booking is confirmed; those of one that was refunded are void."""
    event, booking = named_booking(call)
    sheet = await _sheet(call, event, booking)
    used = {tuple(row) for row in await call.services.pool.fetch(sql.tickets.checkins, event, booking)}
    shown = tickets_of(sheet.booking, sheet.layout) if _was_confirmed(sheet) else []
    issued = await issue(call.services.pool, sheet.booking, shown)
    return ApiResponse([_view(sheet, each, used) for each in issued], headers=PRIVATE)


async def get_qr_svg(call: Call) -> ApiResponse:
    _, one = await _one(call)
    return ApiResponse(qr_svg(one.code), headers=PRIVATE, content_type=b"image/svg+xml")


async def get_qr_png(call: Call) -> ApiResponse:
    _, one = await _one(call)
    return ApiResponse(qr_png(one.code), headers=PRIVATE, content_type=b"image/png")


async def get_ticket_pdf(call: Call) -> ApiResponse:
    sheet, one = await _one(call)
    pdf = await print_tickets(sheet, [one], sheet.booking.language or "en")
    headers = (*PRIVATE, (b"content-disposition", b'inline; filename="ticket.pdf"'))
    return ApiResponse(pdf, headers=headers, content_type=b"application/pdf")


async def get_ticket_key(call: Call) -> ApiResponse:
    return await _key_answer(call, await visible_event(call))


async def rotate_ticket_key(call: Call) -> ApiResponse:
    event = await visible_event(call)
    await rotate_key(call.services.pool, event, revoke=call.body.revoke)
    return await _key_answer(call, event)


async def check_in(call: Call) -> ApiResponse:
    ref = parse(call.body.code)
    if ref is None:
        raise RefusedError(Refusal.INVALID_TICKET)
    public = await call.services.pool.fetchval(sql.tickets.public_key, ref.event, ref.key, call.caller.org)
    if public is None or not is_genuine(call.body.code, public):
        raise RefusedError(Refusal.INVALID_TICKET)
    place = (ref.event, ref.booking, ref.line, ref.unit)
    body = call.body
    row = await call.services.pool.fetchrow(
        sql.tickets.check_in, *place, ref.generation, body.gate, body.nonce, call.caller.actor
    )
    sheet = await load_booking_sheet(call.services.pool, call.services.engine, ref.event, ref.booking)
    if row is None or sheet is None or ticket_at(sheet.booking, sheet.layout, ref.line, ref.unit) is None:
        raise RefusedError(Refusal.INVALID_TICKET)
    if row["status"] not in VALID:
        raise RefusedError(Refusal.TICKET_VOID, f"The booking is {row['status']}.")
    if row["called_off"]:
        raise RefusedError(Refusal.TICKET_VOID, "The event was cancelled.")
    if row["generation"] != ref.generation:
        raise RefusedError(Refusal.TICKET_VOID, "The booking was handed to another person.")
    if row["at"] is not None:
        return _admitted(sheet, ref, row["at"], body.gate)
    earlier = await call.services.pool.fetchrow(sql.tickets.checkin, *place)
    if body.nonce is not None and earlier["nonce"] == body.nonce:
        return _admitted(sheet, ref, earlier["at"], earlier["gate"])
    where = f" at {earlier['gate']}" if earlier["gate"] else ""
    return problem_about(
        Refusal.ALREADY_CHECKED_IN,
        f"Let in at {earlier['at']:%Y-%m-%dT%H:%M:%SZ}{where}.",
        checked_in_at=earlier["at"],
        gate=earlier["gate"],
    )


async def _one(call: Call) -> tuple[BookingSheet, Issued]:
    named = ids.parse_ticket_id(call.path["id"])
    if named is None:
        raise RefusedError(Refusal.NOT_FOUND)
    event, booking, line, unit = named
    sheet = await _sheet(call, event, booking)
    ticket = ticket_at(sheet.booking, sheet.layout, line, unit)
    if ticket is None or not _was_confirmed(sheet):
        raise RefusedError(Refusal.NOT_FOUND)
    if not _is_valid(sheet):
        raise RefusedError(Refusal.TICKET_VOID, "The booking was refunded, or its event cancelled.")
    (one,) = await issue(call.services.pool, sheet.booking, [ticket])
    return sheet, one


async def _sheet(call: Call, event: bytes, booking: bytes) -> BookingSheet:
    sheet = await load_booking_sheet(call.services.pool, call.services.engine, event, booking)
    if sheet is None or sheet.booking.org != call.caller.org or call.caller.user not in (None, sheet.booking.user):
        raise RefusedError(Refusal.NOT_FOUND)
    return sheet


def _was_confirmed(sheet: BookingSheet) -> bool:
    return sheet.booking.status in VALID or sheet.booking.status is Status.REFUNDED


def _is_valid(sheet: BookingSheet) -> bool:
    """Also where nobody has come yet to end the bookings of an event that was called off."""
    return sheet.booking.status in VALID and sheet.layout.status is not EventStatus.CANCELLED


def _view(sheet: BookingSheet, issued: Issued, used: set[tuple[Any, ...]]) -> TicketView:
    ticket, booking = issued.ticket, sheet.booking
    status = TicketStatus.CHECKED_IN if (ticket.line, ticket.unit) in used else TicketStatus.VALID
    return TicketView(
        id=ids.format_ticket_id(booking.event, booking.id, ticket.line, ticket.unit),
        seat=ticket.seat,
        pool=ticket.pool,
        tariff=ticket.tariff,
        code=issued.code,
        status=status if _is_valid(sheet) else TicketStatus.VOID,
    )


def _admitted(sheet: BookingSheet, ref: TicketRef, at: Any, gate: str | None) -> ApiResponse:
    ticket = ticket_at(sheet.booking, sheet.layout, ref.line, ref.unit)
    assert ticket is not None
    return ApiResponse(
        CheckinView(
            result="admitted",
            ticket=ids.format_ticket_id(ref.event, ref.booking, ref.line, ref.unit),
            event=ids.format_event_id(ref.event),
            booking=ids.format_booking_id(ref.event, ref.booking),
            pool=ticket.pool,
            tariff=ticket.tariff,
            seat=ticket.seat,
            at=at,
            gate=gate,
        )
    )


async def _key_answer(call: Call, event: bytes) -> ApiResponse:
    current = await signing_key(call.services.pool, event)
    keys = [
        KeyView(
            number=row["number"],
            public_key=_base64(row["public"]),
            created_at=row["created_at"],
            revoked_at=row["revoked_at"],
        )
        for row in await call.services.pool.fetch(sql.tickets.keys, event)
    ]
    return ApiResponse(
        TicketKeyView(
            event=ids.format_event_id(event),
            algorithm="Ed25519",
            number=current["number"],
            public_key=_base64(current["public"]),
            keys=keys,
        )
    )


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
