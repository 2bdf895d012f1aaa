"""One address cannot keep more connections open than its share, and an idle connection ends."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from holdfast.api import connection_guard
from holdfast.api.connection_guard import UNREAD_SECONDS, ConnectionGuard
from holdfast.runtime.settings import Settings
from holdfast.runtime.supervision import TaskHealth
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    publish_event,
    running_server,
    wait_until,
)

PER_ADDRESS = 10
SOCKETS_PER_ADDRESS = 3
GUARDED_ADDRESS = "127.0.0.5"
END_SECONDS = 20


@pytest.fixture(scope="module")
def guarded(postgres: str) -> Iterator[Server]:
    with (
        fresh_database(postgres) as url,
        running_server(
            url,
            workers=1,
            HOLDFAST_CONNECTIONS_PER_ADDRESS=str(PER_ADDRESS),
            HOLDFAST_LIVE_SOCKETS_PER_ADDRESS=str(SOCKETS_PER_ADDRESS),
            HOLDFAST_IDLE_SECONDS="1",
        ) as server,
    ):
        yield server


@contextmanager
def _connections(server: Server, source: str, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), END_SECONDS, source_address=(source, 0))
            )
            for _ in range(count)
        ]


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /healthz HTTP/1.1\r\nHo", b"GET /healthz HTTP/1.1\r\nHost: holdfast\r\n\r\n"],
    ids=["silent", "half a header", "idle after a request"],
)
def test_a_connection_that_does_nothing_ends(guarded: Server, sent: bytes) -> None:
    with _connections(guarded, "127.0.0.2", 1) as (connection,):
        connection.sendall(sent)
        while connection.recv(4096):
            continue


def test_one_address_keeps_only_its_share_of_connections(postgres: str) -> None:
    with (
        fresh_database(postgres) as url,
        running_server(url, workers=1, HOLDFAST_CONNECTIONS_PER_ADDRESS=str(PER_ADDRESS)) as server,
        _connections(server, "127.0.0.3", 5 * PER_ADDRESS) as greedy,
        _connections(server, "127.0.0.4", PER_ADDRESS) as modest,
    ):
        wait_until(lambda: sum(map(_has_ended, greedy)) == 4 * PER_ADDRESS, END_SECONDS)
        assert not any(map(_has_ended, modest))


class NoWatchers:
    clients: frozenset[tuple[str, int]] = frozenset()


@contextmanager
def _accepted(listener: socket.socket, count: int) -> Iterator[list[socket.socket]]:
    """The client's side of connections that this process has accepted.

    They come from an address that no other test uses, because the guard sees all connections of the process."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(listener.getsockname(), source_address=(GUARDED_ADDRESS, 0)))
            for _ in range(count)
        ]
        for _ in range(count):
            stack.enter_context(listener.accept()[0])
        yield clients


def _guard(settings: Settings) -> ConnectionGuard:
    return ConnectionGuard(settings, NoWatchers(), TaskHealth())


def test_the_first_connections_of_an_address_stay_whatever_comes_later() -> None:
    guard = _guard(Settings(connections_per_address=3))
    with socket.create_server(("127.0.0.1", 0)) as listener, _accepted(listener, 3) as first:
        guard.sweep(frozenset())
        with _accepted(listener, 5) as later:
            guard.sweep(frozenset())
            assert all(map(_has_ended, later))
        assert not any(map(_has_ended, first))


def test_the_connections_of_a_proxy_are_not_counted() -> None:
    guard = _guard(Settings(connections_per_address=3, proxies=1))
    with socket.create_server(("127.0.0.1", 0)) as listener, _accepted(listener, 10) as connections:
        guard.sweep(frozenset())
        assert not any(map(_has_ended, connections))


def test_a_watcher_that_sends_too_much_is_cut_off_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_guard, "LIVE_RECEIVED_BYTES_MAX", 1_000)
    guard = _guard(Settings())
    with socket.create_server(("127.0.0.1", 0)) as listener, _accepted(listener, 3) as connections:
        talkative, quiet, no_watcher = connections
        watching = frozenset({talkative.getsockname(), quiet.getsockname()})
        talkative.sendall(bytes(2_000))
        no_watcher.sendall(bytes(2_000))
        quiet.sendall(bytes(500))

        def is_cut_off() -> bool:
            guard.sweep(watching)
            return _has_ended(talkative)

        wait_until(is_cut_off, END_SECONDS)
        assert not _has_ended(quiet)
        assert not _has_ended(no_watcher)


def _watch(server: Server, event: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}/v1/events/{event}/live", proxy=None)


def test_one_address_gets_only_its_share_of_live_sockets(guarded: Server) -> None:
    with guarded.client(Org(guarded.database_url).headers()) as admin, ExitStack() as stack:
        event = publish_event(admin, example_event())
        for _ in range(SOCKETS_PER_ADDRESS):
            stack.enter_context(_watch(guarded, event))
        answer = admin.get(
            f"/v1/events/{event}/live",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )
        assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")


def test_a_watcher_that_sends_a_large_message_is_cut_off_before_it_ends(guarded: Server) -> None:
    with guarded.client(Org(guarded.database_url).headers()) as admin:
        event = publish_event(admin, example_event())
    with _watch(guarded, event) as feed:
        feed.recv()
        # A message that never ends: no part of it is the last one.
        first, more = (opcode + b"\xfe\x10\x00\0\0\0\0" + b"x" * 4096 for opcode in (b"\x01", b"\x00"))
        feed.socket.sendall(first + more * 100)
        with pytest.raises(ConnectionClosed):
            feed.recv(timeout=END_SECONDS)


def _fill(connection: socket.socket) -> None:
    """Send until nothing fits into the buffers."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            connection.send(b"x" * 65_536)


def test_a_client_that_does_not_read_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, clock = _guard(Settings()), [1000.0]
    monkeypatch.setattr(connection_guard, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(2)]
        of_reading, of_silent = (stack.enter_context(listener.accept()[0]) for _ in clients)
        reading, _ = clients
        for _ in range(4):
            _fill(of_reading)
            _fill(of_silent)
            guard.sweep(frozenset())
            assert reading.recv(16 * 1024 * 1024)
            clock[0] += UNREAD_SECONDS * 0.4
        guard.sweep(frozenset())
        with pytest.raises(BrokenPipeError):
            of_silent.send(b"x")
        _fill(of_reading)
