"""A server behind a proxy serves everything that the proxy has sent before it stops."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.harness import Server, fresh_database, running_server, wait_until
from tests.support.raw_http import read_response, request_head

# In a process of its own, because it affects all listening sockets of a process.
IGNORE = """
import socket
from holdfast.api.drain import count_backlog, ignore_new_connections

listener = socket.create_server(("127.0.0.1", 0))
early = socket.create_connection(listener.getsockname())
early.sendall(b"early")
ignore_new_connections()
assert count_backlog() == 1
try:
    socket.create_connection(listener.getsockname(), timeout=0.5)
    raise SystemExit("a new connection was accepted")
except TimeoutError:
    pass
accepted, _ = listener.accept()
assert accepted.recv(5) == b"early"
assert count_backlog() == 0
early.sendall(b"later")
assert accepted.recv(5) == b"later"
"""
REQUEST = request_head("GET", b"/healthz", [])
SECONDS = 60


@contextmanager
def _stopping_server(postgres: str, proxies: str) -> Iterator[tuple[Server, socket.socket]]:
    """A server that has been asked to stop, and a connection that was idle at that moment."""
    with fresh_database(postgres) as url, running_server(url, workers=1, HOLDFAST_PROXIES=proxies) as server:
        with socket.create_connection(("127.0.0.1", server.port), SECONDS) as idle:
            idle.sendall(REQUEST)
            first = read_response(idle)
            assert first is not None
            assert "connection" not in first.headers
            server.process.terminate()
            yield server, idle


def _is_stopping(server: Server) -> bool:
    """A stopping server still answers on new connections, and says that it is not ready."""
    answer = httpx.get(f"{server.url}/readyz", timeout=SECONDS)
    assert answer.status_code in (200, 503)
    return answer.status_code == 503 and "stopping" in answer.json()["detail"]


def test_a_request_on_an_idle_connection_is_answered_while_the_server_stops(postgres: str) -> None:
    with _stopping_server(postgres, "1") as (server, idle):
        wait_until(lambda: _is_stopping(server), SECONDS)
        idle.sendall(REQUEST)
        answer = read_response(idle)
        assert answer is not None
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert idle.recv(1) == b"", "the server closes the connection after its answer"
        assert server.process.wait(SECONDS) == 0


def test_connections_that_are_opened_while_the_server_stops_are_served_or_refused(postgres: str) -> None:
    answers = 0
    with _stopping_server(postgres, "1") as (server, idle):
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", server.port), SECONDS)
            except ConnectionRefusedError:
                break
            with connection:
                connection.sendall(REQUEST)
                answer = read_response(connection)
                assert answer is not None, "the server accepted a connection and lost its request"
                assert answer.status_code == 200
                answers += 1
            if answers == 50:
                idle.close()
    assert answers >= 50


def test_a_stopping_server_serves_waiting_connections_and_ignores_new_ones() -> None:
    done = subprocess.run([sys.executable, "-c", IGNORE], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_without_a_proxy_does_not_wait_for_idle_connections(postgres: str) -> None:
    """The control: this is how the request above gets lost."""
    with _stopping_server(postgres, "0") as (server, idle):
        assert idle.recv(1) == b""
        assert server.process.wait(SECONDS) == 0
