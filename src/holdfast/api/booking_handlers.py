"""Holds and bookings. The engine decides everything that takes, keeps or releases units."""

import hashlib
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from holdfast import sql
from holdfast.api.booking_schemas import BookingList, BookingView, HoldNew, booking_view, hold_command
from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import BookingsQuery, Empty, TransferNew, WithReason
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, ActOnBooking, BookingAction, TransferBooking
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import invalid_field
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.core.states import Verb
from holdfast.runtime import ids


class BookingRow(Struct, frozen=True):
    """A booking, with the database's time and the revision of the event's layout."""

    now: datetime
    revision: int
    booking: Booking


class BookingAccess(Struct, frozen=True):
    """What a caller has to know about a booking before acting on it."""

    generation: int
    checked_in: bool


async def place_hold(call: Call, body: HoldNew) -> ApiResponse[BookingView]:
    user = _buyer(call, body)
    event = call.path_id(ids.parse_event_id)
    command = hold_command(
        body,
        event=event,
        org=call.caller.org,
        user=user,
        actor=call.caller.actor,
        staff=call.caller.user is None,
        request_key=request_key(call),
    )
    outcome = await call.services.engine.submit(command)
    return booking_response(outcome, 201)


async def extend_booking(call: Call, body: Empty) -> ApiResponse[BookingView]:
    return await _act(call, Verb.EXTEND)


async def confirm_booking(call: Call, body: Empty) -> ApiResponse[BookingView]:
    return await _act(call, Verb.CONFIRM)


async def cancel_booking(call: Call, body: WithReason) -> ApiResponse[BookingView]:
    return await _act(call, Verb.CANCEL, body.reason)


async def refund_booking(call: Call, body: WithReason) -> ApiResponse[BookingView]:
    return await _act(call, Verb.REFUND, body.reason)


async def approve_booking(call: Call, body: Empty) -> ApiResponse[BookingView]:
    return await _act(call, Verb.APPROVE)


async def reject_booking(call: Call, body: WithReason) -> ApiResponse[BookingView]:
    return await _act(call, Verb.REJECT, body.reason)


async def transfer_booking(call: Call, body: TransferNew) -> ApiResponse[BookingView]:
    event, booking = call.path_id(ids.parse_booking_id)
    access = await require_booking(call, event, booking)
    if access.checked_in:
        raise RefusedError(
            Refusal.ALREADY_CHECKED_IN,
            "A ticket of this booking has already been used to enter, so the booking cannot be transferred.",
        )
    outcome = await call.services.engine.submit(
        TransferBooking(
            event=event,
            org=call.caller.org,
            booking=booking,
            generation=access.generation,
            user=body.user,
            email=body.email,
            language=body.language,
            actor=call.caller.actor,
        )
    )
    return booking_response(outcome)


async def get_booking(call: Call) -> ApiResponse[BookingView]:
    event, booking = call.path_id(ids.parse_booking_id)
    row = await call.services.database.event(event).row(
        BookingRow, sql.reads.booking, event, booking, call.caller.org, call.caller.user
    )
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    (view,) = await _views(call, [row])
    return ApiResponse(view)


async def list_bookings(call: Call, query: BookingsQuery) -> ApiResponse[BookingList]:
    rows = await _find_bookings(call, query)
    items = await _views(call, rows[: query.limit])
    return ApiResponse(BookingList(items=items, next=items[-1].id if len(rows) > query.limit else None))


async def _find_bookings(call: Call, query: BookingsQuery) -> list[BookingRow]:
    """One more than the limit, to know whether there is a next page."""
    event = ids.parse_event_id(query.event) if query.event else None
    after = ids.parse_booking_id(query.after) if query.after else None
    if query.after and after is None:
        raise invalid_field("after", "must be the `next` of the previous page")
    user = call.caller.user or query.user
    if query.user not in (None, user) or (query.event is not None and event is None):
        return []
    return await call.services.database.org(call.caller.org).rows(
        BookingRow,
        *sql.reads.bookings(
            org=call.caller.org,
            event=event,
            user=user,
            status=query.status,
            after=after[1] if after else None,
            limit=query.limit + 1,
            reference=query.reference.lower() if query.reference else None,
        ),
    )


def _buyer(call: Call, body: HoldNew) -> str:
    """A customer token names the user; a request with a secret key has to."""
    if call.caller.user is None:
        if body.user is None:
            raise invalid_field("user", "is required with a secret key")
        return body.user
    if body.user not in (None, call.caller.user):
        raise RefusedError(
            Refusal.FORBIDDEN, "A customer token can act only for its own user. Leave out `user`, or use a secret key."
        )
    return call.caller.user


def request_key(call: Call) -> bytes:
    """Every customer, and the org's back end, has a separate namespace of idempotency keys."""
    scope = b"user:" + call.caller.user.encode() if call.caller.user is not None else b"org"
    return hashlib.blake2b(scope + b"\0" + call.headers[b"idempotency-key"], digest_size=16).digest()


async def _act(call: Call, verb: BookingAction, reason: str | None = None) -> ApiResponse[BookingView]:
    event, booking = call.path_id(ids.parse_booking_id)
    outcome = await call.services.engine.submit(
        ActOnBooking(
            event=event,
            org=call.caller.org,
            booking=booking,
            verb=verb,
            actor=call.caller.actor,
            owner=call.caller.user,
            reason=reason,
        )
    )
    return booking_response(outcome)


async def require_booking(call: Call, event: bytes, booking: bytes) -> BookingAccess:
    """Refuse unless the booking exists and the caller may see it."""
    row = await call.services.database.event(event).row(
        BookingAccess, sql.payments.booking_access, event, booking, call.caller.org, call.caller.user
    )
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return row


def require_accepted(outcome: Outcome) -> Accepted:
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.refusal, outcome.detail, conflicts=outcome.conflicts, errors=outcome.errors)
    return outcome


def booking_response(outcome: Outcome, status: int = 200) -> ApiResponse[BookingView]:
    accepted = require_accepted(outcome)
    headers = ((b"idempotency-replayed", b"true"),) if accepted.replayed else ()
    return ApiResponse(booking_view(accepted.booking, accepted.layout, accepted.now), status, headers)


async def _views(call: Call, rows: Sequence[BookingRow]) -> list[BookingView]:
    revisions = {row.booking.event: row.revision for row in rows}
    layouts = await call.services.engine.layouts(call.services.database, revisions)
    return [booking_view(row.booking, layouts[row.booking.event], row.now) for row in rows]
