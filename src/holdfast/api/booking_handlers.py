"""Holds and bookings: everything that takes, keeps or gives back units goes through the desk."""

import hashlib
from typing import Any

from msgspec import json

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import HoldNew, Item
from holdfast.api.responses import BookingList, booking_view
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, ActOnBooking, BestSeats, PlaceHold, PoolItem, SeatItem, TransferBooking
from holdfast.core.decide import Outcome
from holdfast.core.event_schemas import invalid_field
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.core.states import Verb
from holdfast.runtime import ids

_encode_sorted = json.Encoder(order="sorted").encode


async def place_hold(call: Call) -> ApiResponse:
    body: HoldNew = call.body
    user = _buyer(call, body)
    event = ids.parse_event_id(call.path["id"])
    if event is None:
        raise RefusedError(Refusal.NOT_FOUND)
    outcome = await call.services.engine.submit(
        PlaceHold(
            event=event,
            org=call.caller.org,
            booking=ids.new_id(),
            user=user,
            actor=call.caller.actor,
            staff=call.caller.user is None,
            request_key=request_key(call),
            fingerprint=hashlib.blake2b(_encode_sorted((user, body)), digest_size=16).digest(),
            items=_items(body),
            best=_best(body),
            cart_hash=hashlib.sha256(body.cart_token.encode()).digest() if body.cart_token else None,
            details=json.encode(body.details).decode() if body.details is not None else None,
            email=body.email,
            language=body.language,
        )
    )
    return booking_answer(outcome, 201)


async def extend_booking(call: Call) -> ApiResponse:
    return await _act(call, Verb.EXTEND)


async def confirm_booking(call: Call) -> ApiResponse:
    return await _act(call, Verb.CONFIRM)


async def cancel_booking(call: Call) -> ApiResponse:
    return await _act(call, Verb.CANCEL, call.body.reason)


async def refund_booking(call: Call) -> ApiResponse:
    return await _act(call, Verb.REFUND, call.body.reason)


async def approve_booking(call: Call) -> ApiResponse:
    return await _act(call, Verb.APPROVE)


async def reject_booking(call: Call) -> ApiResponse:
    return await _act(call, Verb.REJECT, call.body.reason)


async def transfer_booking(call: Call) -> ApiResponse:
    event, booking = named_booking(call)
    known = await visible_booking(call, event, booking)
    if known["checked_in"]:
        raise RefusedError(Refusal.ALREADY_CHECKED_IN)
    outcome = await call.services.engine.submit(
        TransferBooking(
            event=event,
            org=call.caller.org,
            booking=booking,
            generation=known["generation"],
            user=call.body.user,
            email=call.body.email,
            language=call.body.language,
            actor=call.caller.actor,
        )
    )
    return booking_answer(outcome)


async def get_booking(call: Call) -> ApiResponse:
    event, booking = named_booking(call)
    rows = await call.services.pool.fetch(sql.reads.booking, event, booking, call.caller.org, call.caller.user)
    if not rows:
        raise RefusedError(Refusal.NOT_FOUND)
    return ApiResponse((await _views(call, rows))[0])


async def list_bookings(call: Call) -> ApiResponse:
    query = call.query
    event = ids.parse_event_id(query.event) if query.event else None
    after = ids.parse_booking_id(query.after) if query.after else None
    if query.after and after is None:
        raise invalid_field("after", "take it from `next` of the page before")
    user = call.caller.user or query.user
    hidden = query.user not in (None, user) or (query.event is not None and event is None)
    rows = []
    if not hidden:
        rows = await call.services.pool.fetch(
            sql.reads.bookings,
            call.caller.org,
            event,
            user,
            query.status,
            after[1] if after else None,
            query.limit + 1,
            query.reference.lower() if query.reference else None,
        )
    items = await _views(call, rows[: query.limit])
    return ApiResponse(BookingList(items=items, next=items[-1].id if len(rows) > query.limit else None))


def _buyer(call: Call, body: HoldNew) -> str:
    """A customer token gives the user; a secret key must name it."""
    if call.caller.user is None:
        if body.user is None:
            raise invalid_field("user", "is needed with a secret key")
        return body.user
    if body.user not in (None, call.caller.user):
        raise RefusedError(Refusal.FORBIDDEN, "A customer can hold only for themselves.")
    return call.caller.user


def request_key(call: Call) -> bytes:
    """Keys of one customer say nothing about those of another, nor about those of the org's own back end."""
    scope = b"user:" + call.caller.user.encode() if call.caller.user is not None else b"org"
    return hashlib.blake2b(scope + b"\0" + call.headers[b"idempotency-key"], digest_size=16).digest()


def _items(body: HoldNew) -> tuple[SeatItem | PoolItem, ...]:
    return tuple([_item(item) for item in body.items or ()])


def _item(item: Item) -> SeatItem | PoolItem:
    if item.seat is not None:
        return SeatItem(item.seat, item.tariff)
    assert item.pool is not None
    return PoolItem(item.pool, 1 if item.quantity is None else item.quantity, item.tariff)


def _best(body: HoldNew) -> BestSeats | None:
    best = body.best_available
    return BestSeats(best.pool, best.quantity, best.tariff, best.adjacent) if best else None


async def _act(call: Call, verb: Verb, reason: str | None = None) -> ApiResponse:
    event, booking = named_booking(call)
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
    return booking_answer(outcome)


def named_booking(call: Call) -> tuple[bytes, bytes]:
    named = ids.parse_booking_id(call.path["id"])
    if named is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return named


async def visible_booking(call: Call, event: bytes, booking: bytes) -> Any:
    """What has to be known of a booking before it is changed, if the caller may know of it."""
    row = await call.services.pool.fetchrow(
        sql.payments.known_booking, event, booking, call.caller.org, call.caller.user
    )
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return row


def done(outcome: Outcome) -> Accepted:
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.refusal, outcome.detail, conflicts=outcome.conflicts, errors=outcome.errors)
    return outcome


def booking_answer(outcome: Outcome, status: int = 200) -> ApiResponse:
    outcome = done(outcome)
    headers = ((b"idempotency-replayed", b"true"),) if outcome.replayed else ()
    return ApiResponse(booking_view(outcome.booking, outcome.layout, outcome.now), status, headers)


async def _views(call: Call, rows: list[Any]) -> list[Any]:
    revisions = {row["event_id"]: row["revision"] for row in rows}
    layouts = await call.services.engine.layouts(call.services.database, revisions)
    return [
        booking_view(json.decode(row["booking"], type=Booking), layouts[row["event_id"]], row["now"]) for row in rows
    ]
