"""Keeps secrets out of what the checks report."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

MASK: Final = "***"

_SECRET_NAMES: Final = ("KEY", "SECRET", "TOKEN", "PASSWORD")
_SECRET_OPTIONS: Final = ("password", "secret", "token", "pem")
# A shorter one would blank out ordinary words, and protects nothing.
_LENGTH_MIN: Final = 4


class SecretFilter:
    """Knows the secrets in the environment: whole keys and tokens, and the passwords, tokens and secret options in
    URLs, as they are written there and decoded."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = {secret for name, value in environment.items() for secret in _find_secrets(name, value)}
        # The longest first, so that none of them leaves a part of a longer one behind.
        self._secrets = sorted((each for each in found if len(each) >= _LENGTH_MIN), key=len, reverse=True)

    def hide(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def _find_secrets(name: str, value: str) -> Iterator[str]:
    if name.startswith("HOLDFAST_") and name.endswith(_SECRET_NAMES):
        yield value
    if "://" in value:
        yield from _both_forms(_passwords(value))


def _passwords(url: str) -> Iterator[str]:
    """A malformed URL may still have a password, between the first colon after the scheme and the last @."""
    scheme, _, rest = url.partition("://")
    user, at, _ = rest.rpartition("@")
    if at:
        name, colon, password = user.partition(":")
        yield password
        if not colon and scheme in ("nats", "tls"):
            yield name
    yield from _secret_options(rest)
    try:
        yield urlsplit(url).password or ""
    except ValueError:
        return


def _secret_options(url: str) -> Iterator[str]:
    """The values of options such as `ssl.key.password`."""
    for option in url.partition("?")[2].split("&"):
        name, _, value = option.partition("=")
        if name.lower().endswith(_SECRET_OPTIONS):
            yield value


def _both_forms(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield text
        yield unquote(text)
