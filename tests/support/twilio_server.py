"""An SMS provider on loopback that speaks Twilio's API for messages, and keeps what it accepts.

It refuses what Twilio refuses, with Twilio's status, code and message, which names the phone number.
"""

import base64
import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import msgspec

ACCOUNT = "AC" + "0123456789abcdef" * 2
TOKEN = "a-token-of-the-account"
SENDER = "+15005550006"
BODY_MAX = 1_600


class SentSms(msgspec.Struct, frozen=True):
    to: str
    sender: str
    text: str


class Answer(msgspec.Struct, frozen=True):
    status: int
    code: int | None = None
    message: str = ""
    retry_after: str | None = None


class TwilioServer:
    """`answers` replace the next answers. `unsubscribed` numbers have sent STOP."""

    def __init__(self) -> None:
        self.sent: list[SentSms] = []
        self.requests = 0
        self.answers: list[Answer] = []
        self.unsubscribed: set[str] = set()
        self.host = ""

    @property
    def url(self) -> str:
        return f"twilio+http://{ACCOUNT}:{TOKEN}@{self.host}?from={SENDER}"

    def texts_to(self, phone: str) -> list[str]:
        return [sms.text for sms in self.sent if sms.to == phone]

    def answer(self, path: str, authorization: str, content_type: str, body: str) -> Answer:
        self.requests += 1
        if self.answers:
            return self.answers.pop(0)
        expected = "Basic " + base64.b64encode(f"{ACCOUNT}:{TOKEN}".encode()).decode()
        if authorization != expected:
            return Answer(401, 20003, "Authenticate")
        if path == f"/2010-04-01/Accounts/{ACCOUNT}.json":
            return Answer(200)
        if path != f"/2010-04-01/Accounts/{ACCOUNT}/Messages.json":
            return Answer(404, 20404, f"The requested resource {path} was not found")
        if content_type != "application/x-www-form-urlencoded":
            return Answer(400, 21604, "A 'To' phone number is required.")
        return self._accept({name: values[0] for name, values in parse_qs(body).items()})

    def _accept(self, form: dict[str, str]) -> Answer:
        to, text = form.get("To", ""), form.get("Body", "")
        sender = form.get("From") or form.get("MessagingServiceSid", "")
        if not re.fullmatch(r"\+[1-9]\d{6,14}", to):
            return Answer(400, 21211, f"The 'To' number {to} is not a valid phone number.")
        if not sender:
            return Answer(400, 21603, "A 'From' phone number is required.")
        if not text or len(text) > BODY_MAX:
            return Answer(400, 21617, "The concatenated message body exceeds the 1600 character limit")
        if to in self.unsubscribed:
            return Answer(400, 21610, f"Attempt to send to unsubscribed recipient {to}")
        self.sent.append(SentSms(to, sender, text))
        return Answer(201)


@contextmanager
def twilio_server() -> Iterator[TwilioServer]:
    twilio = TwilioServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            answer = twilio.answer(
                self.path, self.headers.get("authorization", ""), self.headers.get("content-type", ""), body
            )
            document: dict[str, Any] = {"sid": "SM" + secrets.token_hex(16), "status": "queued", "error_code": None}
            if answer.status >= 400:
                document = {"code": answer.code, "message": answer.message, "status": answer.status}
            content = json.dumps(document).encode()
            self.send_response(answer.status)
            if answer.retry_after is not None:
                self.send_header("retry-after", answer.retry_after)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        twilio.host = f"127.0.0.1:{http.server_port}"
        try:
            yield twilio
        finally:
            http.shutdown()
            thread.join()
