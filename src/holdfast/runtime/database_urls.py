"""Checks the URL of a database before the driver parses it, whose errors quote parts of the password."""

from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from holdfast.runtime.settings import SettingError

_SCHEMES: Final = ("postgresql", "postgres")
_ENCODE: Final = (
    "Percent-encode special characters in the user, the password and the name of the database: "
    "/ as %2F, ? as %3F, # as %23, [ as %5B and @ as %40."
)


def check_database_url(setting: str, url: str) -> None:
    """The error does not repeat the URL."""
    reason = _find_mistake(url)
    if reason is not None:
        raise SettingError(f"{setting} is malformed. {reason}")


def _find_mistake(url: str) -> str | None:
    try:
        parts = urlsplit(url)
    except ValueError:
        return _ENCODE
    if parts.scheme not in _SCHEMES:
        return "It must start with postgresql://."
    # A slash, a question mark or a number sign ends the host. In a password, it leaves the @ behind it.
    if parts.fragment or ("@" not in parts.netloc and "@" in parts.path):
        return _ENCODE
    # The driver ends the password at the first @, and takes the rest of it for the host.
    if parts.netloc.count("@") > 1:
        return _ENCODE
    if not all(_is_port(port) for port in _ports(parts)):
        return f"The port must be a number. {_ENCODE}"
    try:
        parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        return f"After the ?, it needs options such as sslmode=require, with one & between two of them. {_ENCODE}"
    return None


def _ports(parts: SplitResult) -> list[str]:
    """There may be several hosts, with commas between them."""
    hosts = parts.netloc.rpartition("@")[2].split(",")
    return [host.rpartition("]")[2].partition(":")[2] for host in hosts]


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and int(text) < 65_536)
