"""Whether Stripe accepts the key. The check reads the balance of the account, and changes nothing."""

from importlib.util import find_spec
from typing import Final

import httpx

from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime.extras import explain_install

API: Final = "https://api.stripe.com"
SECONDS: Final = 5.0


async def check_stripe(installation: Installation) -> Results:
    settings = installation.settings
    if settings.stripe_key is None:
        if settings.stripe_webhook_secret is not None:
            yield warning(
                "HOLDFAST_STRIPE_WEBHOOK_SECRET is set, but HOLDFAST_STRIPE_KEY is not, so nobody can pay with Stripe.",
                "Set HOLDFAST_STRIPE_KEY.",
            )
        return
    if find_spec("stripe") is None:
        yield problem("HOLDFAST_STRIPE_KEY needs a package.", explain_install("stripe"))
    if settings.stripe_webhook_secret is None:
        yield problem(
            "HOLDFAST_STRIPE_WEBHOOK_SECRET is not set, so Holdfast refuses Stripe's webhooks and learns of payments "
            "late.",
            "Copy the signing secret of the endpoint /v1/webhooks/stripe from Stripe's dashboard.",
        )
    try:
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            response = await client.get(
                f"{(settings.stripe_api or API).rstrip('/')}/v1/balance",
                headers={"Authorization": f"Bearer {settings.stripe_key}"},
            )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        yield problem(
            f"Stripe cannot be reached ({type(error).__name__}).",
            "Check that this machine may open connections to api.stripe.com.",
        )
        return
    if response.status_code == 401:
        yield problem("Stripe refuses the key.", "Copy the secret key from Stripe's dashboard to HOLDFAST_STRIPE_KEY.")
    elif response.status_code == 403:
        yield warning(
            "Stripe knows the key, but does not let it read the balance, so this check says nothing about its rights.",
            "If it is a restricted key, let it write Checkout sessions, payment intents and refunds.",
        )
    elif response.is_success:
        yield ok("Stripe accepts the key.")
    else:
        yield problem(f"Stripe answers with {response.status_code}.", "Try again, and look at status.stripe.com.")
