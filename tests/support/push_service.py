"""A push service on loopback, and browsers that subscribe to it.

As real services do, it takes only requests that follow RFC 8030 and carry a token of the key that the browser
subscribed with (RFC 8292). It then decrypts the message with the browser's keys (RFC 8291), as the browser would.
"""

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import http_ece
import httpx
import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from holdfast.notifications.push_subscriptions import PushSubscription
from holdfast.runtime import ids
from tests.support.certificates import make_certificate
from tests.support.harness import Server, fresh_database, query, running_server
from tests.support.html_client import get_page, same_origin_headers

TOKEN_SECONDS_MAX = 24 * 3600
JSON = {"Accept": "application/json"}


class PushedMessage(msgspec.Struct, frozen=True):
    content: dict[str, str]
    ttl_seconds: int
    sender: str
    topic: str


class SubscribedBrowser:
    """A browser's half of a subscription. `server_key` is the key that it accepts messages from."""

    def __init__(self, endpoint: str, server_key: str) -> None:
        self.endpoint = endpoint
        self.server_key = server_key
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.point = self.private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.auth = secrets.token_bytes(16)
        self.messages: list[PushedMessage] = []

    def form(self) -> dict[str, str]:
        """As a page sends it."""
        return {"endpoint": self.endpoint, "p256dh": encode(self.point), "auth": encode(self.auth)}

    def subscription(self, key_number: int, language: str = "en") -> PushSubscription:
        return PushSubscription(
            endpoint=self.endpoint, p256dh=self.point, auth=self.auth, key_number=key_number, language=language
        )


class PushService:
    """`answers` replace the next statuses, with the value of `Retry-After`."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.browsers: dict[str, SubscribedBrowser] = {}
        self.answers: list[tuple[int, str | None]] = []
        self.refusals: list[str] = []
        self.connections = 0

    @property
    def host(self) -> str:
        """As `HOLDFAST_PUSH_SERVICES` names it."""
        return self.origin.removeprefix("https://")

    def new_browser(self, server_key: str) -> SubscribedBrowser:
        path = f"/wpush/v2/{secrets.token_urlsafe(24)}"
        browser = self.browsers[path] = SubscribedBrowser(self.origin + path, server_key)
        return browser

    def receive(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str | None]:
        if self.answers:
            return self.answers.pop(0)
        browser = self.browsers.get(path)
        if browser is None:
            return 410, None
        try:
            browser.messages.append(self._read(browser, headers, body))
        except Exception as error:
            self.refusals.append(f"{type(error).__name__}: {error}")
            return 403 if isinstance(error, jwt.InvalidTokenError) else 400, None
        return 201, None

    def _read(self, browser: SubscribedBrowser, headers: dict[str, str], body: bytes) -> PushedMessage:
        assert headers["content-encoding"] == "aes128gcm"
        assert len(body) <= 4_096
        assert len(headers.get("topic", "")) <= 32
        scheme, _, parameters = headers["authorization"].partition(" ")
        assert scheme == "vapid"
        values = dict(part.strip().split("=", 1) for part in parameters.split(","))
        if values["k"] != browser.server_key:
            raise jwt.InvalidTokenError("the key is not the one of the subscription")
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode(values["k"]))
        claims = jwt.decode(values["t"], key, algorithms=["ES256"], audience=self.origin, options={"require": ["exp"]})
        if claims["exp"] > time.time() + TOKEN_SECONDS_MAX:
            raise jwt.InvalidTokenError("the token lasts too long")
        content = http_ece.decrypt(
            body, private_key=browser.private, auth_secret=browser.auth, version=headers["content-encoding"]
        )
        return PushedMessage(json.loads(content), int(headers["ttl"]), claims["sub"], headers.get("topic", ""))


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@contextmanager
def push_service(folder: Path) -> Iterator[PushService]:
    """The folder gets the file `certificate`, which clients have to trust."""
    tls = make_certificate(folder, "localhost")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, retry_after = service.receive(self.path, headers, body)
            self.send_response(status)
            if retry_after is not None:
                self.send_header("retry-after", retry_after)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        def get_request(self) -> Any:
            """The handshake happens in the thread of the connection, so a client that breaks it off harms nobody."""
            connection, address = super().get_request()
            service.connections += 1
            return tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    with Server(("127.0.0.1", 0), Handler) as http:
        service = PushService(f"https://localhost:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield service
        finally:
            http.shutdown()
            thread.join()


@contextmanager
def push_service_and_server(postgres: str, folder: Path) -> Iterator[tuple[PushService, Server]]:
    """A server with a worker whose pages offer push messages, and the only push service that it trusts."""
    with push_service(folder) as service, fresh_database(postgres) as url:
        environment = {
            "HOLDFAST_WEB_PUSH": "true",
            "HOLDFAST_PUSH_SERVICES": service.host,
            "HOLDFAST_EMAIL_FROM": "tickets@example.net",
            "SSL_CERT_FILE": str(folder / "fullchain.pem"),
        }
        with running_server(url, workers=1, worker=True, **environment) as server:
            yield service, server


def count_subscriptions(server: Server, booking: str) -> int:
    """Of the booking with this public id, or at this path."""
    parsed = ids.parse_booking_id(booking.rpartition("/")[2])
    assert parsed is not None
    statement = "SELECT count(*) FROM push_subscription WHERE event_id = $1 AND booking_id = $2"
    count: int = query(server.database_url, statement, *parsed)[0][0]
    return count


def push_form(buyer: httpx.Client, service: PushService, booking: str) -> tuple[SubscribedBrowser, dict[str, str]]:
    """A new browser, and what the page's script would send to subscribe it."""
    page = get_page(buyer, booking)
    browser = service.new_browser(page.data["push"]["key"])
    fields = {**page.form("/notify").fields, **browser.form(), "key_number": str(page.data["push"]["keyNumber"])}
    return browser, fields


def post_subscription(buyer: httpx.Client, booking: str, fields: dict[str, str], **headers: str) -> httpx.Response:
    return buyer.post(f"{booking}/notify", data=fields, headers={**same_origin_headers(buyer), **JSON, **headers})


def subscribe_on_page(buyer: httpx.Client, service: PushService, booking: str) -> SubscribedBrowser:
    browser, fields = push_form(buyer, service, booking)
    response = post_subscription(buyer, booking, fields)
    assert (response.status_code, response.json()) == (200, {"subscribed": True})
    return browser
