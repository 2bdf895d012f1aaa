"""Requests that no HTTP client would send: raw bytes on a connection."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import httpx

ANSWER_SECONDS: Final = 20.0


def request_head(method: str, path: bytes, headers: Sequence[bytes]) -> bytes:
    return b"\r\n".join([method.encode() + b" " + path + b" HTTP/1.1", b"Host: holdfast", *headers, b"", b""])


def send_bytes(port: int, *parts: bytes, hang_up: bool = False) -> httpx.Response | None:
    """The response to these bytes, or None if the server only closed the connection. With `hang_up` the client stops
    sending before its request is complete."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as connection:
        # The server may answer and close before it has read everything.
        with suppress(OSError):
            connection.sendall(b"".join(parts))
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
        return read_response(connection)


def read_response(connection: socket.socket) -> httpx.Response | None:
    received = b""
    while b"\r\n\r\n" not in received:
        if not (more := _receive(connection)):
            return None
        received += more
    lines, _, body = received.partition(b"\r\n\r\n")
    first, *rest = lines.decode("latin-1").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in rest)]
    length = int(dict(headers).get("content-length", "0"))
    while len(body) < length and (more := _receive(connection)):
        body += more
    return httpx.Response(int(first.split(" ", 2)[1]), headers=headers, content=body[:length])


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def chunked_body(body: bytes, size: int) -> bytes:
    """The body in chunked transfer encoding."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
