"""Payments, and the webhooks of payment providers."""

import hashlib
from contextlib import suppress

from msgspec import json, structs

from holdfast import sql
from holdfast.api.booking_handlers import request_key, require_accepted, require_booking
from holdfast.api.call import ApiResponse, Call
from holdfast.api.requests import PaymentNew, PaymentRefund
from holdfast.api.responses import NoticeView, PaymentView, payment_view
from holdfast.core.booking import Booking
from holdfast.core.commands import Accepted, Remedy, ResolvePayment, SettlePayment, StartPayment
from holdfast.core.payment import RECEIPT, Payment, PaymentResult, PaymentStatus
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.payments.payment_rows import PaymentRow
from holdfast.payments.provider import CheckoutRequest, NoticeError, Provider, ProviderError, ProviderRefusedError
from holdfast.runtime import ids


async def start_payment(call: Call, body: PaymentNew) -> ApiResponse[PaymentView]:
    """Save the payment first, and then call the provider outside any transaction. A repeat with the same key, after a
    lost response, calls the provider again for the same payment."""
    event, booking = call.path_id(ids.parse_booking_id)
    if body.provider != RECEIPT and body.provider not in call.services.providers:
        await require_booking(call, event, booking)
        raise RefusedError(
            Refusal.UNKNOWN_PROVIDER, f"The payment provider `{body.provider}` is not set up here. Choose another one."
        )
    accepted = require_accepted(
        await call.services.engine.submit(
            StartPayment(
                event=event,
                org=call.caller.org,
                booking=booking,
                payment=ids.new_id(),
                provider=body.provider,
                actor=call.caller.actor,
                owner=call.caller.user,
                request_key=hashlib.blake2b(request_key(call) + booking, digest_size=16).digest(),
                fingerprint=hashlib.blake2b(json.encode(body), digest_size=16).digest(),
                return_url=body.return_url,
            )
        )
    )
    payment = await _start_checkout(call, accepted)
    headers = ((b"idempotency-replayed", b"true"),) if accepted.replayed else ()
    return ApiResponse(payment_view(event, booking, payment), 201, headers)


async def get_payment(call: Call) -> ApiResponse[PaymentView]:
    found = await _require_payment(call)
    return ApiResponse(payment_view(found.event, found.booking, found.payment))


async def refund_payment(call: Call, body: PaymentRefund) -> ApiResponse[PaymentView]:
    found = await _require_payment(call)
    accepted = require_accepted(
        await call.services.engine.submit(
            ResolvePayment(
                event=found.event,
                org=found.org,
                booking=found.booking,
                payment=found.payment.id,
                remedy=Remedy.BY_HAND if body.by_hand else Remedy.REFUND,
                actor=call.caller.actor,
                reason=body.reason,
            )
        )
    )
    assert accepted.payment is not None
    return ApiResponse(payment_view(found.event, found.booking, accepted.payment))


async def check_provider(call: Call) -> None:
    """Refuse a webhook event of an unknown provider before the server reads it."""
    if call.path["provider"] not in call.services.providers:
        raise RefusedError(Refusal.NOT_FOUND)


async def receive_notice(call: Call, body: bytes) -> ApiResponse[NoticeView]:
    provider = call.path["provider"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
    try:
        stored = await call.services.inbox.receive(provider, headers, body)
    except NoticeError:
        raise RefusedError(Refusal.INVALID_SIGNATURE) from None
    return ApiResponse(NoticeView(stored=stored))


async def _start_checkout(call: Call, accepted: Accepted) -> Payment:
    """The payment with the URL where the buyer pays, if its provider has one."""
    payment, booking = accepted.payment, accepted.booking
    assert payment is not None
    provider = call.services.providers.get(payment.provider)
    if provider is None or payment.provider_ref is not None or payment.status is not PaymentStatus.STARTED:
        return payment
    request = await _checkout_request(call, booking, payment)
    try:
        started = await provider.start(request)
    except ProviderRefusedError as error:
        await call.services.engine.submit(_fail_payment(booking, payment, call.caller.actor))
        raise RefusedError(
            Refusal.PROVIDER_REFUSED, f"The payment provider declined to start this payment: {error}"
        ) from None
    except ProviderError:
        raise RefusedError(Refusal.PROVIDER_UNAVAILABLE) from None
    is_saved = await call.services.database.event(booking.event).fetchval(
        sql.payments.set_started, booking.event, payment.id, started.ref, started.checkout_url
    )
    if is_saved:
        return structs.replace(payment, provider_ref=started.ref, checkout_url=started.checkout_url)
    return await _reconcile_ended(call, provider, accepted, started.ref)


async def _checkout_request(call: Call, booking: Booking, payment: Payment) -> CheckoutRequest:
    title = await call.services.database.event(booking.event).fetchval(sql.payments.event_title, booking.event)
    return CheckoutRequest(
        payment=ids.format_payment_id(booking.event, payment.id),
        amount=payment.amount,
        currency=payment.currency,
        description=title,
        return_url=payment.return_url or f"{call.services.settings.public_url.rstrip('/')}/paid",
        email=booking.email,
        expires_at=booking.expires_at,
    )


async def _reconcile_ended(call: Call, provider: Provider, accepted: Accepted, ref: str) -> Payment:
    """The payment ended while the provider was starting it. Either the buyer has paid, or the hold has expired and
    nobody may pay any more."""
    assert accepted.payment is not None
    event, payment = accepted.booking.event, accepted.payment
    scope = call.services.database.event(event)
    await scope.execute(sql.payments.set_reference, event, payment.id, ref)
    ended = await scope.row(PaymentRow, sql.payments.payment, event, payment.id)
    assert ended is not None
    if ended.payment.status is PaymentStatus.FAILED:
        with suppress(ProviderError, ProviderRefusedError):
            await provider.close(ref)
        raise RefusedError(Refusal.HOLD_EXPIRED)
    return ended.payment


def _fail_payment(booking: Booking, payment: Payment, actor: str) -> SettlePayment:
    return SettlePayment(
        event=booking.event,
        org=booking.org,
        booking=booking.id,
        payment=payment.id,
        result=PaymentResult.FAILED,
        actor=actor,
    )


async def _require_payment(call: Call) -> PaymentRow:
    event, payment = call.path_id(ids.parse_payment_id)
    row = await call.services.database.event(event).row(
        PaymentRow, sql.payments.payment_access, event, payment, call.caller.org, call.caller.user
    )
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return row
