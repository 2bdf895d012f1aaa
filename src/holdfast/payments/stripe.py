"""Stripe: the buyer pays on Stripe's hosted Checkout page, so card data never reaches Holdfast.

See docs/decisions/0007-stripe-hosted-checkout.md.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import stripe
from msgspec import Raw, Struct, field

from holdfast.core.payment import PaymentResult
from holdfast.payments.provider import (
    CheckoutRequest,
    Notice,
    NoticeError,
    ProviderError,
    ProviderRefusedError,
    ProviderStatus,
    StartedCheckout,
)

if TYPE_CHECKING:
    from stripe.params import RefundCreateParams
    from stripe.params.checkout import SessionCreateParams

# At INFO the library logs Stripe's messages, which may name the buyer.
logging.getLogger("stripe").setLevel(logging.WARNING)

CALL_SECONDS: Final = 10.0
RETRIES_MAX: Final = 2
NOTICE_AGE_MAX_SECONDS: Final = 300
# Stripe accepts sessions of 30 minutes to 24 hours, counted from when it receives the call.
SESSION_MIN: Final = timedelta(minutes=31)
SESSION_MAX: Final = timedelta(hours=23, minutes=55)

# Stripe's amounts are ISO 4217 minor units, with three exceptions.
# These have two decimals at Stripe and none in ISO 4217.
_IN_HUNDREDTHS: Final = frozenset({"ISK", "UGX"})
# These have three decimals, and Stripe wants the last one to be zero.
_IN_TENS: Final = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
# This has no decimals at Stripe and two in ISO 4217. A mistake would be off by a factor of 100, so we refuse it.
_UNSUPPORTED: Final = frozenset({"MGA"})

_REFUSALS: Final = (stripe.InvalidRequestError, stripe.CardError, stripe.IdempotencyError)
# Worth a retry: the merchant's balance at Stripe fills up again, and the other call with the same key ends.
_TRANSIENT_CODES: Final = frozenset({"balance_insufficient", "idempotency_key_in_use"})
# The library raises AttributeError for error bodies that are not Stripe's, such as a proxy's.
_TRANSIENT_ERRORS: Final = (stripe.StripeError, TimeoutError, msgspec.ValidationError, AttributeError)

# How a dispute can end. A closed inquiry has taken no money.
_DISPUTE_RESULTS: Final = {
    "won": PaymentResult.DISPUTE_WON,
    "warning_closed": PaymentResult.DISPUTE_WON,
    "lost": PaymentResult.DISPUTE_LOST,
}

T = TypeVar("T")


class _Metadata(Struct, frozen=True):
    payment: str | None = None


class _StripeCharge(Struct, frozen=True, kw_only=True):
    currency: str
    refunded: bool = False
    amount_refunded: int = 0
    metadata: _Metadata | None = None


class _Intent(Struct, frozen=True, kw_only=True):
    id: str
    status: str
    amount: int
    currency: str
    amount_received: int | None = None
    latest_charge: str | _StripeCharge | None = None
    metadata: _Metadata | None = None

    @property
    def is_open(self) -> bool:
        return self.status.startswith("requires_")

    @property
    def refunded(self) -> bool:
        return isinstance(self.latest_charge, _StripeCharge) and self.latest_charge.refunded

    @property
    def provider_status(self) -> ProviderStatus:
        if self.status == "succeeded":
            received = self.amount if self.amount_received is None else self.amount_received
            return _status_if_refunded(self, received) or _captured_status(received, self.currency)
        return ProviderStatus(PaymentResult.FAILED if self.status == "canceled" else None)


class _CheckoutSession(Struct, frozen=True, kw_only=True):
    id: str
    payment_status: str
    status: str | None = None
    amount_total: int | None = None
    currency: str | None = None
    url: str | None = None
    payment_intent: str | _Intent | None = None
    metadata: _Metadata | None = None

    @property
    def is_open(self) -> bool:
        return self.status == "open"

    @property
    def is_free(self) -> bool:
        return self.status == "complete" and self.payment_status == "no_payment_required"

    @property
    def provider_status(self) -> ProviderStatus:
        if self.is_free:
            return _captured_status(0, self.currency)
        if self.payment_status == "paid":
            intent, total = self.payment_intent, self.amount_total
            refunded = _status_if_refunded(intent, total or 0) if isinstance(intent, _Intent) else None
            return refunded or _captured_status(total, self.currency)
        return ProviderStatus(PaymentResult.FAILED if self.status == "expired" or self._has_failed() else None)

    def _has_failed(self) -> bool:
        """Whether a payment that was processing when the buyer left has failed. The buyer cannot retry it. A pending
        transfer or voucher has another status, `requires_action`."""
        intent = self.payment_intent
        has_ended = isinstance(intent, _Intent) and intent.status in ("requires_payment_method", "canceled")
        return self.status == "complete" and has_ended


class _Refund(Struct, frozen=True, kw_only=True):
    id: str
    status: str | None = None
    amount: int
    currency: str
    payment_intent: str | _Intent | None = None
    metadata: _Metadata | None = None

    @property
    def has_failed(self) -> bool:
        return self.status in ("failed", "canceled")


class _Dispute(Struct, frozen=True, kw_only=True):
    id: str
    status: str
    payment_intent: str | _Intent | None = None


class _EventData(Struct, frozen=True):
    raw: Raw = field(name="object", default=Raw(b"{}"))


class _StripeEvent(Struct, frozen=True, kw_only=True):
    id: str
    type: str
    data: _EventData = _EventData()


class Stripe:
    """A `Provider`. No call takes longer than `call_seconds`, including the library's retries."""

    def __init__(
        self, key: str, webhook_secret: str | None, api: str | None, *, call_seconds: float = CALL_SECONDS
    ) -> None:
        self._webhook_secret = webhook_secret
        self._call_seconds = call_seconds
        self._http = stripe.HTTPXClient(timeout=call_seconds)
        self._stripe = stripe.StripeClient(
            key,
            base_addresses={"api": api.rstrip("/")} if api else {},
            http_client=self._http,
            max_network_retries=RETRIES_MAX,
        ).v1

    async def start(self, request: CheckoutRequest) -> StartedCheckout:
        params = _session_params(request)
        async with self._translate_errors():
            made = await self._stripe.checkout.sessions.create_async(
                params, {"idempotency_key": f"holdfast-{request.payment}"}
            )
            session = _convert_answer(made, _CheckoutSession)
        return StartedCheckout(session.id, session.url)

    async def look_up(self, ref: str) -> ProviderStatus:
        async with self._translate_errors():
            return (await self._retrieve(ref)).provider_status

    async def close(self, ref: str) -> ProviderStatus:
        async with self._translate_errors():
            try:
                return (await self._close(ref)).provider_status
            except stripe.InvalidRequestError:
                # Stripe refuses to close a session that is paid or closed already.
                found = await self._retrieve(ref)
                if found.is_open:
                    raise
                return found.provider_status

    async def refund(self, ref: str, key: str) -> None:
        async with self._translate_errors():
            intent = _refundable_intent(await self._retrieve(ref))
            if intent is not None and not intent.refunded:
                await self._create_refund(intent, key)

    async def find_payment(self, ref: str) -> str | None:
        async with self._translate_errors():
            intent = await self._stripe.payment_intents.retrieve_async(ref)
            return _payment_id(_convert_answer(intent, _Intent).metadata)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notice:
        self._check_signature(headers.get("stripe-signature", ""), body)
        try:
            return _read_event(msgspec.json.decode(body, type=_StripeEvent))
        except msgspec.DecodeError as error:
            raise NoticeError(type(error).__name__) from None

    async def aclose(self) -> None:
        await self._http.close_async()  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def _translate_errors(self) -> AsyncIterator[None]:
        """Sort Stripe's errors into those worth a retry and those not, and keep only their code, because their text may
        name the buyer. A rejected API key is worth a retry: it says nothing about the payment."""
        try:
            async with asyncio.timeout(self._call_seconds):
                yield
        except _REFUSALS as error:
            kind = ProviderError if error.code in _TRANSIENT_CODES else ProviderRefusedError
            raise kind(_error_code(error)) from None
        except _TRANSIENT_ERRORS as error:
            raise ProviderError(_error_code(error)) from None

    async def _retrieve(self, ref: str) -> _CheckoutSession | _Intent:
        if _is_intent(ref):
            intent = await self._stripe.payment_intents.retrieve_async(ref, {"expand": ["latest_charge"]})
            return _convert_answer(intent, _Intent)
        session = await self._stripe.checkout.sessions.retrieve_async(ref, {"expand": ["payment_intent.latest_charge"]})
        return _convert_answer(session, _CheckoutSession)

    async def _close(self, ref: str) -> _CheckoutSession | _Intent:
        if _is_intent(ref):
            return _convert_answer(await self._stripe.payment_intents.cancel_async(ref), _Intent)
        return _convert_answer(await self._stripe.checkout.sessions.expire_async(ref), _CheckoutSession)

    async def _create_refund(self, intent: _Intent, key: str) -> None:
        params: RefundCreateParams = {"payment_intent": intent.id}
        if payment := _payment_id(intent.metadata):
            params["metadata"] = {"payment": payment}
        try:
            made = await self._stripe.refunds.create_async(params, {"idempotency_key": key})
        except stripe.InvalidRequestError as error:
            if error.code != "charge_already_refunded":
                raise
        else:
            if _convert_answer(made, _Refund).has_failed:
                raise ProviderRefusedError("refund_failed")

    def _check_signature(self, header: str, body: bytes) -> None:
        if not self._webhook_secret:
            raise NoticeError("no webhook secret is configured")
        try:
            stripe.WebhookSignature.verify_header(body.decode(), header, self._webhook_secret, NOTICE_AGE_MAX_SECONDS)
        except (stripe.SignatureVerificationError, ValueError, TypeError) as error:
            raise NoticeError(type(error).__name__) from None


