"""Stores files in a folder or in an S3 bucket.

A key is two hexadecimal numbers: the owner, and the hash of the content. So a file never changes, and storing it again
changes nothing.
"""

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct

from holdfast.runtime.extras import optional_import

# For a put or a get, including its retries.
TIMEOUT_SECONDS: Final = 10.0

_KEY: Final = re.compile(r"[0-9a-f]{1,128}/[0-9a-f]{1,128}")
_ADDRESS: Final = re.compile(
    r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])((?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?(?:\?(.*))?"
)
_PARAMETERS: Final = {
    "endpoint": re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?"),
    "region": re.compile(r"[A-Za-z0-9-]{1,64}"),
}
_EXAMPLE: Final = "s3://bucket/prefix?endpoint=https://storage.example&region=eu-1"


P = ParamSpec("P")
T = TypeVar("T")


class StorageError(Exception):
    """The storage is unreachable or fails. A retry may succeed."""


class StorageAddressError(ValueError):
    """The address of the storage is invalid. The text does not repeat it, because it may contain a secret."""


class Storage(Protocol):
    async def put(self, key: str, data: bytes) -> None:
        """Returns once the file survives a power failure. Readers never see half of it."""

    async def get(self, key: str) -> bytes | None:
        """The file, or None if there is none with this key."""

    async def delete(self, key: str) -> None:
        """Succeeds if there is no file with this key."""


class S3Address(Struct, frozen=True):
    bucket: str
    prefix: str | None
    endpoint: str | None
    region: str | None


def open_storage(url: str | None, folder: Path) -> Storage:
    """The bucket at this address, or the folder if there is no address."""
    if url is None:
        return FolderStorage(folder)
    address = _parse_address(url)
    with optional_import("obstore", extra="s3"):
        from holdfast.runtime.s3_storage import S3Storage
    return S3Storage(address, TIMEOUT_SECONDS)


def check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError("A key is two hexadecimal numbers with a slash between them.")


@asynccontextmanager
async def limit_time(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise StorageError(f"The storage did not answer within {seconds:g} seconds.") from None


class FolderStorage:
    """A folder that only its owner may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"The folder for files cannot be used: {type(error).__name__}.") from None

    async def put(self, key: str, data: bytes) -> None:
        check_key(key)
        await self._run(_write, self._folder / key, data)

    async def get(self, key: str) -> bytes | None:
        check_key(key)
        return await self._run(_read, self._folder / key)

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._run((self._folder / key).unlink, missing_ok=True)

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The error of the system names the file, which is more than a log should know."""
        async with limit_time(TIMEOUT_SECONDS):
            try:
                return await asyncio.to_thread(function, *args, **kwargs)
            except OSError as error:
                raise StorageError(f"The storage failed: {type(error).__name__}.") from None


def _write(file: Path, data: bytes) -> None:
    """Under another name first, so that nobody reads half a file."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    for folder in (file.parent, file.parent.parent):
        _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    """The names of new files survive a power failure only if their folder is flushed too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _parse_address(url: str) -> S3Address:
    if not (found := _ADDRESS.fullmatch(url)):
        raise StorageAddressError(f"The address of the storage is invalid. An example: {_EXAMPLE}")
    bucket, prefix, query = found.groups(default="")
    endpoint, region = _parse_query(query)
    return S3Address(bucket, prefix.strip("/") or None, endpoint, region)


def _parse_query(query: str) -> tuple[str | None, str | None]:
    """The endpoint and the region."""
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs) or not given.keys() <= _PARAMETERS.keys():
        raise StorageAddressError(f"The address of the storage may have {' and '.join(_PARAMETERS)}, each once.")
    for name, value in given.items():
        if not _PARAMETERS[name].fullmatch(value):
            raise StorageAddressError(f"The {name} in the address of the storage is invalid.")
    return given.get("endpoint"), given.get("region")
