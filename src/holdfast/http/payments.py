"""Payments: begun, looked at, paid back; and what providers tell about them."""

import hashlib
from contextlib import suppress
from typing import Any

from msgspec import json, structs

from holdfast import ids, sql
from holdfast.core.commands import Done, Pay, Remedy, Resolve, Settle
from holdfast.core.model import Booking
from holdfast.core.money import RECEIPT, News, Payment, PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.desk.opening import PaymentDocument
from holdfast.http.bookings import done, named_booking, request_key, visible_booking
from holdfast.http.operation import Answer, Call
from holdfast.http.views import NoticeView, payment_view
from holdfast.payments.provider import Ask, NoticeError, Provider, ProviderError, ProviderRefusedError


async def start_payment(call: Call) -> Answer:
    """The payment is written first, and then the provider is asked, outside of any transaction. Who asks again with the
    same key, because an answer was lost on the way, has the provider asked again for the same payment."""
    event, booking = named_booking(call)
    provider = call.body.provider
    if provider != RECEIPT and provider not in call.house.providers:
        await visible_booking(call, event, booking)
        raise RefusedError(Refusal.UNKNOWN_PROVIDER, f"There is no payment provider {provider} here.")
    outcome = done(
        await call.house.desk.submit(
            Pay(
                event=event,
                org=call.by.org,
                booking=booking,
                payment=ids.new_id(),
                provider=provider,
                actor=call.by.actor,
                owner=call.by.user,
                request_key=hashlib.blake2b(request_key(call) + booking, digest_size=16).digest(),
                fingerprint=hashlib.blake2b(json.encode(call.body), digest_size=16).digest(),
                return_url=call.body.return_url,
            )
        )
    )
    payment = await _with_checkout(call, outcome)
    headers = ((b"idempotency-replayed", b"true"),) if outcome.replayed else ()
    return Answer(payment_view(event, booking, payment), 201, headers)


async def get_payment(call: Call) -> Answer:
    row = await _row(call)
    payment = json.decode(row["payment"], type=PaymentDocument).payment()
    return Answer(payment_view(row["event_id"], row["booking_id"], payment))


async def refund_payment(call: Call) -> Answer:
    row = await _row(call)
    outcome = done(
        await call.house.desk.submit(
            Resolve(
                event=row["event_id"],
                org=call.by.org,
                booking=row["booking_id"],
                payment=row["id"],
                remedy=Remedy.BY_HAND if call.body.by_hand else Remedy.REFUND,
                actor=call.by.actor,
                reason=call.body.reason,
            )
        )
    )
    assert outcome.payment is not None
    return Answer(payment_view(row["event_id"], row["booking_id"], outcome.payment))


async def receive_notice(call: Call) -> Answer:
    provider = call.path["id"]
    if provider not in call.house.providers:
        raise RefusedError(Refusal.NOT_FOUND)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
    try:
        stored = await call.house.inbox.receive(provider, headers, call.body)
    except NoticeError:
        raise RefusedError(Refusal.INVALID_SIGNATURE) from None
    return Answer(NoticeView(stored=stored))


async def _with_checkout(call: Call, outcome: Done) -> Payment:
    """The payment with the place where it is paid, if there is one and it is not known yet."""
    payment = outcome.payment
    assert payment is not None
    provider = call.house.providers.get(payment.provider)
    if provider is None or payment.provider_ref is not None or payment.status is not PaymentStatus.STARTED:
        return payment
    booking = outcome.booking
    id_ = ids.payment_text(booking.event, payment.id)
    ask = Ask(
        payment=id_,
        amount=payment.amount,
        currency=payment.currency,
        description=await call.house.pool.fetchval(sql.payments.event_title, booking.event),
        return_url=payment.return_url or f"{call.house.settings.public_url.rstrip('/')}/paid",
        email=booking.email,
        expires_at=booking.expires_at,
    )
    try:
        started = await provider.start(ask)
    except ProviderRefusedError as error:
        await call.house.desk.submit(_failed(booking, payment, call.by.actor))
        raise RefusedError(Refusal.PROVIDER_REFUSED, f"It says: {error}") from None
    except ProviderError:
        raise RefusedError(Refusal.PROVIDER_UNAVAILABLE) from None
    place = booking.event, payment.id
    if await call.house.pool.fetchval(sql.payments.set_started, *place, started.ref, started.checkout_url):
        return structs.replace(payment, provider_ref=started.ref, checkout_url=started.checkout_url)
    return await _overtaken(call, provider, outcome, started.ref)


async def _overtaken(call: Call, provider: Provider, outcome: Done, ref: str) -> Payment:
    """The payment has ended while the provider was asked: it was paid already, or its hold has run out, and then nobody
    may pay it any more."""
    assert outcome.payment is not None
    event, payment = outcome.booking.event, outcome.payment
    await call.house.pool.execute(sql.payments.set_reference, event, payment.id, ref)
    now = await call.house.pool.fetchrow(sql.payments.payment, event, payment.id)
    if now["status"] == PaymentStatus.FAILED:
        with suppress(ProviderError, ProviderRefusedError):
            await provider.close(ref)
        raise RefusedError(Refusal.HOLD_EXPIRED)
    return structs.replace(payment, provider_ref=ref, status=PaymentStatus(now["status"]))


def _failed(booking: Booking, payment: Payment, actor: str) -> Settle:
    return Settle(
        event=booking.event,
        org=booking.org,
        booking=booking.id,
        payment=payment.id,
        news=News.FAILED,
        actor=actor,
    )


async def _row(call: Call) -> Any:
    named = ids.parse_payment(call.path["id"])
    row = named and await call.house.pool.fetchrow(sql.payments.payment_view, *named, call.by.org, call.by.user)
    if not row:
        raise RefusedError(Refusal.NOT_FOUND)
    return row
