"""Tickets: reading them, printing them, and checking them in at the door."""

import asyncio
import base64
from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.event_handlers import require_event
from holdfast.api.requests import CheckinNew, KeyRotation
from holdfast.api.responses import CheckinView, KeyView, TicketKeyView, TicketView
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.core.states import SOLD, EventStatus, Status
from holdfast.runtime import ids
from holdfast.tickets.booking_details import BookingDetails, load_booking_details
from holdfast.tickets.booking_tickets import Ticket, TicketStatus, ticket_at, tickets_of
from holdfast.tickets.codes import TicketRef
from holdfast.tickets.issued_tickets import IssuedTicket, issue_tickets, print_tickets
from holdfast.tickets.keys import get_signing_key, rotate_key
from holdfast.tickets.qr import qr_png, qr_svg
from holdfast.tickets.verification import verify_code

NO_SNIFF: Final = ((b"x-content-type-options", b"nosniff"),)


class UsedTicketRow(Struct, frozen=True):
    line: int
    unit: int


class TicketKeyRow(Struct, frozen=True):
    number: int
    public: bytes
    created_at: datetime
    revoked_at: datetime | None


class CheckinAttemptRow(Struct, frozen=True):
    """The booking at the moment of the scan. `at` is set if this scan was the first."""

    status: Status
    generation: int
    is_event_cancelled: bool
    at: datetime | None


class CheckinRow(Struct, frozen=True):
    at: datetime
    gate: str | None
    nonce: str | None
    actor: str


async def list_tickets(call: Call) -> ApiResponse[list[TicketView]]:
    """Empty until the booking is confirmed. The tickets of a refunded booking are void."""
    event, booking = call.path_id(ids.parse_booking_id)
    details = await _load_details(call, event, booking)
    used = set(await call.services.database.event(event).rows(UsedTicketRow, sql.tickets.checkins, event, booking))
    tickets = tickets_of(details.booking, details.layout) if _was_confirmed(details) else []
    views = [
        _ticket_view(details, issued, UsedTicketRow(issued.ticket.line, issued.ticket.unit) in used)
        for issued in await issue_tickets(call.services.database, details.booking, tickets)
    ]
    return ApiResponse(views, headers=NO_SNIFF)


async def get_qr_svg(call: Call) -> ApiResponse[bytes]:
    _, issued = await _require_ticket(call)
    return ApiResponse(await asyncio.to_thread(qr_svg, issued.code), headers=NO_SNIFF, content_type=b"image/svg+xml")


async def get_qr_png(call: Call) -> ApiResponse[bytes]:
    _, issued = await _require_ticket(call)
    return ApiResponse(await asyncio.to_thread(qr_png, issued.code), headers=NO_SNIFF, content_type=b"image/png")


async def get_ticket_pdf(call: Call) -> ApiResponse[bytes]:
    details, issued = await _require_ticket(call)
    pdf = await print_tickets(details, [issued], details.booking.language or "en")
    headers = (*NO_SNIFF, (b"content-disposition", b'inline; filename="ticket.pdf"'))
    return ApiResponse(pdf, headers=headers, content_type=b"application/pdf")


async def get_ticket_key(call: Call) -> ApiResponse[TicketKeyView]:
    return await _key_response(call, await require_event(call))


async def rotate_ticket_key(call: Call, body: KeyRotation) -> ApiResponse[TicketKeyView]:
    event = await require_event(call)
    await rotate_key(call.services.database, event, revoke=body.revoke)
    return await _key_response(call, event)


async def check_in(call: Call, body: CheckinNew) -> ApiResponse[CheckinView]:
    """Refuse a ticket for another event before writing anything, so that it stays valid for its own event."""
    ref = await _verify_code(call, body)
    scope = call.services.database.event(ref.event)
    attempt = await scope.row(
        CheckinAttemptRow,
        *sql.tickets.check_in(
            event=ref.event,
            booking=ref.booking,
            line=ref.line,
            unit=ref.unit,
            generation=ref.generation,
            gate=body.gate,
            nonce=body.nonce,
            actor=call.caller.actor,
        ),
    )
    _, ticket = await _load_ticket(call, ref)
    if attempt is None:
        raise RefusedError(Refusal.INVALID_TICKET)
    _check_valid(attempt, ref)
    if attempt.at is not None:
        return _admission(ref, ticket, attempt.at, body.gate)
    earlier = await scope.row(CheckinRow, sql.tickets.checkin, ref.event, ref.booking, ref.line, ref.unit)
    assert earlier is not None
    if body.nonce is not None and _device(earlier) == (body.nonce, body.gate, call.caller.actor):
        return _admission(ref, ticket, earlier.at, earlier.gate)
    raise _already_checked_in_error(earlier)


def _event_at_door(body: CheckinNew) -> bytes | None:
    if body.event is None:
        return None
    event = ids.parse_event_id(body.event)
    if event is None:
        raise invalid_field("event", "must be the id of an event")
    return event


async def _verify_code(call: Call, body: CheckinNew) -> TicketRef:
    """The ticket of a code that one of the org's events has signed. Refuses tickets for events other than this
    door's."""
    at_door = _event_at_door(body)
    ref = await verify_code(call.services.database, call.caller.org, body.code)
    if ref is None:
        raise RefusedError(Refusal.INVALID_TICKET)
    if at_door not in (None, ref.event) or not call.caller.may_read_tickets_of(ref.event):
        details, ticket = await _load_ticket(call, ref)
        raise RefusedError(Refusal.WRONG_EVENT, f"This ticket is for another event: {details.event_text(ticket.slot)}.")
    return ref


