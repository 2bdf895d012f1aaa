"""A payment provider that moves no money, for trying out everything a real one can do.

It has tables of its own. The rest of Holdfast uses it through the provider protocol and its signed notices, and never
reads those tables.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Final, Literal

import httpx
import structlog
from msgspec import Meta, Raw, Struct, json
from standardwebhooks import Webhook, WebhookVerificationError

from holdfast import sql
from holdfast.core.payment import PaymentResult
from holdfast.core.states import FastStrEnum
from holdfast.payments.provider import (
    CheckoutRequest,
    Notice,
    NoticeError,
    ProviderError,
    ProviderRefusedError,
    ProviderStatus,
    StartedCheckout,
)
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.db import Database, DatabaseScope
from holdfast.runtime.lease_queue import LeaseQueue

log = structlog.get_logger()

# Longer than sending takes.
LEASE_SECONDS: Final = 30.0
SEND_SECONDS: Final = 10.0
CLAIM_MAX: Final = 50
RETRIES: Final = Backoff((1, 2, 5, 10, 30, 60, 300, 1800, 3600))

SUCCEEDED: Final = "payment.succeeded"
FAILED: Final = "payment.failed"
_RESULTS: Final = {SUCCEEDED: PaymentResult.CAPTURED, FAILED: PaymentResult.FAILED}

_SIGNED_HEADERS: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")
# Dots separate the signed parts, so an id has none.
_NOTICE_ID: Final = re.compile(r"[A-Za-z0-9_:-]{1,200}")
# The library signs the text of the number it reads, so only the canonical form can match.
_UNIX_SECONDS: Final = re.compile(r"[1-9][0-9]{0,11}")

ProviderRef = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,200}$(?!\n)")]
Amount = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CurrencyCode = Annotated[str, Meta(pattern=r"^[A-Z]{3}$(?!\n)")]


class ChargeStatus(FastStrEnum):
    OPEN = "open"
    PAID = "paid"
    FAILED = "failed"
    CLOSED = "closed"
    SILENT = "silent"


class Action(FastStrEnum):
    """The buttons of the checkout page."""

    PAY = "pay"
    FAIL = "fail"
    PAY_LATE = "pay_late"
    PAY_TWICE = "pay_twice"
    NEVER_ANSWER = "never_answer"


class SandboxCharge(Struct, frozen=True, kw_only=True):
    """`late_at` is when a late payment will be captured."""

    ref: str
    payment: str
    amount: int
    currency: str
    description: str
    return_url: str | None
    status: ChargeStatus
    expires_at: datetime | None
    late_at: datetime | None

    @property
    def takes_payment(self) -> bool:
        return self.status is ChargeStatus.OPEN and self.late_at is None


class _Effect(Struct, frozen=True):
    """The status an action gives the charge, and the notices it sends."""

    status: ChargeStatus
    type: str = SUCCEEDED
    notices: tuple[str, ...] = ()


_EFFECTS: Final = {
    Action.PAY: _Effect(ChargeStatus.PAID, notices=("paid",)),
    Action.FAIL: _Effect(ChargeStatus.FAILED, FAILED, ("failed",)),
    # Until it is captured, the charge can be closed like any other open one.
    Action.PAY_LATE: _Effect(ChargeStatus.OPEN, notices=("late",)),
    Action.PAY_TWICE: _Effect(ChargeStatus.PAID, notices=("paid", "paid_again")),
    Action.NEVER_ANSWER: _Effect(ChargeStatus.SILENT),
}


class _Envelope(Struct, frozen=True):
    type: str
    data: Raw = Raw(b"{}")


class SandboxEventData(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`payment` is our own id of the payment."""

    provider_ref: ProviderRef
    amount: Amount
    currency: CurrencyCode
    payment: ProviderRef | None = None


