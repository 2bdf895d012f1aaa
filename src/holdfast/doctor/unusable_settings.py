"""Settings with which Holdfast does not start. `holdfast serve` and `holdfast doctor` ask the same questions."""

from collections.abc import Callable, Iterator, Mapping
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from holdfast.notifications.bus import check_prefix
from holdfast.notifications.push_services import PushServices
from holdfast.notifications.sms_countries import SmsCountries
from holdfast.runtime.settings import Settings
from holdfast.runtime.tracing import check_tracing


class UnusableSetting(Struct, frozen=True):
    """The reason never quotes a secret."""

    name: str
    reason: str


def find_unusable_settings(settings: Settings) -> Iterator[UnusableSetting]:
    for name, check in _checks(settings).items():
        try:
            check()
        except (ValueError, EmptyWebhookSecretError) as error:
            yield UnusableSetting(name, str(error))


def _checks(settings: Settings) -> Mapping[str, Callable[[], object]]:
    """Each checks what it needs to, and imports what only its setting needs."""
    return {
        "HOLDFAST_PUBLIC_URL": lambda: check_public_url(settings.public_url),
        "HOLDFAST_TRACING": lambda: check_tracing(settings),
        "HOLDFAST_SMTP_URL": lambda: settings.smtp_url and _make_smtp(settings.smtp_url),
        "HOLDFAST_SMS_URL": lambda: settings.sms_url and _make_twilio(settings.sms_url),
        "HOLDFAST_SMS_COUNTRIES": lambda: SmsCountries(settings.sms_countries),
        "HOLDFAST_WEB_PUSH": lambda: settings.web_push and _import_push_channel(),
        "HOLDFAST_PUSH_SERVICES": lambda: PushServices(settings.push_services),
        "HOLDFAST_REDIS_URL": lambda: settings.redis_url and _parse_redis_url(settings.redis_url),
        "HOLDFAST_KAFKA_URL": lambda: settings.kafka_url and _parse_kafka_url(settings.kafka_url),
        "HOLDFAST_NATS_URL": lambda: settings.nats_url and _parse_nats_url(settings.nats_url),
        "HOLDFAST_BUS_PREFIX": lambda: check_prefix(settings.bus_prefix),
        "HOLDFAST_RECEIPTS_URL": lambda: settings.receipts_url and _open_storage(settings),
        "HOLDFAST_STRIPE_KEY": lambda: settings.stripe_key and _make_stripe(settings.stripe_key, settings),
        "HOLDFAST_SANDBOX_WEBHOOK_SECRET": lambda: (
            settings.sandbox_webhook_secret and Webhook(settings.sandbox_webhook_secret)
        ),
    }


def check_public_url(url: str) -> None:
    """Links, cookies and webhooks all start at the root of the host."""
    # Before `urlsplit`, which drops some of these.
    if any(char.isspace() or char == "\\" for char in url):
        raise ValueError("It must not contain spaces, line breaks or backslashes.")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError("It must start with https:// or http://, such as https://shop.example.com.")
    if not _has_valid_port(parts):
        raise ValueError("The port must be a number from 1 to 65535, such as https://shop.example.com:8443.")
    if parts.path not in ("", "/") or "?" in url or "#" in url or "@" in parts.netloc:
        raise ValueError("Holdfast needs a host of its own, without a path, @, ? or #: https://shop.example.com.")


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _make_smtp(url: str) -> object:
    from holdfast.notifications.smtp import Smtp

    return Smtp(url)


def _make_twilio(url: str) -> object:
    from holdfast.notifications.twilio import Twilio

    return Twilio(url)


def _open_storage(settings: Settings) -> object:
    from holdfast.runtime.storage import open_storage

    return open_storage(settings.receipts_url, settings.data_dir)


def _make_stripe(key: str, settings: Settings) -> object:
    from holdfast.payments.registry import make_stripe

    return make_stripe(key, settings)


def _import_push_channel() -> object:
    from holdfast.notifications import push_channel

    return push_channel


def _parse_redis_url(url: str) -> object:
    from holdfast.gate.redis_client import RedisUrl

    return RedisUrl.parse(url)


def _parse_kafka_url(url: str) -> object:
    from holdfast.notifications.kafka_bus import check_kafka

    return check_kafka(url)


def _parse_nats_url(url: str) -> object:
    from holdfast.notifications.nats_bus import check_nats

    return check_nats(url)
