"""Optional dependencies. Holdfast runs without them until the settings ask for what they do."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.runtime.settings import SettingError


class MissingExtraError(SettingError):
    """The settings ask for something whose package is not installed. The text says how to install it."""


def explain_install(extra: str) -> str:
    """How to add an extra. The name `holdfast` on PyPI belongs to somebody else, so the command names a folder."""
    return f"In a checkout of Holdfast, run: pip install '.[{extra}]'"


@contextmanager
def optional_import(*packages: str, extra: str) -> Iterator[None]:
    """Wrap an import that needs the packages of an extra. A broken package raises its own error."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        raise MissingExtraError(
            f"This needs the package `{package}`, which is not installed. {explain_install(extra)}"
        ) from None
