"""A large response goes out in pieces: everyone else gets a turn in between, and unread ones do not fill the memory."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest
from starlette.types import Message
from structlog.testing import capture_logs

from holdfast.api import body_sender
from holdfast.api.body_sender import PIECE_BYTES, BodySender, PacedSend
from tests.support.engine_harness import async_test
from tests.support.harness import Org, Server, example_event, fresh_database, publish_event, running_server, wait_until
from tests.support.http_assertions import expect_ok
from tests.support.raw_http import request_head

SEATS = 100_000
READERS = 60
# Each reader would keep a copy of the seat map in memory.
MEMORY_BYTES_MAX = 150 * 2**20


class Browser:
    """Collects the pieces that it is sent, and disconnects after some of them."""

    def __init__(self, leaves_after: int | None = None) -> None:
        self.messages: list[Message] = []
        self._leaves_after = leaves_after
        self._gone = asyncio.Event()
        self._has_body = True

    async def receive(self) -> Message:
        if self._has_body:
            self._has_body = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        if len(self.messages) == self._leaves_after:
            self._gone.set()

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages)


@async_test
async def test_a_large_body_arrives_whole_and_in_order() -> None:
    browser = Browser()
    parts = (b"a" * 10, bytes(range(256)) * 2_000, b"", b"z" * PIECE_BYTES)
    await BodySender().send(parts, browser.receive, browser.send)
    assert browser.body == b"".join(parts)
    assert max(len(message["body"]) for message in browser.messages) <= PIECE_BYTES
    assert [message.get("more_body", False) for message in browser.messages] == [True] * 4 + [False]


@async_test
async def test_everything_else_gets_a_turn_between_two_pieces_of_many_bodies() -> None:
    sender, turns, sent_in = BodySender(), [0], list[int]()

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def send(message: Message) -> None:
        if message["body"]:
            sent_in.append(turns[0])

    counting = asyncio.create_task(count_turns())
    await asyncio.gather(*(sender.send((bytes(3 * PIECE_BYTES),), Browser().receive, send) for _ in range(20)))
    counting.cancel()
    assert len(sent_in) == len(set(sent_in)) == 60


@async_test
async def test_nothing_more_is_sent_to_a_client_that_has_gone() -> None:
    browser = Browser(leaves_after=3)
    await BodySender().send((bytes(50 * PIECE_BYTES),), browser.receive, browser.send)
    assert len(browser.messages) < 6


@async_test
async def test_a_slow_client_does_not_delay_the_bodies_of_others() -> None:
    sender, slow, fast = BodySender(), Browser(), Browser()
    reads = asyncio.Event()

    async def send_slowly(message: Message) -> None:
        await reads.wait()
        await slow.send(message)

    sending = asyncio.create_task(sender.send((bytes(3 * PIECE_BYTES),), slow.receive, send_slowly))
    await sender.send((bytes(3 * PIECE_BYTES),), fast.receive, fast.send)
    assert not slow.messages
    reads.set()
    await sending
    assert slow.body == fast.body


@async_test
async def test_a_client_that_takes_too_long_for_a_piece_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_sender, "PIECE_SECONDS", 0.05)
    browser = Browser()

    async def send(message: Message) -> None:
        await browser.send(message)
        if len(browser.messages) == 2:
            await asyncio.Event().wait()

    with capture_logs() as logs:
        await BodySender().send((bytes(5 * PIECE_BYTES),), browser.receive, send)
    assert len(browser.messages) == 2
    assert [entry["event"] for entry in logs] == ["response_not_read"]


@async_test
async def test_a_large_page_goes_out_in_pieces_too() -> None:
    browser = Browser()
    send = PacedSend(BodySender(), browser.receive, browser.send)
    start: Message = {"type": "http.response.start", "status": 200, "headers": []}
    small: Message = {"type": "http.response.body", "body": b"small"}
    await send(start)
    await send(small)
    assert browser.messages == [start, small]
    browser.messages.clear()
    await send({"type": "http.response.body", "body": bytes(PIECE_BYTES + 1)})
    assert [len(message["body"]) for message in browser.messages] == [PIECE_BYTES, 1, 0]


@async_test
async def test_a_large_part_of_a_stream_does_not_end_the_response() -> None:
    browser = Browser()
    send = PacedSend(BodySender(), browser.receive, browser.send)
    await send({"type": "http.response.body", "body": bytes(PIECE_BYTES + 1), "more_body": True})
    assert [message.get("more_body", False) for message in browser.messages] == [True, True]
    await send({"type": "http.response.body", "body": bytes(PIECE_BYTES + 1)})
    assert [message.get("more_body", False) for message in browser.messages] == [True] * 4 + [False]


@pytest.fixture(scope="module")
def arena(postgres: str) -> Iterator[tuple[Server, str]]:
    """A server with one API process, and an event with as many seats as there can be."""
    with fresh_database(postgres) as url, running_server(url, workers=1) as server:
        with server.client(Org(url).headers()) as client:
            rows = [f"R{row}" for row in range(SEATS // 1_000)]
            pool = {**example_event()["pools"][0], "seats": {"rows": rows, "numbers": 1_000}}
            yield server, publish_event(client, example_event(pools=[pool]))


def test_the_seat_map_of_an_arena_arrives_whole(arena: tuple[Server, str]) -> None:
    server, event = arena
    with server.client() as client:
        answer = client.get(f"/v1/events/{event}/seats")
        assert len(answer.content) == int(answer.headers["content-length"])
        seats = expect_ok(answer)["seats"]
        assert len({seat["label"] for seat in seats}) == SEATS
        # The connection is still good.
        expect_ok(client.get("/healthz"))


def test_answers_that_nobody_reads_do_not_fill_the_memory(arena: tuple[Server, str]) -> None:
    server, event = arena
    path = f"/v1/events/{event}/seats"
    with server.client() as client, ExitStack() as connections:
        size = len(client.get(path).content)
        assert READERS * size > 3 * MEMORY_BYTES_MAX
        (pid,) = server.api_pids()
        process = psutil.Process(pid)
        before = process.memory_info().rss
        readers = [connections.enter_context(_connect(server)) for _ in range(READERS)]
        for reader in readers:
            reader.sendall(request_head("GET", path.encode(), []))
        wait_until(lambda: all(_has_answer(reader) for reader in readers), 20)
        _expect_answers(client, 50)
        assert process.memory_info().rss - before < MEMORY_BYTES_MAX


def _connect(server: Server) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    return connection


def _has_answer(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def _expect_answers(client: httpx.Client, count: int) -> None:
    for _ in range(count):
        expect_ok(client.get("/healthz"))
