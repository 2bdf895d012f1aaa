"""Finds the client address that limits count."""

from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from starlette.types import Scope

ADDRESS_CHARS_MAX: Final = 64
# A provider gives each subscriber at least one IPv6 network of this length, so the whole network counts as one client.
IPV6_PREFIX: Final = 64


def client_address(scope: Scope, proxies: int) -> str:
    """The client's address, as the outermost of our own proxies saw it. An IPv6 address stands for its network."""
    if proxies:
        hops = _last_hops(scope, proxies)
        if len(hops) >= proxies:
            return normalize(hops[-proxies].strip())
    client = scope.get("client")
    return normalize(client[0]) if client else ""


def _last_hops(scope: Scope, proxies: int) -> list[str]:
    """The hops that our proxies added, in order, after the rest of the list, which the client may have made long.
    Several lines of the header form one list, so the client cannot hide our proxies' part behind a line of its own."""
    lines = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return b",".join(lines).decode("latin-1").rsplit(",", proxies) if lines else []


@lru_cache(10_000)
def normalize(address: str) -> str:
    if ":" not in address:
        return address[:ADDRESS_CHARS_MAX]
    try:
        parsed = ip_address(_without_port(address))
    except ValueError:
        return address[:ADDRESS_CHARS_MAX]
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((parsed.packed, IPV6_PREFIX), strict=False))
    return str(parsed)


def _without_port(address: str) -> str:
    """Some proxies add the client's port: `192.0.2.1:1234` or `[2001:db8::1]:1234`."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, _, rest = address.partition(":")
    return host if ":" not in rest else address.partition("%")[0]
