"""Where a webhook may go: only to the public internet, unless private addresses are allowed.

Whoever names an address here makes this server call it, so a name is looked up once, every address it leads to is
checked, and the connection is made to one of exactly these. The name itself is kept for the Host header and for TLS.
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
# Each name that is being looked up has a thread, since a dead name server can hold it for half a minute.
LOOKUPS_MAX: Final = 100
# Of a name with many addresses so many are tried.
TRIES_MAX: Final = 3

NOT_PUBLIC: Final = "the address is not a public one"
NOT_FOUND: Final = "the name cannot be resolved"

_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_][a-z0-9_-]{0,62}(\.[a-z0-9_][a-z0-9_-]{0,62})*\.?", re.IGNORECASE)
# The system reads names that end like this as an IPv4 address, some in ways that are written to be overlooked.
_NUMBER_AT_END: Final = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)\.?$", re.IGNORECASE)

# Written down rather than asked of `ipaddress`, whose answers differ between versions of Python.
_CLOSED_V4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "168.63.129.16/32",  # looks public, and is the inside of Azure
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
_OPEN_V6: Final = IPv6Network("2000::/3")
_CLOSED_V6: Final = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
# Their last four bytes are the IPv4 address that is really meant.
_V4_INSIDE: Final = tuple(map(IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96")))


class AddressError(Exception):
    """A name that leads nowhere, or to where no webhook may go. The text does not say where that is."""


def check_url(url: str, *, allow_private: bool = False) -> str | None:
    """Why this cannot be the address of a webhook, as far as it can be told without looking the name up."""
    if len(url) > URL_MAX:
        return f"the address is longer than {URL_MAX} characters"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "the address is not a URL"
    if parsed.scheme not in ("http", "https"):
        return "the address has to begin with https:// or http://"
    if parsed.userinfo:
        return "the address must not contain a user name or password"
    if "#" in url:
        return "the address must not have a fragment"
    if parsed.port is not None and not 0 < parsed.port < 65536:
        return "the port has to be between 1 and 65535"
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
    """Whether this IP address is reached over the public internet, and leads nowhere else."""
    found = ip_address(address)
    if isinstance(found, IPv4Address):
        return not any(found in network for network in _CLOSED_V4)
    if any(found in network for network in _V4_INSIDE):
        return is_public(str(IPv4Address(int(found) & 0xFFFF_FFFF)))
    return _is_open_v6(found)


def _is_open_v6(address: IPv6Address) -> bool:
    return address in _OPEN_V6 and not any(address in network for network in _CLOSED_V6)


class Names:
    """Looks names up in threads of its own. A name is asked for once at a time, however many want to know it, so that
    one that gets no answer does not take the threads of the others."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="names")
        self._asked: dict[str, Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        try:
            found = await asyncio.shield(asyncio.wrap_future(self._checkout_request(host)))
        except (OSError, UnicodeError):
            raise AddressError(NOT_FOUND) from None
        if not found:
            raise AddressError(NOT_FOUND)
        return found

    def _checkout_request(self, host: str) -> "Future[list[str]]":
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = self._threads.submit(_look_up, host)
            asked.add_done_callback(lambda _: self._asked.pop(host, None))
        return asked

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, and to nothing that was looked up a second time."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._names = Names()
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
        *others, last = addresses[:TRIES_MAX]
        for address in others:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)

    async def allowed_addresses(self, host: str) -> list[str]:
        """All addresses of the name. One that is not public spoils the others: an honest name has none."""
        addresses = await self._names.addresses(host)
        if not self._allow_private and not all(map(is_public, addresses)):
            raise AddressError(NOT_PUBLIC)
        return addresses

    def close(self) -> None:
        self._names.close()
