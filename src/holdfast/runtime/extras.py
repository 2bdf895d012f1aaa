"""Optional dependencies. Holdfast runs without them until the settings ask for what they do."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.runtime.settings import SettingError


class MissingExtraError(SettingError):
    """The settings ask for something whose package is not installed. The text says how to install it."""


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
            f"This needs the package `{package}`, which is not installed. Run: pip install 'holdfast[{extra}]'"
        ) from None