class SandboxEvent(Struct, frozen=True, kw_only=True):
    """A webhook event of the sandbox. Other providers send their own format. Events of other types change nothing."""

    type: Literal["payment.succeeded", "payment.failed"]
    data: SandboxEventData


class _DueNotice(Struct, frozen=True, kw_only=True):
    """A claimed notice. `attempts` includes this one."""

    id: str
    type: str
    attempts: int
    ref: str
    payment: str
    amount: int
    currency: str

    def body(self) -> str:
        data = SandboxEventData(provider_ref=self.ref, amount=self.amount, currency=self.currency, payment=self.payment)
        return json.encode(_Envelope(self.type, Raw(json.encode(data)))).decode()


class Sandbox:
    """`secret`, `whsec_` and base64, signs its notices. Its pages and Holdfast's webhook are both at `public_url`."""

    def __init__(self, database: Database, secret: str, public_url: str) -> None:
        self._database = database
        self._webhook = Webhook(secret)
        self._public_url = public_url.rstrip("/")
        self._queue = LeaseQueue(
            name="sandbox_notices",
            row_type=_DueNotice,
            claim_statement=sql.sandbox.claim_notices,
            claim_max=CLAIM_MAX,
            lease_seconds=LEASE_SECONDS,
            label=lambda notice: notice.id,
        )

    async def start(self, request: CheckoutRequest) -> StartedCheckout:
        ref = f"sbx_{request.payment.rpartition('_')[2]}"
        await self._database.shared.execute(
            *sql.sandbox.insert_charge(
                ref=ref,
                payment=request.payment,
                amount=request.amount,
                currency=request.currency,
                description=request.description,
                return_url=request.return_url or None,
                expires_at=request.expires_at,
            )
        )
        return StartedCheckout(ref, f"{self._public_url}/sandbox/checkout/{ref}")

    async def look_up(self, ref: str) -> ProviderStatus:
        return _provider_status(await self._load_unless_silent(ref))

    async def close(self, ref: str) -> ProviderStatus:
        await self._database.shared.execute(sql.sandbox.set_status, ref, ChargeStatus.CLOSED)
        return _provider_status(await self._load_unless_silent(ref))

    async def refund(self, ref: str, key: str) -> None:
        """Refunds unpaid charges too: anybody with the secret can sign a notice that no buyer's action caused, and
        Holdfast has to be able to refund what it believes."""
        await self._load_unless_silent(ref)
        await self._database.shared.execute(sql.sandbox.insert_refund, ref, key)
        if await self._database.shared.fetchval(sql.sandbox.refund_of_key, key) != ref:
            raise ProviderRefusedError("The key was used for the refund of another payment.")

    async def find_payment(self, ref: str) -> str | None:
        """The sandbox sends no notices about refunds or disputes."""
        return None

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notice:
        # The library gets the same values that are read here, even if a request repeats a header.
        signed = {name: headers.get(name, "") for name in _SIGNED_HEADERS}
        id_, seconds, _ = signed.values()
        if not _NOTICE_ID.fullmatch(id_) or not _UNIX_SECONDS.fullmatch(seconds):
            raise NoticeError("The notice has no readable id or time.")
        try:
            self._webhook.verify(body, signed)
        except WebhookVerificationError as error:
            raise NoticeError(str(error)) from None
        except (ValueError, RecursionError):
            raise NoticeError("The signature or the body cannot be read.") from None
        return _read_notice(id_, body)

    async def aclose(self) -> None:
        """Every pass of `send_due` closes its own connections."""

    async def find(self, ref: str) -> SandboxCharge | None:
        return await self._database.shared.row(SandboxCharge, sql.sandbox.charge, ref)

    async def act(self, ref: str, action: Action, delay_seconds: int = 0) -> SandboxCharge:
        """Do what the buyer chose. A late payment is captured `delay_seconds` after the charge expires. Notices wait
        for `send_due`. Raises `ProviderRefusedError` if the charge takes no payment any more."""
        effect = _EFFECTS[action]
        async with self._database.shared.transaction() as scope:
            await scope.execute(sql.sandbox.lock_charge, ref)
            charge = await _load(scope, ref)
            if not charge.takes_payment:
                raise ProviderRefusedError(f"The charge is {charge.status} and takes no other payment.")
            await scope.execute(sql.sandbox.set_status, ref, effect.status)
            ids = [f"msg_{notice}_{ref}" for notice in effect.notices]
            delay = delay_seconds if action is Action.PAY_LATE else None
            await scope.execute(sql.sandbox.insert_notices, ref, ids, effect.type, delay)
            return await _load(scope, ref)

    async def send_due(self) -> int:
        """Send due notices, many at once, and retry later those that the receiver does not accept. Returns how many it
        accepted. A receiver gets a notice twice if the sender dies before it records the first time."""
        notices = await self._queue.claim(self._database.shared)
        if not notices:
            return 0
        async with httpx.AsyncClient(trust_env=False, timeout=SEND_SECONDS, verify=_tls_context()) as client:
            result = await self._queue.work_on(notices, lambda notice: self._deliver(client, notice))
        return sum(result.results)

    async def _deliver(self, client: httpx.AsyncClient, notice: _DueNotice) -> bool:
        is_accepted = await self._send(client, notice)
        if is_accepted:
            await self._database.shared.execute(sql.sandbox.finish_notice, notice.id)
        else:
            seconds = RETRIES.seconds_after(notice.attempts)
            await self._database.shared.execute(sql.sandbox.postpone_notice, notice.id, seconds)
        return is_accepted

    async def _send(self, client: httpx.AsyncClient, notice: _DueNotice) -> bool:
        body = notice.body()
        at = datetime.now(UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": notice.id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": self._webhook.sign(notice.id, at, body),
        }
        try:
            async with asyncio.timeout(SEND_SECONDS):
                url = f"{self._public_url}/v1/webhooks/sandbox"
                answer = await client.post(url, content=body.encode(), headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            log.warning("sandbox_notice_failed", notice=notice.id, attempt=notice.attempts, error=type(error).__name__)
            return False
        log.info("sandbox_notice_sent", notice=notice.id, attempt=notice.attempts, status=answer.status_code)
        return answer.is_success

    async def _load_unless_silent(self, ref: str) -> SandboxCharge:
        """The charge, unless the buyer chose that the gateway stops answering about it."""
        charge = await _load(self._database.shared, ref)
        if charge.status is ChargeStatus.SILENT:
            raise ProviderError("The gateway has stopped answering.")
        return charge


async def _load(scope: DatabaseScope, ref: str) -> SandboxCharge:
    charge = await scope.row(SandboxCharge, sql.sandbox.charge, ref)
    if charge is None:
        raise ProviderRefusedError("There is no such payment.")
    return charge


def _provider_status(charge: SandboxCharge) -> ProviderStatus:
    if charge.status is ChargeStatus.OPEN:
        return ProviderStatus(None)
    result = PaymentResult.CAPTURED if charge.status is ChargeStatus.PAID else PaymentResult.FAILED
    return ProviderStatus(result, charge.amount, charge.currency)


def _read_notice(id_: str, body: bytes) -> Notice:
    try:
        envelope = json.decode(body, type=_Envelope)
        if envelope.type not in _RESULTS:
            return Notice(id=id_, result=None)
        data = json.decode(envelope.data, type=SandboxEventData)
    except (ValueError, RecursionError):
        raise NoticeError("The body is not a notice of this gateway.") from None
    return Notice(
        id=id_,
        result=_RESULTS[envelope.type],
        ref=data.provider_ref,
        payment=data.payment,
        amount=data.amount,
        currency=data.currency,
    )


@cache
def _tls_context() -> ssl.SSLContext:
    """Made once, because loading all certificates takes longer than sending a notice."""
    return httpx.create_ssl_context(trust_env=False)
