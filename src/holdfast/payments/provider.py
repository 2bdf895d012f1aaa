"""The protocol of a payment provider. Holdfast never calls a provider inside a database transaction."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from holdfast.core.payment import PaymentResult


class ProviderError(Exception):
    """The provider is unreachable or cannot do this now. A retry may succeed."""


class ProviderRefusedError(Exception):
    """The provider refuses, and a retry will not change that. The text names no buyer."""


class NoticeError(Exception):
    """A notice that the provider did not sign, that is too old, or that cannot be read."""


class CheckoutRequest(Struct, frozen=True, kw_only=True):
    """What a buyer has to pay. `payment` is our own id, which the provider stores with its payment."""

    payment: str
    amount: int
    currency: str
    description: str
    return_url: str
    email: str | None = None
    expires_at: datetime | None = None


class StartedCheckout(Struct, frozen=True):
    """The provider's reference for the payment, and the page where the buyer pays, if there is one."""

    ref: str
    checkout_url: str | None


class ProviderStatus(Struct, frozen=True):
    """What the provider knows about a payment. Without a result it is still open."""

    result: PaymentResult | None
    amount: int | None = None
    currency: str | None = None


class Notice(Struct, frozen=True, kw_only=True):
    """A webhook event of a provider. `id` is the provider's id for the event, or for what happened if several events
    report the same. `ref` is the provider's reference, and `payment` our payment id if the provider stored it. An event
    without a result is about something else."""

    id: str
    result: PaymentResult | None
    ref: str | None = None
    payment: str | None = None
    amount: int | None = None
    currency: str | None = None


class Provider(Protocol):
    async def start(self, request: CheckoutRequest) -> StartedCheckout:
        """Start a checkout. Idempotent: a retry with the same `payment` returns the same checkout."""

    async def look_up(self, ref: str) -> ProviderStatus:
        """Return the current status."""

    async def close(self, ref: str) -> ProviderStatus:
        """Close an open payment, so that nobody can pay it any more, and return its status."""

    async def refund(self, ref: str, key: str) -> None:
        """Refund the full amount, once for each key. Returns when the provider has accepted the refund."""

    async def find_payment(self, ref: str) -> str | None:
        """Return our id of the payment that the `ref` of a refund or dispute belongs to, or None if it is not ours."""

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notice:
        """Return the notice in this request, or raise `NoticeError`. Header names are in lower case."""

    async def aclose(self) -> None:
        """Close the connections to the provider. The process stops."""


def find_provider(providers: Mapping[str, Provider], name: str) -> Provider:
    """Raises `ProviderError` for a provider that the settings no longer configure: they may configure it again."""
    provider = providers.get(name)
    if provider is None:
        raise ProviderError("not configured in this worker")
    return provider
