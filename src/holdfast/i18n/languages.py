"""The languages that Holdfast speaks. To add one, put its file, such as `pt.toml`, beside this module."""

from importlib import resources
from typing import Final

DEFAULT: Final = "en"
LANGUAGES: Final = tuple(
    sorted(
        file.name.removesuffix(".toml")
        for file in resources.files(__package__).iterdir()
        if file.name.endswith(".toml")
    )
)


def language_of(tag: str | None) -> str:
    """The language of a tag such as `es-CO`, or English if Holdfast does not speak it."""
    language = (tag or "").replace("_", "-").partition("-")[0].strip().lower()
    return language if language in LANGUAGES else DEFAULT
