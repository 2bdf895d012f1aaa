"""Stripe: the buyer pays on a page of Stripe's own, and no card number comes near us.

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

# The library logs Stripe's messages, which may name the buyer, as information.
logging.getLogger("stripe").setLevel(logging.WARNING)

CALL_SECONDS: Final = 10.0
RETRIES_MAX: Final = 2
NOTICE_AGE_MAX_SECONDS: Final = 300
# Stripe lets a session live for 30 minutes at least and for a day at most, counted from when it gets the call.
SESSION_LEAST: Final = timedelta(minutes=31)
SESSION_MOST: Final = timedelta(hours=23, minutes=55)

# Stripe's amounts are ISO's minor units, but for a few. Whole króna and shillings are told in hundredths,
_IN_HUNDREDTHS: Final = frozenset({"ISK", "UGX"})
# thousandths have to end in a zero,
_IN_TENS: Final = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
# and ariary are told whole, while ISO has hundredths of them: too easy to be wrong by a hundredfold.
_UNCLEAR: Final = frozenset({"MGA"})

_REFUSALS: Final = (stripe.InvalidRequestError, stripe.CardError, stripe.IdempotencyError)
# Refusals that pass: the merchant's balance at Stripe fills up again, and another call under the same key ends.
_PASSING_CODES: Final = frozenset({"balance_insufficient", "idempotency_key_in_use"})
# The library stumbles with an AttributeError over errors in another form than Stripe's, such as those of a proxy.
_TROUBLES: Final = (stripe.StripeError, TimeoutError, msgspec.ValidationError, AttributeError)

T = TypeVar("T")


class _Tags(Struct, frozen=True):
    payment: str | None = None


class _StripeCharge(Struct, frozen=True, kw_only=True):
    currency: str
    refunded: bool = False
    amount_refunded: int = 0
    metadata: _Tags | None = None


class _Intent(Struct, frozen=True, kw_only=True):
    id: str
    status: str
    amount: int
    currency: str
    amount_received: int | None = None
    latest_charge: str | _StripeCharge | None = None
    metadata: _Tags | None = None

    @property
    def open(self) -> bool:
        return self.status.startswith("requires_")

    @property
    def refunded(self) -> bool:
        return isinstance(self.latest_charge, _StripeCharge) and self.latest_charge.refunded

    @property
    def standing(self) -> ProviderStatus:
        if self.status == "succeeded":
            received = self.amount if self.amount_received is None else self.amount_received
            return _went_back(self, received) or _captured(received, self.currency)
        return ProviderStatus(PaymentResult.FAILED if self.status == "canceled" else None)


class _Session(Struct, frozen=True, kw_only=True):
    id: str
    payment_status: str
    status: str | None = None
    amount_total: int | None = None
    currency: str | None = None
    url: str | None = None
    payment_intent: str | _Intent | None = None
    metadata: _Tags | None = None

    @property
    def open(self) -> bool:
        return self.status == "open"

    @property
    def free(self) -> bool:
        return self.status == "complete" and self.payment_status == "no_payment_required"

    @property
    def standing(self) -> ProviderStatus:
        if self.free:
            return _captured(0, self.currency)
        if self.payment_status == "paid":
            intent, total = self.payment_intent, self.amount_total
            back = _went_back(intent, total or 0) if isinstance(intent, _Intent) else None
            return back or _captured(total, self.currency)
        return ProviderStatus(PaymentResult.FAILED if self.status == "expired" or self._fell_through() else None)

    def _fell_through(self) -> bool:
        """Whether a payment that was under way when the buyer left came to nothing. Nobody can pay it a second time.
        A transfer or voucher that is still awaited `requires_action`."""
        intent = self.payment_intent
        over = isinstance(intent, _Intent) and intent.status in ("requires_payment_method", "canceled")
        return self.status == "complete" and over


class _Refund(Struct, frozen=True, kw_only=True):
    status: str | None = None
    amount: int
    currency: str
    metadata: _Tags | None = None


class _Subject(Struct, frozen=True):
    raw: Raw = field(name="object", default=Raw(b"{}"))


class _StripeEvent(Struct, frozen=True, kw_only=True):
    id: str
    type: str
    data: _Subject = _Subject()


class Stripe:
    """A `Provider`. No call takes longer than `call_seconds`, the library's retries included."""

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

    async def aclose(self) -> None:
        """Gives the connections back."""
        await self._http.close_async()  # type: ignore[no-untyped-call]

    async def start(self, request: CheckoutRequest) -> StartedCheckout:
        params = _session_params(request)
        async with self._asking():
            made = await self._stripe.checkout.sessions.create_async(
                params, {"idempotency_key": f"holdfast-{request.payment}"}
            )
            session = _read(made, _Session)
        return StartedCheckout(session.id, session.url)

    async def look_up(self, ref: str) -> ProviderStatus:
        async with self._asking():
            return (await self._find(ref)).standing

    async def close(self, ref: str) -> ProviderStatus:
        async with self._asking():
            try:
                return (await self._shut(ref)).standing
            except stripe.InvalidRequestError:
                # What is paid, or was closed before, cannot be closed.
                found = await self._find(ref)
                if found.open:
                    raise
                return found.standing

    async def refund(self, ref: str, key: str) -> None:
        async with self._asking():
            intent = _intent_of(await self._find(ref))
            if intent is not None and not intent.refunded:
                await self._pay_back(intent, key)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notice:
        self._check_signature(headers.get("stripe-signature", ""), body)
        try:
            return _notice(msgspec.json.decode(body, type=_StripeEvent))
        except msgspec.DecodeError as error:
            raise NoticeError(type(error).__name__) from None

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Tells what is worth another try from what is not. Of an error only its code goes on: its text may name the
        buyer. A key that Stripe does not take is worth another try, because it is no fault of the payment."""
        try:
            async with asyncio.timeout(self._call_seconds):
                yield
        except _REFUSALS as error:
            kind = ProviderError if error.code in _PASSING_CODES else ProviderRefusedError
            raise kind(_name(error)) from None
        except _TROUBLES as error:
            raise ProviderError(_name(error)) from None

    async def _find(self, ref: str) -> _Session | _Intent:
        if _is_intent(ref):
            intent = await self._stripe.payment_intents.retrieve_async(ref, {"expand": ["latest_charge"]})
            return _read(intent, _Intent)
        session = await self._stripe.checkout.sessions.retrieve_async(ref, {"expand": ["payment_intent.latest_charge"]})
        return _read(session, _Session)

    async def _shut(self, ref: str) -> _Session | _Intent:
        if _is_intent(ref):
            return _read(await self._stripe.payment_intents.cancel_async(ref), _Intent)
        return _read(await self._stripe.checkout.sessions.expire_async(ref), _Session)

    async def _pay_back(self, intent: _Intent, key: str) -> None:
        params: RefundCreateParams = {"payment_intent": intent.id}
        if payment := _payment(intent.metadata):
            params["metadata"] = {"payment": payment}
        try:
            made = await self._stripe.refunds.create_async(params, {"idempotency_key": key})
        except stripe.InvalidRequestError as error:
            if error.code != "charge_already_refunded":
                raise
        else:
            if _read(made, _Refund).status in ("failed", "canceled"):
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
    """Counted from what was asked for and not from now: Stripe knows a repeated call by its key only if all of it is
    repeated. None: later than Stripe allows, which then takes a day."""
    late_enough = wanted + SESSION_LEAST
    return None if late_enough > datetime.now(UTC) + SESSION_MOST else int(late_enough.timestamp())


def _to_stripe(amount: int, currency: str) -> int:
    if currency in _UNCLEAR or (currency in _IN_TENS and amount % 10):
        raise ProviderRefusedError("amount_not_supported")
    return amount * 100 if currency in _IN_HUNDREDTHS else amount


def _from_stripe(amount: int, currency: str) -> int:
    return amount // 100 if currency in _IN_HUNDREDTHS else amount


def _captured(amount: int | None, currency: str | None) -> ProviderStatus:
    if amount is None or currency is None:
        return ProviderStatus(PaymentResult.CAPTURED)
    return ProviderStatus(PaymentResult.CAPTURED, _from_stripe(amount, currency.upper()), currency.upper())


def _intent_of(found: _Session | _Intent) -> _Intent | None:
    """What is to be paid back. None: there was nothing to pay."""
    intent = found.payment_intent if isinstance(found, _Session) else found
    if isinstance(intent, _Intent):
        return intent
    if isinstance(found, _Session) and found.free:
        return None
    raise ProviderRefusedError("not_paid")


def _notice(event: _StripeEvent) -> Notice:
    match event.type:
        case "checkout.session.completed" | "checkout.session.async_payment_succeeded":
            session = _subject(event, _Session)
            return _told(event, session.standing, session.metadata, session.id)
        case "checkout.session.async_payment_failed" | "checkout.session.expired":
            session = _subject(event, _Session)
            return _told(event, ProviderStatus(PaymentResult.FAILED), session.metadata, session.id)
        case "payment_intent.succeeded":
            intent = _subject(event, _Intent)
            return _told(event, intent.standing, intent.metadata)
        case "charge.refunded":
            charge = _subject(event, _StripeCharge)
            return _told(event, _refunded(charge.refunded, charge.amount_refunded, charge.currency), charge.metadata)
        case "refund.updated":
            # Only our own refunds carry our payment, and they always are of all that is left.
            refund = _subject(event, _Refund)
            return _told(
                event, _refunded(refund.status == "succeeded", refund.amount, refund.currency), refund.metadata
            )
        case _:
            return Notice(id=event.id, result=None)


def _went_back(intent: _Intent, amount: int) -> ProviderStatus | None:
    return _refunded(True, amount, intent.currency) if intent.refunded else None


def _refunded(done: bool, amount: int, currency: str) -> ProviderStatus:
    code = currency.upper()
    return ProviderStatus(PaymentResult.REFUNDED, _from_stripe(amount, code), code) if done else ProviderStatus(None)


def _told(event: _StripeEvent, standing: ProviderStatus, tags: _Tags | None, ref: str | None = None) -> Notice:
    """What can be tied to none of our payments is no news."""
    payment = _payment(tags)
    if standing.result is None or payment is None:
        return Notice(id=event.id, result=None)
    return Notice(
        id=event.id,
        result=standing.result,
        ref=ref,
        payment=payment,
        amount=standing.amount,
        currency=standing.currency,
    )


def _payment(tags: _Tags | None) -> str | None:
    return tags.payment if tags else None


def _is_intent(ref: str) -> bool:
    return ref.startswith("pi_")


def _subject(event: _StripeEvent, kind: type[T]) -> T:
    return msgspec.json.decode(event.data.raw, type=kind)


def _read(answer: object, kind: type[T]) -> T:
    return msgspec.convert(answer, kind, from_attributes=True)


def _name(error: Exception) -> str:
    code = error.code if isinstance(error, stripe.StripeError) else None
    return code or type(error).__name__
