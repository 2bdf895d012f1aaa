"""Sends requests to addresses that strangers chose. Follows no redirects, uses no proxy whatever the environment says,
and goes only to public addresses unless the settings allow private ones."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Final, cast

import httpcore
import httpx
from msgspec import Struct

from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.retry_after import parse_retry_after
from holdfast.notifications.webhook_addresses import AddressError, CheckedNetwork, check_url

CONNECT_SECONDS: Final = 4.0
# A response that is read to its end leaves the connection usable. A long or slow one is not worth the wait.
RESPONSE_MAX: Final = 4_096
RESPONSE_SECONDS: Final = 1.0
IDLE_MAX: Final = 100
IDLE_SECONDS: Final = 5.0

_NETWORK_ERRORS: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


class CheckedResponse(Struct, frozen=True):
    """What counts of a response, even if reading the rest of it fails."""

    status: int
    retry_after_seconds: float


class NoResponseError(UndeliveredError):
    """The other side did not answer in time."""


class CheckedHttp:
    def __init__(self, *, allow_private: bool, send_seconds: float) -> None:
        self._allow_private = allow_private
        self._send_seconds = send_seconds
        self._network = CheckedNetwork(allow_private=allow_private)
        # The relay limits open connections. A limit here would let one slow target use them all up.
        self._connections = httpcore.AsyncConnectionPool(
            network_backend=self._network,
            max_connections=None,
            max_keepalive_connections=IDLE_MAX,
            keepalive_expiry=IDLE_SECONDS,
        )

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, *, send_seconds: float | None = None
    ) -> CheckedResponse:
        """Raises `UndeliveredError` if the address is forbidden or no response comes. `send_seconds` is for a message
        that cannot wait as long as others."""
        seconds = self._send_seconds if send_seconds is None else send_seconds
        problem = check_url(url, allow_private=self._allow_private)
        if problem is not None:
            raise UndeliveredError(problem)
        try:
            async with asyncio.timeout(seconds):
                return await self._post(httpx.URL(url), headers, content)
        except TimeoutError:
            raise NoResponseError(f"no response within {seconds:.0f} s") from None
        except AddressError as error:
            raise UndeliveredError(str(error)) from None
        except _NETWORK_ERRORS as error:
            raise UndeliveredError(type(error).__name__) from None

    async def close(self) -> None:
        await self._connections.aclose()
        self._network.close()

    async def _post(self, url: httpx.URL, headers: Mapping[str, str], content: bytes) -> CheckedResponse:
        request_url = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        all_headers = {"Host": url.netloc.decode(), "User-Agent": "Holdfast", "Accept": "*/*", **headers}
        limits = {"timeout": {"connect": CONNECT_SECONDS}}
        async with self._connections.stream(
            "POST", request_url, headers=list(all_headers.items()), content=content, extensions=limits
        ) as response:
            with suppress(TimeoutError, *_NETWORK_ERRORS):
                await _read_rest(response)
            return CheckedResponse(response.status, parse_retry_after(_header(response, b"retry-after")))


def _header(response: httpcore.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), None)


async def _read_rest(response: httpcore.Response) -> None:
    size = 0
    stream = cast(AsyncGenerator[bytes, None], response.aiter_stream())
    async with asyncio.timeout(RESPONSE_SECONDS), aclosing(stream) as parts:
        async for part in parts:
            size += len(part)
            if size > RESPONSE_MAX:
                return
