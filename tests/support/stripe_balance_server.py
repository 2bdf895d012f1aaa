"""As much of Stripe as a key check needs, on loopback: the balance of an account, with Stripe's own errors."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk_live_of_the_balance_server"
RESTRICTED_KEY = "rk_live_of_the_balance_server"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path != "/v1/balance":
            self._answer(404, {"error": {"type": "invalid_request_error", "message": "Unrecognized request URL"}})
        elif key == KEY:
            self._answer(200, {"object": "balance", "available": [], "pending": [], "livemode": True})
        elif key == RESTRICTED_KEY:
            self._answer(403, {"error": {"type": "invalid_request_error", "message": "The provided key lacks rights."}})
        else:
            self._answer(401, {"error": {"type": "invalid_request_error", "message": f"Invalid API Key: {key}"}})

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


@contextmanager
def running_balance_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
