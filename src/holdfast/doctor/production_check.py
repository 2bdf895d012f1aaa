"""Settings that are fine on a laptop and dangerous where people buy."""

from holdfast.doctor.check import CheckResult, Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.doctor.unusable_settings import check_public_url
from holdfast.runtime.settings import Settings


async def check_production(installation: Installation) -> Results:
    """An installation with a public URL is in production. One with a PostgreSQL of its own might be soon."""
    is_public = installation.is_public
    if not is_public and not installation.has_own_database:
        yield ok("The public URL is this machine, and the database is the embedded one: fine for trying Holdfast out.")
        return
    found = [*_find_test_settings(installation.settings, is_public), *_find_bad_combinations(installation)]
    for result in found:
        yield result
    if not found and _is_usable(installation.settings.public_url):
        yield ok(f"The settings are fit for production at {installation.settings.public_url}.")


def _is_usable(public_url: str) -> bool:
    """If not, the check of the settings reports it."""
    try:
        check_public_url(public_url)
    except ValueError:
        return False
    return True


def _find_test_settings(settings: Settings, is_public: bool) -> list[CheckResult]:
    """Dangerous as soon as strangers can reach the installation."""
    dangerous = problem if is_public else warning
    found = []
    if settings.sandbox_webhook_secret is not None:
        found.append(
            dangerous(
                "The payment provider `sandbox` is on, so anyone can book without paying.",
                "Remove HOLDFAST_SANDBOX_WEBHOOK_SECRET.",
            )
        )
    if settings.demo:
        found.append(
            dangerous("Demo mode is on, so anyone can start a stampede of simulated buyers.", "Remove HOLDFAST_DEMO.")
        )
    if settings.allow_unsafe_database:
        found.append(
            dangerous(
                "HOLDFAST_ALLOW_UNSAFE_DATABASE is on, so Holdfast sells on a PostgreSQL that may lose bookings.",
                "Remove it. Holdfast then refuses to start on such a server.",
            )
        )
    if settings.stripe_api is not None:
        found.append(
            dangerous(
                "HOLDFAST_STRIPE_API replaces Stripe's own API with another server.", "Remove it: it is for tests."
            )
        )
    if is_public and (settings.stripe_key or "").startswith(("sk_test_", "rk_test_")):
        found.append(
            warning(
                "HOLDFAST_STRIPE_KEY is a test key, so Stripe takes no money.",
                "Use the live key of your account: sk_live_….",
            )
        )
    return found


def _find_bad_combinations(installation: Installation) -> list[CheckResult]:
    settings, found = installation.settings, list[CheckResult]()
    if not installation.is_public:
        found.append(
            warning(
                f"The public URL is {settings.public_url}, which only this machine can open. Links in emails and the "
                "way back from a payment lead there.",
                "Set HOLDFAST_PUBLIC_URL to the URL that buyers open.",
            )
        )
    elif settings.public_url.startswith("http://"):
        found.append(
            warning(
                "The public URL is not encrypted, so anyone on the network can read sessions and contact details.",
                "Put a proxy with a certificate in front of Holdfast, and set HOLDFAST_PUBLIC_URL to https://….",
            )
        )
    elif settings.proxies == 0 and _is_usable(settings.public_url):
        found.append(
            warning(
                "The public URL is encrypted, so a proxy is in front of Holdfast, but HOLDFAST_PROXIES is 0. All "
                "buyers then share the limits of one address.",
                "Set HOLDFAST_PROXIES to the number of your proxies.",
            )
        )
    if settings.metrics_token is None and (installation.is_public or settings.proxies > 0):
        found.append(
            warning(
                "/metrics needs no token, so anyone who reaches it through your proxy can see what you sell.",
                "Set HOLDFAST_METRICS_TOKEN, even if your proxy blocks /metrics.",
            )
        )
    if settings.webhooks_to_private_addresses:
        found.append(
            warning(
                "Webhooks may go to private addresses, so a tenant can make Holdfast call servers in your network.",
                "Remove HOLDFAST_WEBHOOKS_TO_PRIVATE_ADDRESSES unless you trust all your tenants.",
            )
        )
    return found
