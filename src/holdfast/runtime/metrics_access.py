"""Who may read `/metrics`: whoever has the token or, if none is set, programs on the same machine."""

import hmac
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

# A request with one of these came through a proxy, which may pass on requests from anywhere.
PROXY_HEADERS: Final = frozenset({"x-forwarded-for", "x-real-ip", "forwarded", "via"})

UNIDENTIFIED: Final = "Send the value of HOLDFAST_METRICS_TOKEN as a bearer token."
ONLY_LOCAL: Final = (
    "Without HOLDFAST_METRICS_TOKEN, only programs on the same machine can read the metrics, and not through a proxy."
)


def has_token(token: str, authorization: str) -> bool:
    return hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())


def is_local(address: str, header_names: Collection[str]) -> bool:
    """Whether the request comes directly from a program on this machine. `header_names` are in lower case."""
    try:
        return ip_address(address).is_loopback and PROXY_HEADERS.isdisjoint(header_names)
    except ValueError:
        return False


def refusal(
    token: str | None, authorization: str, address: str, header_names: Collection[str], *, behind_proxy: bool = False
) -> str | None:
    """Why this request may not read the metrics, or None if it may. A proxy that adds no header looks like a program on
    this machine, so a process behind one needs a token."""
    if token is not None:
        return None if has_token(token, authorization) else UNIDENTIFIED
    return None if not behind_proxy and is_local(address, header_names) else ONLY_LOCAL