async def _load_ticket(call: Call, ref: TicketRef) -> tuple[BookingDetails, Ticket]:
    details = await load_booking_details(call.services.database, call.services.engine, ref.event, ref.booking)
    ticket = ticket_at(details.booking, details.layout, ref.line, ref.unit) if details is not None else None
    if details is None or ticket is None:
        raise RefusedError(Refusal.INVALID_TICKET)
    return details, ticket


def _device(checkin: CheckinRow) -> tuple[str | None, str | None, str]:
    """Only the device that checked the ticket in gets its response again. Another device with a copied nonce would
    admit a second person."""
    return checkin.nonce, checkin.gate, checkin.actor


def _check_valid(attempt: CheckinAttemptRow, ref: TicketRef) -> None:
    if attempt.status not in SOLD:
        raise RefusedError(Refusal.TICKET_VOID, f"The ticket is no longer valid: its booking is {attempt.status}.")
    if attempt.is_event_cancelled:
        raise RefusedError(Refusal.TICKET_VOID, "The ticket is no longer valid: the event was cancelled.")
    if attempt.generation != ref.generation:
        raise RefusedError(
            Refusal.TICKET_VOID, "The ticket is no longer valid: the booking was transferred to someone else."
        )


def _already_checked_in_error(earlier: CheckinRow) -> RefusedError:
    where = f" at gate {earlier.gate}" if earlier.gate else ""
    return RefusedError(
        Refusal.ALREADY_CHECKED_IN,
        f"This ticket was used to enter on {earlier.at:%Y-%m-%d at %H:%M:%S} UTC{where}.",
        checked_in_at=earlier.at,
        gate=earlier.gate,
    )


def _admission(ref: TicketRef, ticket: Ticket, at: datetime, gate: str | None) -> ApiResponse[CheckinView]:
    return ApiResponse(
        CheckinView(
            result="admitted",
            ticket=ids.format_ticket_id(ref.event, ref.booking, ref.line, ref.unit),
            event=ids.format_event_id(ref.event),
            booking=ids.format_booking_id(ref.event, ref.booking),
            pool=ticket.pool,
            pool_name=ticket.pool_name,
            starts_at=ticket.slot.starts_at,
            ends_at=ticket.slot.ends_at,
            tariff=ticket.tariff,
            seat=ticket.seat,
            at=at,
            gate=gate,
        )
    )


async def _require_ticket(call: Call) -> tuple[BookingDetails, IssuedTicket]:
    """The valid ticket in the path, with its code."""
    event, booking, line, unit = call.path_id(ids.parse_ticket_id)
    details = await _load_details(call, event, booking)
    ticket = ticket_at(details.booking, details.layout, line, unit)
    if ticket is None or not _was_confirmed(details):
        raise RefusedError(Refusal.NOT_FOUND)
    if not _is_valid(details):
        raise RefusedError(
            Refusal.TICKET_VOID, "The ticket is no longer valid: the booking was refunded or the event was cancelled."
        )
    (issued,) = await issue_tickets(call.services.database, details.booking, [ticket])
    return details, issued


async def _load_details(call: Call, event: bytes, booking: bytes) -> BookingDetails:
    details = await load_booking_details(call.services.database, call.services.engine, event, booking)
    if (
        details is None
        or details.booking.org != call.caller.org
        or not call.caller.may_read_tickets_of(event)
        or call.caller.user not in (None, details.booking.user)
    ):
        raise RefusedError(Refusal.NOT_FOUND)
    return details


def _was_confirmed(details: BookingDetails) -> bool:
    return details.booking.status in SOLD or details.booking.status is Status.REFUNDED


def _is_valid(details: BookingDetails) -> bool:
    """Tickets of a cancelled event are void at once, before the worker has ended its bookings."""
    return details.booking.status in SOLD and details.layout.status is not EventStatus.CANCELLED


def _ticket_view(details: BookingDetails, issued: IssuedTicket, is_used: bool) -> TicketView:
    ticket, booking = issued.ticket, details.booking
    status = TicketStatus.CHECKED_IN if is_used else TicketStatus.VALID
    return TicketView(
        id=ids.format_ticket_id(booking.event, booking.id, ticket.line, ticket.unit),
        seat=ticket.seat,
        pool=ticket.pool,
        tariff=ticket.tariff,
        starts_at=ticket.slot.starts_at,
        ends_at=ticket.slot.ends_at,
        code=issued.code,
        status=status if _is_valid(details) else TicketStatus.VOID,
    )


async def _key_response(call: Call, event: bytes) -> ApiResponse[TicketKeyView]:
    current = await get_signing_key(call.services.database, event)
    rows = await call.services.database.event(event).rows(TicketKeyRow, sql.tickets.keys, event)
    return ApiResponse(
        TicketKeyView(
            event=ids.format_event_id(event),
            algorithm="Ed25519",
            number=current.number,
            public_key=_base64(current.public),
            keys=[_key_view(row) for row in rows],
        )
    )


def _key_view(row: TicketKeyRow) -> KeyView:
    return KeyView(
        number=row.number, public_key=_base64(row.public), created_at=row.created_at, revoked_at=row.revoked_at
    )


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
