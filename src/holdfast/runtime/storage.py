"""Where files are kept: a folder, or a bucket that speaks S3.

A key is the org and the hash of the content, both in hexadecimal. So a file never changes, and putting it twice is the
same as putting it once.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl

from msgspec import Struct
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

# All that a put or a get may take, with its retries.
PATIENCE_SECONDS: Final = 10.0
RETRIES_MAX: Final = 3

_KEY: Final = re.compile(r"[0-9a-f]{1,128}/[0-9a-f]{1,128}")
_ADDRESS: Final = re.compile(
    r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])((?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?(?:\?(.*))?"
)
_PARAMETERS: Final = {
    "endpoint": re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?"),
    "region": re.compile(r"[A-Za-z0-9-]{1,64}"),
}
# The library follows this variable even where it was told of an endpoint.
_STRONGER: Final = "AWS_ENDPOINT_URL_S3"
_EXAMPLE: Final = "s3://bucket/prefix?endpoint=https://storage.example&region=eu-1"


class StorageError(Exception):
    """The storage cannot be reached or does not do what it should. The same call may work later."""


class StorageAddressError(ValueError):
    """The address of a storage cannot be used. The text does not repeat it: somebody may have put a secret there."""


class Storage(Protocol):
    async def put(self, key: str, data: bytes) -> None:
        """Returns once the file will outlast a power failure. Nobody ever reads half of it."""

    async def get(self, key: str) -> bytes | None:
        """The file, or None if there is none of this key."""


def storage_at(url: str | None, folder: Path) -> Storage:
    """The storage at this address, or in the folder if there is no address."""
    return _Folder(folder) if url is None else _Objects(_bucket_at(_read_address(url)))


class _Objects:
    def __init__(self, store: LocalStore | S3Store) -> None:
        self._store = store

    async def put(self, key: str, data: bytes) -> None:
        _check_key(key)
        async with _in_plain_words():
            # In one request, because the parts of an upload that was broken off would stay in the bucket.
            await self._store.put_async(key, data, use_multipart=False)

    async def get(self, key: str) -> bytes | None:
        _check_key(key)
        async with _in_plain_words():
            try:
                found = await self._store.get_async(key)
            except FileNotFoundError:
                return None
            return bytes(await found.bytes_async())


class _Folder(_Objects):
    """The store writes to a file of another name and renames it, but it does not wait for the disk."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            super().__init__(LocalStore(folder))
        except (OSError, BaseError) as error:
            raise StorageError(f"The folder for files cannot be used: {type(error).__name__}.") from None
        self._folder = folder

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data)
        async with _in_plain_words():
            await asyncio.to_thread(_flush, self._folder / key, self._folder)


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError("A key is two hexadecimal numbers with a slash between them.")


def _flush(file: Path, root: Path) -> None:
    """Make the file, its name and the name of its folder outlast a power failure."""
    for path in (file, file.parent, root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@asynccontextmanager
async def _in_plain_words() -> AsyncIterator[None]:
    """Errors of the library tell the request and the answer, which is more than a log should know."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield
    except TimeoutError:
        raise StorageError(f"The storage did not answer within {PATIENCE_SECONDS:g} seconds.") from None
    except (PermissionDeniedError, UnauthenticatedError):
        raise StorageError("The storage denied access: look at the credentials and what they permit.") from None
    except (BaseError, OSError) as error:
        raise StorageError(f"The storage failed: {type(error).__name__}.") from None


class _Address(Struct, frozen=True):
    bucket: str
    prefix: str | None
    endpoint: str | None
    region: str | None


def _read_address(url: str) -> _Address:
    if not (found := _ADDRESS.fullmatch(url)):
        raise StorageAddressError(f"The address of the storage cannot be read. It looks like this: {_EXAMPLE}")
    bucket, prefix, query = found.groups(default="")
    endpoint, region = _read_query(query)
    return _Address(bucket, prefix.strip("/") or None, endpoint, region)


def _read_query(query: str) -> tuple[str | None, str | None]:
    """The endpoint and the region."""
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs) or not given.keys() <= _PARAMETERS.keys():
        raise StorageAddressError(f"The address of the storage may have {' and '.join(_PARAMETERS)}, each once.")
    for name, value in given.items():
        if not _PARAMETERS[name].fullmatch(value):
            raise StorageAddressError(f"The {name} in the address of the storage cannot be used.")
    return given.get("endpoint"), given.get("region")


def _bucket_at(address: _Address) -> S3Store:
    """Credentials are not part of the address: the library takes them from where all tools for S3 do."""
    if address.endpoint and os.environ.get(_STRONGER, address.endpoint) != address.endpoint:
        raise StorageAddressError(f"{_STRONGER} names another endpoint than the address of the storage.")
    config: S3Config = {}
    if address.region:
        config["region"] = address.region
    if address.endpoint:
        config["endpoint"] = address.endpoint
        config["virtual_hosted_style_request"] = False
    is_plain = address.endpoint is not None and address.endpoint.startswith("http://")
    patience = timedelta(seconds=PATIENCE_SECONDS)
    client: ClientConfig = {"allow_http": is_plain, "connect_timeout": patience / 3, "timeout": patience}
    retries: RetryConfig = {"max_retries": RETRIES_MAX, "retry_timeout": patience}
    try:
        return S3Store(
            address.bucket, prefix=address.prefix, config=config, client_options=client, retry_config=retries
        )
    except BaseError as error:
        raise StorageAddressError(f"The storage cannot be set up: {type(error).__name__}.") from None