def _session_params(request: CheckoutRequest) -> "SessionCreateParams":
    params: SessionCreateParams = {
        "mode": "payment",
        "line_items": [
            {
                "quantity": 1,
                "price_data": {
                    "currency": request.currency.lower(),
                    "unit_amount": _to_stripe(request.amount, request.currency),
                    "product_data": {"name": request.description},
                },
            }
        ],
        "client_reference_id": request.payment,
        "metadata": {"payment": request.payment},
        "payment_intent_data": {"metadata": {"payment": request.payment}},
        "success_url": request.return_url,
        "cancel_url": request.return_url,
    }
    if request.email is not None:
        params["customer_email"] = request.email
    if request.expires_at is not None and (expires_at := _expires_at(request.expires_at)) is not None:
        params["expires_at"] = expires_at
    return params


def _expires_at(wanted: datetime) -> int | None:
    """Counted from the wanted time and not from now, because a retry with the same idempotency key must repeat every
    parameter. None if that is later than Stripe allows; Stripe's default of a day applies then."""
    expires_at = wanted + SESSION_MIN
    return None if expires_at > datetime.now(UTC) + SESSION_MAX else int(expires_at.timestamp())


def _to_stripe(amount: int, currency: str) -> int:
    if currency in _UNSUPPORTED or (currency in _IN_TENS and amount % 10):
        raise ProviderRefusedError("amount_not_supported")
    return amount * 100 if currency in _IN_HUNDREDTHS else amount


