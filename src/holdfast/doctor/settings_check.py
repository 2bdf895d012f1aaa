"""Settings that Holdfast cannot use, and variables that it does not know."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

from holdfast.doctor.check import CheckResult, Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.doctor.unusable_settings import find_unusable_settings
from holdfast.runtime.settings import PREFIX, Settings

# 1 would find only exact matches.
_SIMILARITY: Final = 0.8
# Their own checks report them.
HAVE_OWN_CHECK: Final = frozenset(
    f"{PREFIX}{name}" for name in ("SMTP_URL", "SMS_URL", "REDIS_URL", "RECEIPTS_URL", "STRIPE_KEY")
)
_KNOWN: Final = tuple(PREFIX + name.upper() for name in Settings.__struct_fields__)


async def check_settings(installation: Installation) -> Results:
    found = [
        *(problem(str(error), "Correct the value. docs/settings.md describes it.") for error in installation.invalid),
        *_find_unknown(installation.environment),
        *_find_bad_values(installation.settings),
    ]
    for result in found:
        yield result
    if not found:
        yield ok("All settings are valid, and Holdfast knows all variables that start with HOLDFAST_.")


def _find_unknown(names: Iterable[str]) -> list[CheckResult]:
    """Holdfast ignores a variable that it does not know, so a typo leaves the default in place."""
    found = []
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1, _SIMILARITY)
            found.append(
                problem(f"Holdfast has no setting {name}, and ignores it.", f"Did you mean {near[0]}? Rename it.")
                if near
                else warning(f"Holdfast has no setting {name}, and ignores it.", "Remove it. docs/settings.md has all.")
            )
    return found


def _find_bad_values(settings: Settings) -> list[CheckResult]:
    found = []
    if not _is_http_url(settings.telegram_api):
        found.append(problem("HOLDFAST_TELEGRAM_API is not a URL.", "Write it as https://api.telegram.org."))
    webhook = settings.telegram_webhook_url
    if webhook is not None and not webhook.startswith("https://"):
        found.append(
            problem(
                "HOLDFAST_TELEGRAM_WEBHOOK_URL does not start with https://, and Telegram accepts no other webhooks.",
                "Put a proxy with a certificate in front of `holdfast bot`, or remove the setting to poll.",
            )
        )
    found += [
        problem(
            f"Holdfast cannot use {setting.name}, so it does not start. {setting.reason}",
            "Correct the value. docs/settings.md describes it.",
        )
        for setting in find_unusable_settings(settings)
        if setting.name not in HAVE_OWN_CHECK
    ]
    return found


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
