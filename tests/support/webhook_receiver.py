"""An HTTP server on loopback that keeps the webhook events it receives."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from standardwebhooks import Webhook, WebhookVerificationError


class ReceivedWebhook(msgspec.Struct, frozen=True):
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        return str(self.document["type"])

    def is_signed_with(self, secret: str) -> bool:
        try:
            Webhook(secret).verify(self.body, self.headers)
        except WebhookVerificationError:
            return False
        return True


class WebhookReceiver:
    """Keeps every webhook event and answers with `status`."""

    def __init__(self) -> None:
        self.received: list[ReceivedWebhook] = []
        self.status = 204
        self.url = ""

    def kinds_of(self, booking: str) -> list[str]:
        """The kinds of webhook events it received about a booking."""
        return [webhook.kind for webhook in self.received if webhook.document["data"].get("booking") == booking]


@contextmanager
def running_webhook_receiver() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.received.append(
                ReceivedWebhook({name.lower(): value for name, value in self.headers.items()}, body)
            )
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        receiver.url = f"http://127.0.0.1:{http.server_port}/hook"
        try:
            yield receiver
        finally:
            http.shutdown()
            thread.join()