def _from_stripe(amount: int, currency: str) -> int:
    return amount // 100 if currency in _IN_HUNDREDTHS else amount


def _captured_status(amount: int | None, currency: str | None) -> ProviderStatus:
    if amount is None or currency is None:
        return ProviderStatus(PaymentResult.CAPTURED)
    return ProviderStatus(PaymentResult.CAPTURED, _from_stripe(amount, currency.upper()), currency.upper())


def _refundable_intent(found: _CheckoutSession | _Intent) -> _Intent | None:
    """None if the session cost nothing, so that there is nothing to refund."""
    intent = found.payment_intent if isinstance(found, _CheckoutSession) else found
    if isinstance(intent, _Intent):
        return intent
    if isinstance(found, _CheckoutSession) and found.is_free:
        return None
    raise ProviderRefusedError("not_paid")


def _read_event(event: _StripeEvent) -> Notice:
    match event.type:
        case "checkout.session.completed" | "checkout.session.async_payment_succeeded":
            session = _decode_object(event, _CheckoutSession)
            return _make_notice(event, session.provider_status, session.metadata, session.id)
        case "checkout.session.async_payment_failed" | "checkout.session.expired":
            session = _decode_object(event, _CheckoutSession)
            return _make_notice(event, ProviderStatus(PaymentResult.FAILED), session.metadata, session.id)
        case "payment_intent.succeeded":
            intent = _decode_object(event, _Intent)
            return _make_notice(event, intent.provider_status, intent.metadata)
        case "charge.refunded":
            charge = _decode_object(event, _StripeCharge)
            status = _refunded_status(charge.refunded, charge.amount_refunded, charge.currency)
            return _make_notice(event, status, charge.metadata)
        case "refund.updated" | "refund.failed" | "charge.refund.updated":
            refund = _decode_object(event, _Refund)
            if refund.has_failed:
                return _failed_refund_notice(event, refund)
            # Only refunds that Holdfast created carry a payment id, and those refund everything that is left.
            status = _refunded_status(refund.status == "succeeded", refund.amount, refund.currency)
            return _make_notice(event, status, refund.metadata)
        case "charge.dispute.created" | "charge.dispute.funds_withdrawn":
            return _dispute_notice(event, PaymentResult.DISPUTED)
        case "charge.dispute.closed":
            return _dispute_notice(event, _DISPUTE_RESULTS.get(_decode_object(event, _Dispute).status))
        case _:
            return Notice(id=event.id, result=None)


