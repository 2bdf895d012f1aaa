"""A booking and its payments come back from the database exactly as they were saved: no field is lost on the way."""

from datetime import timedelta
from typing import Any

from msgspec import Struct, structs

from holdfast.core.booking import Booking, Line
from holdfast.core.commands import Command, PoolItem, Receipt, SeatItem, TransferBooking
from holdfast.core.payment import Payment, PaymentOutcome, PaymentStatus
from holdfast.core.states import Status, Verb
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import LoadedBatch, load_batch
from holdfast.engine.save import save
from holdfast.runtime import db
from holdfast.runtime.ids import new_id
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
)

# The request that starts a checkout sets these, outside of any batch.
SET_OUTSIDE_BATCHES = {"provider_ref", "checkout_url"}


@async_test
async def test_a_new_booking_is_loaded_as_it_was_saved(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection)
        loaded = await _load(connection, event)
        booking = _new_booking(event, loaded)
        assert _fields_at_default(booking) == {"payments", "receipts"}
        await _save(connection, event, loaded, lambda state: state.add_booking(booking, "test"))
        assert await _reload(connection, event, booking.id) == structs.replace(booking, details=None, answers=None)


@async_test
async def test_a_changed_booking_is_loaded_as_it_was_saved(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection)
        loaded = await _load(connection, event)
        booking = _new_booking(event, loaded)
        await _save(connection, event, loaded, lambda state: state.add_booking(booking, "test"))
        later = booking.created_at + timedelta(hours=9)

        def change(state: Any) -> None:
            submitted = state.move_booking(booking, Status.PAYMENT_SUBMITTED, "test", "another reason", later)
            paid = state.record_payment(submitted, _payment(booking), "test")
            receipt = Receipt(id=new_id(), hash=b"h" * 32, content_type="image/png", size=7)
            transfer = TransferBooking(
                event=event.id,
                org=event.org,
                booking=booking.id,
                generation=booking.generation,
                user="another",
                actor="test",
                name="Bea",
                email="b@example.org",
                phone="+4930123456",
                language="de",
            )
            state.transfer_booking(state.add_receipt(paid, receipt), transfer)

        saved = await _save(connection, event, await _load(connection, event, booking.id), change)
        changed = saved.states[event.id].bookings[booking.id]
        assert _fields_at_default(changed) == {"one_per_user"}
        assert await _reload(connection, event, booking.id) == structs.replace(changed, details=None, answers=None)


@async_test
async def test_a_changed_payment_is_loaded_as_it_was_saved(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection)
        loaded = await _load(connection, event)
        booking = structs.replace(_new_booking(event, loaded), payments=())
        first = structs.replace(
            _payment(booking),
            status=PaymentStatus.STARTED,
            outcome=None,
            captured_at=None,
            capture_assumed=False,
            reason=None,
        )

        def start(state: Any) -> None:
            state.record_payment(state.add_booking(booking, "test"), first, "test")

        await _save(connection, event, loaded, start)
        loaded = await _load(connection, event, booking.id)
        with_payment = loaded.states[event.id].bookings[booking.id]
        assert with_payment.payments == (first,)
        done = _payment(booking, first.id)
        assert _fields_at_default(done) == SET_OUTSIDE_BATCHES
        await _save(connection, event, loaded, lambda state: state.record_payment(with_payment, done, "test"))
        assert (await _reload(connection, event, booking.id)).payments == (done,)


def _new_booking(event: EventHandle, loaded: LoadedBatch) -> Booking:
    """A booking in which no field has its default."""
    now = loaded.now
    return Booking(
        id=new_id(),
        event=event.id,
        org=event.org,
        user="ann",
        status=Status.HELD,
        lines=(Line(0, 0, 3, 1, 1000), Line(1, 0, None, 2, 500)),
        subtotal=2000,
        tax=200,
        total=2200,
        currency="EUR",
        created_at=now,
        expires_at=now + timedelta(hours=1),
        max_expires_at=now + timedelta(hours=2),
        request_key=bytes(range(16)),
        fingerprint=bytes(range(240, 256)),
        cart_hash=bytes(range(32)),
        details='{"a": "é\\n"}',
        has_details=True,
        name="Ann",
        email="ann@example.org",
        phone="+34911234567",
        language="es",
        answers='{"q": true}',
        reason="a reason",
        generation=3,
        client=bytes(range(100, 112)),
        one_per_user=True,
        version=loaded.states[event.id].version + 1,
    )


def _payment(booking: Booking, id_: bytes | None = None) -> Payment:
    return Payment(
        id=id_ or new_id(),
        provider="sandbox",
        status=PaymentStatus.REVIEW,
        amount=booking.total,
        currency=booking.currency,
        request_key=b"\x00\xff" * 8,
        fingerprint=b"\xfe" * 16,
        created_at=booking.created_at,
        outcome=PaymentOutcome.REVIEW,
        return_url="https://example.org/?a=1",
        captured_at=booking.created_at + timedelta(minutes=1),
        capture_assumed=True,
        reason="a reason",
    )


def _fields_at_default(value: Struct) -> set[str]:
    """The fields that have their default, so that losing them would go unnoticed."""
    defaults = {field.name: field.default for field in structs.fields(value)}
    return {name for name, default in defaults.items() if getattr(value, name) == default}


async def _load(connection: db.Connection, event: EventHandle, *bookings: bytes) -> LoadedBatch:
    await connection.execute("BEGIN")
    hold = structs.replace(new_hold_command(event), items=(SeatItem("A-4"), PoolItem("standing", 2)))
    commands: list[Command] = [hold, *(new_action_command(event, booking, Verb.CONFIRM) for booking in bookings)]
    return await load_batch(connection, LayoutCache(), {event.id: commands})


async def _save(connection: db.Connection, event: EventHandle, loaded: LoadedBatch, change: Any) -> LoadedBatch:
    change(loaded.states[event.id])
    await save(connection, loaded)
    await connection.execute("COMMIT")
    return loaded


async def _reload(connection: db.Connection, event: EventHandle, booking: bytes) -> Booking:
    """The booking as a batch loads it, which is without its details."""
    loaded = await _load(connection, event, booking)
    await connection.execute("ROLLBACK")
    return loaded.states[event.id].bookings[booking]
