"""The payment providers that the settings configure. With the sandbox everything is free, so it has no default."""

from collections.abc import Mapping

from holdfast.payments.provider import Provider
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime.db import Database
from holdfast.runtime.settings import Settings


def make_providers(settings: Settings, database: Database) -> Mapping[str, Provider]:
    providers: dict[str, Provider] = {}
    if settings.sandbox_webhook_secret:
        providers["sandbox"] = Sandbox(database, settings.sandbox_webhook_secret, settings.public_url.rstrip("/"))
    if settings.stripe_key:
        # The library is large, and optional.
        from holdfast.payments.stripe import Stripe

        providers["stripe"] = Stripe(settings.stripe_key, settings.stripe_webhook_secret, settings.stripe_api)
    return providers
