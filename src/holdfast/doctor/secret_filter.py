"""Keeps secrets out of what the checks report."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

MASK: Final = "***"

_SECRET_NAMES: Final = ("KEY", "SECRET", "TOKEN", "PASSWORD")
# A shorter one would blank out ordinary words, and protects nothing.
_LENGTH_MIN: Final = 4


class SecretFilter:
    """Knows the secrets in the environment: whole keys and tokens, and the passwords in URLs, as they are written there
    and decoded."""

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
    user, at, _ = url.partition("://")[2].rpartition("@")
    if at:
        yield user.partition(":")[2]
    try:
        yield urlsplit(url).password or ""
    except ValueError:
        return


def _both_forms(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield text
        yield unquote(text)
