"""Settings from environment variables named HOLDFAST_…, with defaults that work on one machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, get_args, get_type_hints

from msgspec import Meta, Struct, ValidationError, convert

from holdfast.core.quotas import Quotas
from holdfast.core.states import FastStrEnum

PREFIX: Final = "HOLDFAST_"


_IN_WORDS: Final = {"bool": "true or false", "int": "a whole number", "float": "a number"}


class SettingError(ValueError):
    """A setting has an invalid value. The message names the setting."""


class LogFormat(FastStrEnum):
    JSON = "json"
    CONSOLE = "console"


class Settings(Struct, frozen=True, kw_only=True):
    """The field `lanes` is the variable HOLDFAST_LANES, and so on. `docs/settings.md` describes every setting."""

    database_url: str | None = None
    migration_database_url: str | None = None
    redis_url: str | None = None
    allow_unsafe_database: bool = False
    data_dir: Path = Path(".holdfast")
    proxies: Annotated[int, Meta(ge=0, le=10)] = 0
    rate_per_key: Annotated[float, Meta(gt=0)] = 50_000
    rate_per_user: Annotated[float, Meta(gt=0)] = 200
    rate_per_address: Annotated[float, Meta(gt=0)] = 2_000
    events_per_org: Annotated[int, Meta(ge=1)] = 10_000
    seats_per_org: Annotated[int, Meta(ge=0)] = 2_000_000
    lanes: Annotated[int, Meta(ge=1, le=100)] = 4
    connections_per_address: Annotated[int, Meta(ge=0)] = 1_000
    idle_seconds: Annotated[float, Meta(gt=0)] = 65
    live_sockets: Annotated[int, Meta(ge=0)] = 10_000
    live_sockets_per_address: Annotated[int, Meta(ge=1)] = 1_000
    # Pages reconnect after 45 seconds of silence.
    live_beat_seconds: Annotated[float, Meta(gt=0, le=30)] = 15
    public_url: str = "http://127.0.0.1:8000"
    sandbox_webhook_secret: str | None = None
    stripe_key: str | None = None
    stripe_api: str | None = None
    stripe_webhook_secret: str | None = None
    receipts_url: str | None = None
    telegram_token: str | None = None
    telegram_api: str = "https://api.telegram.org"
    telegram_webhook_url: str | None = None
    smtp_url: str | None = None
    email_from: str = "tickets@localhost"
    sms_url: str | None = None
    sms_per_org: Annotated[int, Meta(ge=0)] = 1_000
    sms_countries: str | None = None
    reminder_hours: Annotated[float, Meta(ge=0, le=720)] = 24
    web_push: bool = False
    # Of Chrome, Edge, Firefox and Safari, and of the browsers built on them.
    push_services: str = "fcm.googleapis.com,updates.push.services.mozilla.com,push.apple.com,notify.windows.com"
    kafka_url: str | None = None
    nats_url: str | None = None
    bus_prefix: str = "holdfast"
    webhooks_to_private_addresses: bool = False
    metrics: bool = True
    metrics_token: str | None = None
    log_format: LogFormat | None = None
    log_transitions: bool = True
    log_attempts: Annotated[int, Meta(ge=0)] = 100
    tracing: bool = False
    trace_callers: bool = False
    demo: bool = False

    @property
    def quotas(self) -> Quotas:
        return Quotas(events=self.events_per_org, seats=self.seats_per_org)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        values = {name: text for name in cls.__struct_fields__ if (text := environment.get(PREFIX + name.upper()))}
        try:
            return convert(values, cls, strict=False, dec_hook=lambda kind, text: kind(text))
        except ValidationError as error:
            message, _, name = str(error).partition(" - at `$.")
            field = name.rstrip("`")
            raise SettingError(f"Cannot use {PREFIX}{field.upper()}: {_explain(field, message)}.") from None


def _explain(field: str, message: str) -> str:
    """In the words of a person who writes the value into a file."""
    kinds = get_args(get_type_hints(Settings)[field])
    choices = [choice.value for kind in kinds if issubclass(kind, FastStrEnum) for choice in kind]
    if choices:
        return f"Expected {' or '.join(choices)}"
    for kind, words in _IN_WORDS.items():
        message = message.replace(f"`{kind}`", words)
    return message.removesuffix(", got `str`")
