"""Files in a bucket that speaks S3. Needs the extra `s3`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from holdfast.runtime.storage import S3Address, StorageAddressError, StorageError, check_key, limit_time

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

RETRIES_MAX: Final = 3
# The library prefers this variable to the endpoint it is given.
_OVERRIDE: Final = "AWS_ENDPOINT_URL_S3"


class S3Storage:
    """The credentials come from the environment, like those of every tool for S3."""

    def __init__(self, address: S3Address, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._store = _make_store(address, timedelta(seconds=timeout_seconds))

    async def put(self, key: str, data: bytes) -> None:
        check_key(key)
        async with limit_time(self._timeout_seconds), _translate_errors():
            # One request, because an interrupted multipart upload leaves its parts in the bucket.
            await self._store.put_async(key, data, use_multipart=False)

    async def get(self, key: str) -> bytes | None:
        check_key(key)
        async with limit_time(self._timeout_seconds), _translate_errors():
            try:
                found = await self._store.get_async(key)
            except FileNotFoundError:
                return None
            return bytes(await found.bytes_async())

    async def delete(self, key: str) -> None:
        check_key(key)
        async with limit_time(self._timeout_seconds), _translate_errors():
            with suppress(FileNotFoundError):
                await self._store.delete_async(key)


@asynccontextmanager
async def _translate_errors() -> AsyncIterator[None]:
    """The library's errors quote the request and the answer, which is more than a log should know."""
    try:
        yield
    except TimeoutError:
        raise
    except (PermissionDeniedError, UnauthenticatedError):
        raise StorageError("The storage denied access. Check the credentials and their permissions.") from None
    except (BaseError, OSError) as error:
        raise StorageError(f"The storage failed: {type(error).__name__}.") from None


def _make_store(address: S3Address, timeout: timedelta) -> S3Store:
    if address.endpoint and os.environ.get(_OVERRIDE, address.endpoint) != address.endpoint:
        raise StorageAddressError(f"{_OVERRIDE} names another endpoint than the address of the storage.")
    is_plain = address.endpoint is not None and address.endpoint.startswith("http://")
    client: ClientConfig = {"allow_http": is_plain, "connect_timeout": timeout / 3, "timeout": timeout}
    retries: RetryConfig = {"max_retries": RETRIES_MAX, "retry_timeout": timeout}
    try:
        return S3Store(
            address.bucket,
            prefix=address.prefix,
            config=_make_config(address),
            client_options=client,
            retry_config=retries,
        )
    except BaseError as error:
        raise StorageAddressError(f"The storage cannot be configured: {type(error).__name__}.") from None


def _make_config(address: S3Address) -> "S3Config":
    # Not every server has the request that deletes several objects.
    config: S3Config = {"disable_bulk_delete": True}
    if address.region:
        config["region"] = address.region
    if address.endpoint:
        config["endpoint"] = address.endpoint
        config["virtual_hosted_style_request"] = False
    return config
