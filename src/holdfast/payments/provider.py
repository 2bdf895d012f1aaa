"""What a payment provider has to be able to do. No method is called inside a database transaction."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from holdfast.core.payment import PaymentResult


class ProviderError(Exception):
    """The provider could not be reached, or said that it cannot do this now. The same call may work later."""


class ProviderRefusedError(Exception):
    """The provider will not do this, however often it is asked: a person has to look at it."""


class NoticeError(Exception):
    """A notice that is not the provider's own, is too old, or cannot be read."""


class CheckoutRequest(Struct, frozen=True, kw_only=True):
    """What a buyer is to pay. `payment` is our own id of it, which the provider is to carry along."""

    payment: str
    amount: int
    currency: str
    description: str
    return_url: str
    email: str | None = None
    expires_at: datetime | None = None


class StartedCheckout(Struct, frozen=True):
    """How the provider calls the payment, and where the buyer pays, if there is such a place."""

    ref: str
    checkout_url: str | None


class ProviderStatus(Struct, frozen=True):
    """What the provider knows of a payment. No news: it is still open, the buyer may pay or not."""

    result: PaymentResult | None
    amount: int | None = None
    currency: str | None = None


class Notice(Struct, frozen=True, kw_only=True):
    """What a provider told us. `id` is its own id of this message. `payment` is our id, if the provider carried it.
    No news: it is about something else."""

    id: str
    result: PaymentResult | None
    ref: str | None = None
    payment: str | None = None
    amount: int | None = None
    currency: str | None = None


class Provider(Protocol):
    async def start(self, request: CheckoutRequest) -> StartedCheckout:
        """Let the buyer pay. Asked again for the same `payment`, it answers the same."""

    async def look_up(self, ref: str) -> ProviderStatus:
        """Where a payment stands."""

    async def close(self, ref: str) -> ProviderStatus:
        """Make sure that an open payment cannot be paid any more, and tell where it stands after that."""

    async def refund(self, ref: str, key: str) -> None:
        """Pay all of it back, once for each key. Returns when the provider has taken that on."""

    def verify(self, headers: Mapping[str, str], body: bytes) -> Notice:
        """The notice in this request, or `NoticeError`. Header names are in lower case."""
