"""A stored file is complete and permanent, in a folder or a bucket, and a failure is reported clearly and quickly."""

import asyncio
import hashlib
import hmac
import os
import re
import secrets
import socket
import stat
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.api.receipt_upload import FILE_BYTES_MAX
from holdfast.runtime.s3_storage import S3Storage
from holdfast.runtime.storage import Storage, StorageAddressError, StorageError, open_storage
from tests.support.engine_harness import async_test
from tests.support.harness import free_port

ORG = secrets.token_hex(16)
REGION = "eu-1"
ACCESS_KEY = "AKIDOFTHETEST"
SECRET_KEY = "secret-of-the-test"


def _key(data: bytes, org: str = ORG) -> str:
    return f"{org}/{hashlib.sha256(data).hexdigest()}"


class Bucket(ThreadingHTTPServer):
    """The part of S3 that we need: objects of one bucket, for requests with a valid signature."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _BucketHandler)
        self.objects: dict[str, bytes] = {}
        self.requests = 0
        self.failures = 0
        self.truncates_answers = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def address(self) -> str:
        return f"s3://receipts/of/tests?endpoint={self.endpoint}&region={REGION}"


class _BucketHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_accepted(body):
            self.server.objects[self.path] = body
            self._answer(200, b"", ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_GET(self) -> None:
        if not self._is_accepted(b""):
            return
        if (body := self.server.objects.get(self.path)) is None:
            self._refuse(404, "NoSuchKey")
        else:
            self._answer(200, body, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_DELETE(self) -> None:
        """Like S3, succeeds if there is no such object."""
        if self._is_accepted(b""):
            self.server.objects.pop(self.path, None)
            self._answer(204, b"")

    def _is_accepted(self, body: bytes) -> bool:
        self.server.requests += 1
        if self.server.failures:
            self.server.failures -= 1
            self._refuse(503, "SlowDown")
        elif not self._is_signed(body):
            self._refuse(403, "SignatureDoesNotMatch")
        elif not self.path.startswith("/receipts/"):
            self._refuse(404, "NoSuchBucket")
        else:
            return True
        return False

    def _is_signed(self, body: bytes) -> bool:
        """Check signature version 4 from the request alone."""
        pattern = (
            r"AWS4-HMAC-SHA256 Credential=(\w+)/(\d{8}/[\w-]+/s3/aws4_request), ?SignedHeaders=(\S+), ?Signature=(\w+)"
        )
        if not (found := re.fullmatch(pattern, self.headers["Authorization"] or "")):
            return False
        access_key, scope, signed, signature = found.groups()
        date, region = scope.split("/")[:2]
        at, body_hash = self.headers["x-amz-date"], self.headers["x-amz-content-sha256"]
        age = datetime.now(UTC) - datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        headers = "".join(f"{name}:{self.headers[name].strip()}\n" for name in signed.split(";"))
        request = "\n".join((self.command, self.path, "", headers, signed, body_hash))
        to_sign = "\n".join(("AWS4-HMAC-SHA256", at, scope, hashlib.sha256(request.encode()).hexdigest()))
        key = f"AWS4{SECRET_KEY}".encode()
        for step in (*scope.split("/"), to_sign):
            key = hmac.digest(key, step.encode(), "sha256")
        return (
            hmac.compare_digest(key.hex(), signature)
            and (access_key, region, date) == (ACCESS_KEY, REGION, at[:8])
            and {"host", "x-amz-content-sha256", "x-amz-date"} <= set(signed.split(";"))
            and body_hash == hashlib.sha256(body).hexdigest()
            and abs(age) < timedelta(minutes=15)
        )

    def _refuse(self, status: int, code: str) -> None:
        """Refuse as S3 does, which repeats the access key of a bad signature."""
        access_key = f"<AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId>" if status == 403 else ""
        xml = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>{access_key}</Error>'
        self._answer(status, xml.encode(), **{"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        for name, value in {"Last-Modified": now, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.server.truncates_answers:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep the test output clean."""


