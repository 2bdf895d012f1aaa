"""Holds and bookings. The engine decides everything that takes, keeps or releases units."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, structs

from holdfast import sql
from holdfast.api.booking_schemas import (
    BookingList,
    BookingView,
    HoldNew,
    booking_view,
    hold_command,
    recipient_view,
)
from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import BookingsQuery, Empty, TransferNew, WithReason
from holdfast.core.booking import Booking
from holdfast.core.clients import FREE_BOOKING_SECONDS
from holdfast.core.commands import Accepted, ActOnBooking, BookingAction, Client, TransferBooking
from holdfast.core.decide import Outcome
from holdfast.core.layout import BookedItem
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.core.states import Verb
from holdfast.engine.attempt_log import attempt_log
from holdfast.runtime import ids

# These give seats back.
RELEASING: Final = frozenset({Verb.CANCEL, Verb.REFUND, Verb.REJECT})
# A page of bookings ends with the one that reaches this many lines.
PAGE_LINES_MAX: Final = 5_000


class BookingRow(Struct, frozen=True):
    """A booking, with the database's time. The row includes the items, because the layout of a large hall takes long
    to load. `found` is how many bookings the page would have if they were small."""

    now: datetime
    booking: Booking
    items: list[BookedItem]
    found: int


class LargeFields(Struct, frozen=True):
    details: str | None
    answers: str | None


class BookingAccess(Struct, frozen=True):
    """What a caller has to know about a booking before acting on it."""

    generation: int


class UnpaidUnitsRow(Struct, frozen=True):
    """The unpaid units of an address in events of an org, and how many it may have."""

    units: int
    max_in_org: int | None


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
        client=await _client(call, event) if call.caller.user is not None else None,
    )
    attempt_log.add_attempt(command)
    outcome = await call.services.submit_hold(command)
    is_reentrant = isinstance(outcome, Accepted) and outcome.is_reentrant
    return await booking_response(call, outcome, 200 if is_reentrant else 201)


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
    outcome = await call.services.engine.submit(
        TransferBooking(
            event=event,
            org=call.caller.org,
            booking=booking,
            generation=access.generation,
            user=body.user,
            name=body.contact.name,
            email=body.contact.email or body.email,
            phone=body.contact.phone,
            language=body.language,
            actor=call.caller.actor,
        )
    )
    await _tell_redis(call, outcome)
    return await booking_response(call, outcome)


async def get_booking(call: Call) -> ApiResponse[BookingView]:
    event, booking = call.path_id(ids.parse_booking_id)
    row = await call.services.database.event(event).row(
        BookingRow, sql.reads.booking, event, booking, call.caller.org, call.caller.user
    )
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return ApiResponse(_view(call, row.booking, row.items, row.now))


async def list_bookings(call: Call, query: BookingsQuery) -> ApiResponse[BookingList]:
    rows = await _find_bookings(call, query)
    items = [_view(call, row.booking, row.items, row.now) for row in rows[: query.limit]]
    has_more = bool(rows) and rows[0].found > len(items)
    return ApiResponse(BookingList(items=items, next=items[-1].id if has_more else None))


async def _find_bookings(call: Call, query: BookingsQuery) -> list[BookingRow]:
    """One more than the limit, to know whether there is a next page."""
    event = ids.parse_event_id(query.event) if query.event else None
    after = ids.parse_booking_id(query.after) if query.after else None
    if query.after and after is None:
        raise invalid_field("after", "must be the `next` of the previous page")
    user = call.caller.user or query.user
    if query.user not in (None, user) or (query.event is not None and event is None):
        return []
    database = call.services.reports if call.caller.user is None else call.services.database
    return await database.org(call.caller.org).rows(
        BookingRow,
        *sql.reads.bookings(
            org=call.caller.org,
            event=event,
            user=user,
            status=query.status,
            after=after[1] if after else None,
            limit=query.limit + 1,
            lines_max=PAGE_LINES_MAX,
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


async def _client(call: Call, event: bytes) -> Client:
    """The buyer's client and, for a guest, the unpaid units of the address in other events of the org. Those may change
    before the engine decides, so concurrent requests can exceed the org's limit."""
    caller = call.caller
    address = await call.services.client_hasher.hash(caller.org, call.find_address())
    if not caller.is_guest:
        return Client(address, is_guest=False)
    row = await call.services.database.org(caller.org).row(
        UnpaidUnitsRow,
        *sql.reads.unpaid_units_elsewhere(
            org=caller.org, client=address, event=event, free_seconds=FREE_BOOKING_SECONDS
        ),
    )
    assert row is not None
    return Client(address, is_guest=True, unpaid_elsewhere=row.units, max_in_org=row.max_in_org)


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
    if verb in RELEASING:
        await _tell_redis(call, outcome)
    return await booking_response(call, outcome)


async def _tell_redis(call: Call, outcome: Outcome) -> None:
    """Wait until Redis knows of the release. Otherwise it could refuse the next buyer a seat that is free."""
    if call.services.redis is not None and isinstance(outcome, Accepted):
        await call.services.redis.seats_released()


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
        raise RefusedError.of(outcome)
    return outcome


async def booking_response(call: Call, outcome: Outcome, status: int = 200) -> ApiResponse[BookingView]:
    accepted = require_accepted(outcome)
    booking = accepted.booking
    if booking.has_details and booking.details is None and booking.answers is None:
        booking = await _add_details(call, booking)
    headers = ((b"idempotency-replayed", b"true"),) if accepted.replayed else ()
    items = accepted.layout.items(booking.lines)
    return ApiResponse(_view(call, booking, items, accepted.now), status, headers)


async def _add_details(call: Call, booking: Booking) -> Booking:
    """The engine loads bookings without their details and answers, which never change."""
    row = await call.services.database.event(booking.event).row(
        LargeFields, sql.reads.booking_details, booking.event, booking.id
    )
    return structs.replace(booking, details=row.details, answers=row.answers) if row is not None else booking


def _view(call: Call, booking: Booking, items: Sequence[BookedItem], now: datetime) -> BookingView:
    """The booking as the caller may see it."""
    view = booking_view(booking, items, now)
    return recipient_view(view) if booking.was_transferred and call.caller.user is not None else view
