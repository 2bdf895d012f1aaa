"""A stranger's body is never read, and a body that does not arrive is not waited for."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.types import Message

from holdfast.api.body_reader import BodyReader, UnreadBodyError
from holdfast.core.refusals import Refusal
from tests.support.engine_harness import async_test
from tests.support.harness import Org, Server, example_event
from tests.support.raw_http import request_head, send_bytes

JSON = b"Content-Type: application/json"
DECLARED_BYTES = 1_000


def _head(path: str, *headers: bytes) -> bytes:
    return request_head("POST", path.encode(), [JSON, b"Content-Length: %d" % DECLARED_BYTES, *headers])


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/v1/events", [], "unauthorized"),
        ("/v1/events", [b"Authorization: Bearer hf_sk_nobody"], "unauthorized"),
        ("/v1/events", [b"Authorization: Bearer " + b"x" * 5_000], "unauthorized"),
        ("/v1/events/ev_1/holds", [], "unauthorized"),
        ("/v1/customer-tokens", [], "unauthorized"),
    ],
)
def test_a_stranger_is_refused_before_the_body_arrives(
    server: Server, path: str, headers: list[bytes], code: str
) -> None:
    """The body never arrives, so a server that waited for it could not answer."""
    response = send_bytes(server.port, _head(path, *headers))
    assert response is not None
    assert response.json()["code"] == code
    assert response.headers["connection"] == "close"


def test_a_role_that_may_not_send_a_request_is_refused_before_the_body_arrives(server: Server, org: Org) -> None:
    authorization = f"Authorization: {org.headers('door')['Authorization']}".encode()
    response = send_bytes(server.port, _head("/v1/events", authorization))
    assert response is not None
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")


def test_a_hold_without_a_key_is_refused_before_the_body_arrives(server: Server, org: Org) -> None:
    authorization = f"Authorization: {org.headers('sales')['Authorization']}".encode()
    response = send_bytes(server.port, _head("/v1/events/ev_1/holds", authorization))
    assert response is not None
    assert response.json()["code"] == "idempotency_key_missing"


def test_a_query_string_that_is_too_long_is_refused(server: Server) -> None:
    with server.client() as client:
        answer = client.get("/v1/events?status=" + "x" * 10_000)
    assert answer.status_code == 422
    assert "at most 8,192 bytes" in answer.json()["detail"]


def test_a_connection_serves_many_requests_with_bodies(admin: httpx.Client) -> None:
    """The body is complete with its last byte; what the server sends after it must not get into the next request."""
    for _ in range(5):
        answer = admin.post("/v1/events", json=example_event())
        assert answer.status_code == 201
        assert "connection" not in answer.headers


class Client:
    """Sends the parts of a body, and then nothing more."""

    def __init__(self, *parts: bytes) -> None:
        self._messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        self.reads = 0

    async def receive(self) -> Message:
        self.reads += 1
        if self._messages:
            return self._messages.pop(0)
        await asyncio.get_running_loop().create_future()
        raise AssertionError


async def _read(reader: BodyReader, client: Client, **headers: bytes) -> bytes:
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return await asyncio.create_task(reader.read(named, client.receive, bytes_max=100))


@async_test
async def test_a_body_is_complete_with_its_last_byte() -> None:
    for parts in ((b"0123456789",), (b"01234", b"56789")):
        client = Client(*parts)
        assert await _read(BodyReader(), client, content_length=b"10") == b"0123456789"
        assert client.reads == len(parts)


@pytest.mark.parametrize("parts", [(), (b"01234",)], ids=["never starts", "never ends"])
@async_test
async def test_a_body_that_does_not_arrive_is_refused(parts: tuple[bytes, ...]) -> None:
    reader = BodyReader(body_seconds=0.05, sweep_seconds=0.01)
    with pytest.raises(UnreadBodyError) as raised:
        await _read(reader, Client(*parts), content_length=b"10")
    assert raised.value.refused.refusal is Refusal.INVALID_REQUEST
    with pytest.raises(UnreadBodyError):
        await _read(reader, Client(*parts), transfer_encoding=b"chunked")
    assert await _read(reader, Client(b"ok"), content_length=b"2") == b"ok"


@async_test
async def test_a_client_that_disconnects_is_not_taken_for_a_slow_one() -> None:
    reader = BodyReader(body_seconds=60, sweep_seconds=0.01)
    reading = asyncio.create_task(reader.read({b"content-length": b"10"}, Client().receive, 100))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@async_test
async def test_many_slow_bodies_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[object] = []
    loop = asyncio.get_running_loop()
    call_later: Callable[..., Any] = loop.call_later

    def count_timers(delay: float, callback: Callable[..., object], *values: object) -> Any:
        timers.append(callback)
        return call_later(delay, callback, *values)

    monkeypatch.setattr(loop, "call_later", count_timers)
    reader = BodyReader(body_seconds=60, sweep_seconds=60)
    readings = [asyncio.create_task(reader.read({b"content-length": b"10"}, Client().receive, 100)) for _ in range(100)]
    await asyncio.sleep(0)
    assert len(timers) == 1
    for reading in readings:
        reading.cancel()
    await asyncio.gather(*readings, return_exceptions=True)


@async_test
async def test_unfinished_bodies_share_a_limit() -> None:
    reader = BodyReader(buffered_bytes_max=1_000)

    def slow_client() -> Client:
        return Client(b"x" * 300, b"x" * 300)

    slow = [asyncio.create_task(_read_600(reader, client)) for client in (slow_client(), slow_client())]
    done, waiting = await asyncio.wait(slow, timeout=1, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(UnreadBodyError) as refused:
        await done.pop()
    assert refused.value.refused.refusal is Refusal.BUSY
    for reading in waiting:
        reading.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert reader._buffered_bytes == 0


async def _read_600(reader: BodyReader, client: Client) -> bytes:
    """A body that never ends: the client declares one byte more than it sends."""
    return await reader.read({b"content-length": b"601"}, client.receive, 10_000)


def test_a_webhook_event_of_an_unknown_provider_is_not_read(server: Server) -> None:
    answer = send_bytes(server.port, _head("/v1/webhooks/nobody"))
    assert answer is not None
    assert (answer.status_code, answer.headers["connection"]) == (404, "close")


@pytest.mark.parametrize(("path", "status"), [("/v1/nowhere", 404), ("/v1/orders", 404), ("/healthz", 405)])
def test_a_connection_with_an_unread_body_closes(server: Server, path: str, status: int) -> None:
    answer = send_bytes(server.port, _head(path))
    assert answer is not None
    assert (answer.status_code, answer.headers["connection"]) == (status, "close")
