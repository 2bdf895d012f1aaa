"""The payment providers that the settings configure. The sandbox lets anyone book without paying, so it is off
by default."""

from collections.abc import Mapping

from holdfast.payments.provider import Provider
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime.db import Database
from holdfast.runtime.extras import optional_import
from holdfast.runtime.settings import Settings


def make_providers(settings: Settings, database: Database) -> Mapping[str, Provider]:
    providers: dict[str, Provider] = {}
    if settings.sandbox_webhook_secret:
        providers["sandbox"] = Sandbox(database, settings.sandbox_webhook_secret, settings.public_url)
    if settings.stripe_key:
        providers["stripe"] = make_stripe(settings.stripe_key, settings)
    return providers


def make_stripe(key: str, settings: Settings) -> Provider:
    """Stripe's library is large, so only installations that use it import it."""
    with optional_import("stripe", extra="stripe"):
        from holdfast.payments.stripe import Stripe
    return Stripe(key, settings.stripe_webhook_secret, settings.stripe_api)