@contextmanager
def running_bucket() -> Iterator[Bucket]:
    with Bucket() as bucket:
        thread = Thread(target=bucket.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield bucket
        finally:
            bucket.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with running_bucket() as bucket:
        yield bucket


@pytest.fixture(params=["folder", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Each kind of storage, because both make the same promises."""
    if request.param == "folder":
        yield open_storage(None, tmp_path / "files")
    else:
        with running_bucket() as bucket:
            yield open_storage(bucket.address, tmp_path / "unused")
            assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("data", [b"", b"%PDF-1.7", bytes(range(256)) * 40, os.urandom(FILE_BYTES_MAX)], ids=len)
@async_test
async def test_a_stored_file_is_read_back_unchanged(storage: Storage, data: bytes) -> None:
    await storage.put(_key(data), data)
    assert await storage.get(_key(data)) == data


@async_test
async def test_an_unknown_key_has_no_file(storage: Storage) -> None:
    await storage.put(_key(b"one"), b"one")
    assert await storage.get(_key(b"two")) is None
    assert await storage.get(_key(b"one", org=secrets.token_hex(16))) is None


@async_test
async def test_a_deleted_file_is_gone_and_the_others_stay(storage: Storage) -> None:
    for data in (b"one", b"two"):
        await storage.put(_key(data), data)
    for _ in range(2):
        await storage.delete(_key(b"one"))
    assert await storage.get(_key(b"one")) is None
    assert await storage.get(_key(b"two")) == b"two"


@async_test
async def test_storing_a_file_again_changes_nothing(storage: Storage) -> None:
    for _ in range(2):
        await storage.put(_key(b"one"), b"one")
        assert await storage.get(_key(b"one")) == b"one"


@async_test
async def test_simultaneous_writes_of_the_same_file_all_succeed(storage: Storage) -> None:
    data = os.urandom(100_000)
    await asyncio.gather(*(storage.put(_key(data), data) for _ in range(20)))
    assert await storage.get(_key(data)) == data


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ab",
        "ab/",
        "/ab",
        "ab//cd",
        "ab/cd/ef",
        "ab/./cd",
        "ab/../cd",
        "../ab/cd",
        "ab/cd%2e",
        "ab/cd?x",
        "ab\\cd",
        "ab/cd\n",
        "ab/cd\0",
        "AB/CD",
        "\u0660/\u0660",
        "ab/" + "a" * 200,
    ],
)
@async_test
async def test_a_key_that_is_not_two_hexadecimal_numbers_is_refused(storage: Storage, key: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        await storage.put(key, b"x")
    with pytest.raises(ValueError, match="hexadecimal"):
        await storage.get(key)


@async_test
async def test_a_file_in_a_folder_survives_a_restart(tmp_path: Path) -> None:
    await open_storage(None, tmp_path).put(_key(b"one"), b"one")
    assert await open_storage(None, tmp_path).get(_key(b"one")) == b"one"


@async_test
async def test_a_file_and_its_folders_are_flushed_before_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.add(os.fstat(descriptor).st_ino))
    await open_storage(None, tmp_path).put(_key(b"one"), b"one")
    file = tmp_path / _key(b"one")
    assert flushed == {path.stat().st_ino for path in (file, file.parent, tmp_path)}


@async_test
async def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    data = os.urandom(FILE_BYTES_MAX)
    file = tmp_path / _key(data)
    done = asyncio.Event()
    sizes: set[int] = set()

    def read_size() -> None:
        try:
            sizes.add(len(file.read_bytes()))
        except FileNotFoundError:
            sizes.add(-1)

    async def watch() -> None:
        while not done.is_set():
            await asyncio.to_thread(read_size)

    watching = asyncio.create_task(watch())
    while -1 not in sizes:
        await asyncio.sleep(0)
    for _ in range(10):
        await open_storage(None, tmp_path).put(_key(data), data)
    done.set()
    await watching
    read_size()
    assert sizes == {-1, len(data)}


@async_test
async def test_the_leftover_of_a_killed_writer_is_ignored(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    await storage.put(_key(b"other"), b"other")
    (tmp_path / (_key(b"one") + "#1")).write_bytes(b"o")
    assert await storage.get(_key(b"one")) is None
    await storage.put(_key(b"one"), b"one")
    assert await storage.get(_key(b"one")) == b"one"


def test_only_its_owner_can_read_the_folder(tmp_path: Path) -> None:
    open_storage(None, tmp_path / "data" / "files")
    assert stat.S_IMODE((tmp_path / "data" / "files").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_created_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "files"):
        with pytest.raises(StorageError, match="folder"):
            open_storage(None, folder)


@async_test
async def test_the_error_of_a_failing_folder_hides_its_path(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    (tmp_path / ORG).write_bytes(b"a file where a folder should be")
    for operation in (storage.put(_key(b"one"), b"one"), storage.get(_key(b"one"))):
        with pytest.raises(StorageError) as caught:
            await operation
        assert str(tmp_path) not in "".join(traceback.format_exception(caught.value))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@async_test
async def test_an_unreadable_folder_is_reported(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    await storage.put(_key(b"one"), b"one")
    (tmp_path / ORG).chmod(0)
    try:
        with pytest.raises(StorageError):
            await storage.get(_key(b"one"))
        with pytest.raises(StorageError):
            await storage.put(_key(b"one"), b"one")
    finally:
        (tmp_path / ORG).chmod(0o700)


@async_test
async def test_the_path_names_the_bucket_and_the_prefix(bucket: Bucket, tmp_path: Path) -> None:
    await open_storage(bucket.address, tmp_path).put(_key(b"one"), b"one")
    await open_storage(f"s3://receipts?endpoint={bucket.endpoint}/&region={REGION}", tmp_path).put("ab/cd", b"two")
    assert bucket.objects == {f"/receipts/of/tests/{_key(b'one')}": b"one", "/receipts/ab/cd": b"two"}


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
@async_test
async def test_wrong_credentials_are_reported_without_showing_them(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "WRONG")
    storage = open_storage(bucket.address, tmp_path)
    for operation in (storage.put(_key(b"one"), b"one"), storage.get(_key(b"one"))):
        with pytest.raises(StorageError, match="credentials") as caught:
            await operation
        text = "".join(traceback.format_exception(caught.value))
        assert not [secret for secret in (ACCESS_KEY, SECRET_KEY, "WRONG", bucket.endpoint) if secret in text]
    assert bucket.objects == {}


@async_test
async def test_an_unknown_bucket_is_reported(bucket: Bucket, tmp_path: Path) -> None:
    storage = open_storage(f"s3://nowhere?endpoint={bucket.endpoint}&region={REGION}", tmp_path)
    with pytest.raises(StorageError):
        await storage.put(_key(b"one"), b"one")


@async_test
async def test_a_failing_bucket_is_retried(bucket: Bucket, tmp_path: Path) -> None:
    storage = open_storage(bucket.address, tmp_path)
    bucket.failures = 1
    await storage.put(_key(b"one"), b"one")
    bucket.failures = 1
    assert await storage.get(_key(b"one")) == b"one"


@async_test
async def test_a_bucket_that_keeps_failing_is_given_up(bucket: Bucket, tmp_path: Path) -> None:
    bucket.failures = 1_000
    with pytest.raises(StorageError):
        await open_storage(bucket.address, tmp_path).put(_key(b"one"), b"one")
    assert 1 < bucket.requests < 10


@async_test
async def test_a_truncated_answer_is_not_a_file(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.storage.TIMEOUT_SECONDS", 2.0)
    storage = open_storage(bucket.address, tmp_path)
    await storage.put(_key(b"one"), b"one")
    bucket.truncates_answers = True
    with pytest.raises(StorageError):
        await storage.get(_key(b"one"))


@async_test
async def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    storage = open_storage(f"s3://receipts?endpoint=http://127.0.0.1:{free_port()}&region={REGION}", tmp_path)
    for operation in (storage.put(_key(b"one"), b"one"), storage.get(_key(b"one"))):
        with pytest.raises(StorageError):
            await operation


@async_test
async def test_a_server_that_never_answers_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.storage.TIMEOUT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        storage = open_storage(f"s3://receipts?endpoint=http://127.0.0.1:{port}&region={REGION}", tmp_path)
        for operation in (storage.put(_key(b"one"), b"one"), storage.get(_key(b"one"))):
            with pytest.raises(StorageError):
                await operation


@async_test
async def test_an_unencrypted_endpoint_is_used_only_if_the_url_names_it(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    with pytest.raises(StorageError):
        await open_storage(f"s3://receipts?region={REGION}", tmp_path).put(_key(b"one"), b"one")
    assert bucket.requests == 0


@async_test
async def test_only_the_endpoint_in_the_url_is_called(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_bucket() as other:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other.endpoint)
        monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
        await open_storage(bucket.address, tmp_path).put(_key(b"one"), b"one")
        assert (bucket.requests, other.requests) == (1, 0)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", other.endpoint)
        with pytest.raises(StorageAddressError, match="AWS_ENDPOINT_URL_S3"):
            open_storage(bucket.address, tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "receipts",
        "/receipts",
        "file:///receipts",
        "gs://receipts",
        "https://receipts.example",
        "s3://",
        "s3:///receipts",
        "s3://a",
        "s3://receipts:9000",
        "s3://user:hunter2@receipts",
        "s3://receipts/../other",
        "s3://receipts//of",
        "s3://receipts/%2e%2e",
        "s3://receipts#hunter2",
        "s3://receipts?secret_access_key=hunter2",
        "s3://receipts?region=eu-1&region=hunter2",
        "s3://receipts?region=",
        "s3://receipts?region=eu 1",
        "s3://receipts?endpoint=",
        "s3://receipts?endpoint=127.0.0.1:9000",
        "s3://receipts?endpoint=ftp://127.0.0.1",
        "s3://receipts?endpoint=http://user:hunter2@127.0.0.1",
        "s3://receipts?endpoint=http://127.0.0.1:9000?x=hunter2",
        "s3://receipts?endpoint=http://",
    ],
)
def test_an_unusable_url_is_reported_without_showing_it(url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageAddressError) as caught:
        open_storage(url, tmp_path / "files")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert not (tmp_path / "files").exists()


@pytest.mark.parametrize(
    "url",
    [
        "s3://receipts",
        "s3://receipts/",
        "s3://receipts/of/2027/",
        "s3://receipts.of.acme?region=eu-central-1",
        "s3://receipts?endpoint=https%3A%2F%2Fstorage.example%2Fs3",
        "s3://receipts?endpoint=http://[::1]:9000",
    ],
)
def test_a_valid_url_is_accepted(url: str, tmp_path: Path) -> None:
    open_storage(url, tmp_path / "files")
    assert not (tmp_path / "files").exists()


@given(st.text())
@example("&&")
def test_any_storage_url_is_accepted_or_refused(text: str) -> None:
    for url in (text, f"s3://receipts{text}", f"s3://receipts?endpoint=http://{text}"):
        assert isinstance(_open_or_refuse(url), S3Storage | StorageAddressError)


def _open_or_refuse(url: str) -> Storage | StorageAddressError:
    try:
        return open_storage(url, Path("/nowhere"))
    except StorageAddressError as error:
        return error
