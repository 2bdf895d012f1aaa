"""Payments: begun, looked at, paid back; and what providers tell about them."""

import hashlib
from contextlib import suppress
from typing import Any

from msgspec import json, structs

from holdfast import sql
from holdfast.api.booking_handlers import done, named_booking, request_key, visible_booking
from holdfast.api.call import ApiResponse, Call
from holdfast.api.responses import NoticeView, payment_view
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, Remedy, ResolvePayment, SettlePayment, StartPayment
from holdfast.core.payment import RECEIPT, Payment, PaymentResult, PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.payments.provider import CheckoutRequest, NoticeError, Provider, ProviderError, ProviderRefusedError
from holdfast.runtime import ids


async def start_payment(call: Call) -> ApiResponse:
    """The payment is written first, and then the provider is asked, outside of any transaction. Who asks again with the
    same key, because an answer was lost on the way, has the provider asked again for the same payment."""
    event, booking = named_booking(call)
    provider = call.body.provider
    if provider != RECEIPT and provider not in call.services.providers:
        await visible_booking(call, event, booking)
        raise RefusedError(Refusal.UNKNOWN_PROVIDER, f"There is no payment provider {provider} here.")
    outcome = done(
        await call.services.engine.submit(
            StartPayment(
                event=event,
                org=call.caller.org,
                booking=booking,
                payment=ids.new_id(),
                provider=provider,
                actor=call.caller.actor,
                owner=call.caller.user,
                request_key=hashlib.blake2b(request_key(call) + booking, digest_size=16).digest(),
                fingerprint=hashlib.blake2b(json.encode(call.body), digest_size=16).digest(),
                return_url=call.body.return_url,
            )
        )
    )
    payment = await _with_checkout(call, outcome)
    headers = ((b"idempotency-replayed", b"true"),) if outcome.replayed else ()
    return ApiResponse(payment_view(event, booking, payment), 201, headers)


async def get_payment(call: Call) -> ApiResponse:
    row = await _row(call)
    payment = json.decode(row["payment"], type=Payment)
    return ApiResponse(payment_view(row["event_id"], row["booking_id"], payment))


async def refund_payment(call: Call) -> ApiResponse:
    row = await _row(call)
    outcome = done(
        await call.services.engine.submit(
            ResolvePayment(
                event=row["event_id"],
                org=call.caller.org,
                booking=row["booking_id"],
                payment=row["id"],
                remedy=Remedy.BY_HAND if call.body.by_hand else Remedy.REFUND,
                actor=call.caller.actor,
                reason=call.body.reason,
            )
        )
    )
    assert outcome.payment is not None
    return ApiResponse(payment_view(row["event_id"], row["booking_id"], outcome.payment))


async def receive_notice(call: Call) -> ApiResponse:
    provider = call.path["id"]
    if provider not in call.services.providers:
        raise RefusedError(Refusal.NOT_FOUND)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
    try:
        stored = await call.services.inbox.receive(provider, headers, call.body)
    except NoticeError:
        raise RefusedError(Refusal.INVALID_SIGNATURE) from None
    return ApiResponse(NoticeView(stored=stored))


async def _with_checkout(call: Call, outcome: Accepted) -> Payment:
    """The payment with the place where it is paid, if there is one and it is not known yet."""
    payment = outcome.payment
    assert payment is not None
    provider = call.services.providers.get(payment.provider)
    if provider is None or payment.provider_ref is not None or payment.status is not PaymentStatus.STARTED:
        return payment
    booking = outcome.booking
    id_ = ids.format_payment_id(booking.event, payment.id)
    page = CheckoutRequest(
        payment=id_,
        amount=payment.amount,
        currency=payment.currency,
        description=await call.services.pool.fetchval(sql.payments.event_title, booking.event),
        return_url=payment.return_url or f"{call.services.settings.public_url.rstrip('/')}/paid",
        email=booking.email,
        expires_at=booking.expires_at,
    )
    try:
        started = await provider.start(page)
    except ProviderRefusedError as error:
        await call.services.engine.submit(_failed(booking, payment, call.caller.actor))
        raise RefusedError(Refusal.PROVIDER_REFUSED, f"It says: {error}") from None
    except ProviderError:
        raise RefusedError(Refusal.PROVIDER_UNAVAILABLE) from None
    place = booking.event, payment.id
    if await call.services.pool.fetchval(sql.payments.set_started, *place, started.ref, started.checkout_url):
        return structs.replace(payment, provider_ref=started.ref, checkout_url=started.checkout_url)
    return await _overtaken(call, provider, outcome, started.ref)


async def _overtaken(call: Call, provider: Provider, outcome: Accepted, ref: str) -> Payment:
    """The payment has ended while the provider was asked: it was paid already, or its hold has run out, and then nobody
    may pay it any more."""
    assert outcome.payment is not None
    event, payment = outcome.booking.event, outcome.payment
    await call.services.pool.execute(sql.payments.set_reference, event, payment.id, ref)
    now = await call.services.pool.fetchrow(sql.payments.payment, event, payment.id)
    if now["status"] == PaymentStatus.FAILED:
        with suppress(ProviderError, ProviderRefusedError):
            await provider.close(ref)
        raise RefusedError(Refusal.HOLD_EXPIRED)
    return structs.replace(payment, provider_ref=ref, status=PaymentStatus(now["status"]))


def _failed(booking: Booking, payment: Payment, actor: str) -> SettlePayment:
    return SettlePayment(
        event=booking.event,
        org=booking.org,
        booking=booking.id,
        payment=payment.id,
        result=PaymentResult.FAILED,
        actor=actor,
    )


async def _row(call: Call) -> Any:
    named = ids.parse_payment_id(call.path["id"])
    row = named and await call.services.pool.fetchrow(
        sql.payments.payment_view, *named, call.caller.org, call.caller.user
    )
    if not row:
        raise RefusedError(Refusal.NOT_FOUND)
    return row
