"""Looks up every text that buyers read. Each language has one file beside this module, such as `es.toml`."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Final

from msgspec import convert

from holdfast.i18n.languages import LANGUAGES

Section = Mapping[str, str]


class MissingTextError(LookupError):
    """A language file lacks a text that the code asks for."""


def _load(language: str) -> dict[str, dict[str, str]]:
    file = resources.files(__package__).joinpath(f"{language}.toml")
    return convert(tomllib.loads(file.read_text("utf-8")), dict[str, dict[str, str]])


_SECTIONS: Final = {language: _load(language) for language in LANGUAGES}


def section(language: str, name: str) -> Section:
    """All texts of one section, with their placeholders."""
    try:
        return _SECTIONS[language][name]
    except KeyError:
        raise MissingTextError(f"{language}.toml has no section [{name}]") from None


def translate(language: str, key: str, **values: object) -> str:
    """The text under a key such as `page.events.title`, with its placeholders filled in.

    Texts that depend on a number come in pairs, `….one` and `….many`; the value of `n` chooses between them.
    """
    name, _, rest = key.partition(".")
    texts = section(language, name)
    text = texts.get(rest) or texts.get(_plural_key(rest, values))
    if text is None:
        raise MissingTextError(f"{language}.toml has no text {rest!r} in [{name}]")
    return text.format(**values)


def _plural_key(key: str, values: Mapping[str, object]) -> str:
    # Callers may pass the number as they formatted it.
    return f"{key}.one" if str(values.get("n")) == "1" else f"{key}.many"
