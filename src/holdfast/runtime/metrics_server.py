"""Serves `/metrics` of a worker or a bot, which have no HTTP server of their own, in a thread."""

import socket
import threading
from collections import deque
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from msgspec import Struct

from holdfast.runtime.exporter import CONTENT_TYPE, Exporter
from holdfast.runtime.instruments import stop_recording
from holdfast.runtime.metrics_access import refusal
from holdfast.runtime.settings import Settings

PATH: Final = "/metrics"
PORT_MAX: Final = 65_535
IDLE_SECONDS: Final = 2.0
# A scrape takes milliseconds. Above this number of connections, the server closes the oldest, whose client is stuck.
CONNECTIONS_MAX: Final = 16


class MetricsAddress(Struct, frozen=True):
    """Where to serve the metrics, as in `127.0.0.1:9101` or `[::1]:9101`."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "MetricsAddress":
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= PORT_MAX:
            raise ValueError(f"{text} is not an address. Write it as HOST:PORT, such as 127.0.0.1:9101.")
        return cls(host, int(port))


class CannotListenError(Exception):
    """Another program uses the address, or it is not one of this machine."""


def open_exporter(
    kind: str, settings: Settings, address: MetricsAddress | None, resources: AsyncExitStack
) -> Exporter | None:
    """The exporter of a process of this kind, unless metrics are off. With an address, serve its metrics there."""
    if not settings.metrics:
        stop_recording()
        return None
    exporter = Exporter(kind)
    if address is not None:
        resources.callback(MetricsServer(exporter, address, settings.metrics_token).close)
    return exporter


class MetricsServer:
    def __init__(self, exporter: Exporter, address: MetricsAddress, token: str | None) -> None:
        try:
            self._server = _Server(address.host, address.port, exporter, token)
        except OSError as error:
            raise CannotListenError(
                f"Cannot serve metrics on port {address.port} of {address.host}: {error.strerror}."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, exporter: Exporter, token: str | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.exporter = exporter
        self.token = token
        self._connections: deque[socket.socket] = deque()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        if len(self._connections) > CONNECTIONS_MAX:
            with suppress(OSError):
                self._connections.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with suppress(ValueError):
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """A client that goes away concerns nobody."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        names = {name.lower() for name in self.headers}
        reason = refusal(self.server.token, self.headers.get("authorization", ""), str(self.client_address[0]), names)
        if self.path.partition("?")[0] != PATH:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"The metrics are at /metrics.\n")
        elif reason is not None:
            status = HTTPStatus.FORBIDDEN if self.server.token is None else HTTPStatus.UNAUTHORIZED
            self._answer(status, "text/plain; charset=utf-8", f"{reason}\n".encode())
        else:
            self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.exporter.render())

    def log_message(self, *_: object) -> None:
        """Scrapes are no news."""

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