def _failed_refund_notice(event: _StripeEvent, refund: _Refund) -> Notice:
    """Stripe reports the failure in several events. They count as one notice, so that it does not come back once staff
    have dealt with it."""
    payment, intent = _payment_id(refund.metadata), _intent_id(refund.payment_intent)
    if payment is None and intent is None:
        return Notice(id=event.id, result=None)
    ref = intent if payment is None else None
    return Notice(id=f"{refund.id}:failed", result=PaymentResult.REFUND_FAILED, ref=ref, payment=payment)


def _dispute_notice(event: _StripeEvent, result: PaymentResult | None) -> Notice:
    """A dispute names only its intent. As with refunds, several events report the same."""
    dispute = _decode_object(event, _Dispute)
    intent = _intent_id(dispute.payment_intent)
    if intent is None or result is None:
        return Notice(id=event.id, result=None)
    return Notice(id=f"{dispute.id}:{result}", result=result, ref=intent)


def _intent_id(intent: str | _Intent | None) -> str | None:
    return intent.id if isinstance(intent, _Intent) else intent


def _status_if_refunded(intent: _Intent, amount: int) -> ProviderStatus | None:
    return _refunded_status(True, amount, intent.currency) if intent.refunded else None


def _refunded_status(done: bool, amount: int, currency: str) -> ProviderStatus:
    code = currency.upper()
    return ProviderStatus(PaymentResult.REFUNDED, _from_stripe(amount, code), code) if done else ProviderStatus(None)


def _make_notice(
    event: _StripeEvent, status: ProviderStatus, metadata: _Metadata | None, ref: str | None = None
) -> Notice:
    """An event without a payment id of ours has no result for us."""
    payment = _payment_id(metadata)
    if status.result is None or payment is None:
        return Notice(id=event.id, result=None)
    return Notice(
        id=event.id,
        result=status.result,
        ref=ref,
        payment=payment,
        amount=status.amount,
        currency=status.currency,
    )


def _payment_id(metadata: _Metadata | None) -> str | None:
    return metadata.payment if metadata else None


def _is_intent(ref: str) -> bool:
    return ref.startswith("pi_")


def _decode_object(event: _StripeEvent, kind: type[T]) -> T:
    return msgspec.json.decode(event.data.raw, type=kind)


def _convert_answer(answer: object, kind: type[T]) -> T:
    return msgspec.convert(answer, kind, from_attributes=True)


def _error_code(error: Exception) -> str:
    code = error.code if isinstance(error, stripe.StripeError) else None
    return code or type(error).__name__
