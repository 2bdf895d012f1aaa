"""Which addresses a webhook may go to: public ones only, unless the settings allow private ones.

Anyone who registers an endpoint makes this server call it. So each attempt resolves the name once, checks every address
it resolves to, and connects to one of exactly those. The Host header and TLS still use the name.
"""

import asyncio
import re
import socket
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

import httpcore
import httpx

URL_MAX: Final = 2_000
# Each lookup has its own thread, because a dead name server can block it for half a minute.
LOOKUPS_MAX: Final = 100
# How many addresses of one name to try.
ADDRESSES_TRIED_MAX: Final = 3

NOT_PUBLIC: Final = "the address is not public"
NOT_FOUND: Final = "the name cannot be resolved"

_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_][a-z0-9_-]{0,62}(\.[a-z0-9_][a-z0-9_-]{0,62})*\.?", re.IGNORECASE)
# The system reads names that end like this as IPv4 addresses, some in spellings that attackers use to hide them.
_NUMBER_AT_END: Final = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)\.?$", re.IGNORECASE)

# Listed here because the answers of `ipaddress` differ between versions of Python.
_PRIVATE_V4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "168.63.129.16/32",  # looks public, but is internal to Azure
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",
        ),
    )
)
_PUBLIC_V6: Final = IPv6Network("2000::/3")
_PRIVATE_V6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
# The last four bytes of these are the IPv4 address that the packets go to.
_V4_EMBEDDED: Final = tuple(map(IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96")))


class AddressError(Exception):
    """The name does not resolve, or resolves to a forbidden address. The text never reveals the address."""


def check_url(url: str, *, allow_private: bool = False) -> str | None:
    """Why this URL cannot be a webhook endpoint, or None. Does not resolve the name."""
    if len(url) > URL_MAX:
        return f"the address is longer than {URL_MAX} characters"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "the address is not a URL"
    if parsed.scheme not in ("http", "https"):
        return "the address must begin with https:// or http://"
    if parsed.userinfo:
        return "the address must not contain a user name or password"
    if "#" in url:
        return "the address must not have a fragment"
    if parsed.port is not None and not 0 < parsed.port < 65536:
        return "the port must be between 1 and 65535"
    return _check_host(parsed.raw_host.decode(), allow_private)


def _check_host(host: str, allow_private: bool) -> str | None:
    if not _is_literal(host):
        return None if _NAME.fullmatch(host) and not _NUMBER_AT_END.search(host) else "the host is not a valid name"
    return None if allow_private or is_public(host) else NOT_PUBLIC


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether this IP address belongs to the public internet."""
    found = ip_address(address)
    if isinstance(found, IPv4Address):
        return not any(found in network for network in _PRIVATE_V4)
    if any(found in network for network in _V4_EMBEDDED):
        return is_public(str(IPv4Address(int(found) & 0xFFFF_FFFF)))
    return _is_public_v6(found)


def _is_public_v6(address: IPv6Address) -> bool:
    return address in _PUBLIC_V6 and not any(address in network for network in _PRIVATE_V6)


class Resolver:
    """Resolves names in threads of its own. Concurrent lookups of one name share a thread, so that a name without an
    answer cannot take the threads of other names."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="resolver")
        self._lookups: dict[str, Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        try:
            found = await asyncio.shield(asyncio.wrap_future(self._start_lookup(host)))
        except (OSError, UnicodeError):
            raise AddressError(NOT_FOUND) from None
        if not found:
            raise AddressError(NOT_FOUND)
        return found

    def _start_lookup(self, host: str) -> "Future[list[str]]":
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = self._threads.submit(_look_up, host)
            lookup.add_done_callback(lambda _: self._lookups.pop(host, None))
        return lookup

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to the addresses that were checked, and never resolves a name a second time."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._resolver = Resolver()
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the signature is given)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self.allowed_addresses(host)
        *others, last = addresses[:ADDRESSES_TRIED_MAX]
        for address in others:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)

    async def allowed_addresses(self, host: str) -> list[str]:
        """All addresses of the name. A single private one rejects the name, because honest names have none."""
        addresses = await self._resolver.addresses(host)
        if not self._allow_private and not all(map(is_public, addresses)):
            raise AddressError(NOT_PUBLIC)
        return addresses

    def close(self) -> None:
        self._resolver.close()
