"""Optional dependencies. Holdfast runs without them until the settings ask for what they do."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.runtime.settings import SettingError


class MissingExtraError(SettingError):
    """The settings ask for something whose package is not installed. The text says how to install it."""


@contextmanager
def optional_import(package: str, *, extra: str) -> Iterator[None]:
    """Wrap an import that needs a package of an extra. A broken package raises its own error."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtraError(
            f"This needs the package `{package}`, which is not installed. Run: pip install 'holdfast[{extra}]'"
        ) from None
