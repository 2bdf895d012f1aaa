"""A real SMTP server on loopback that keeps every message it accepts."""

from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.support.harness import free_port


class Mailbox:
    """The accepted messages. `answers` replace the next replies to RCPT, DATA and QUIT."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.accepted: list[tuple[Envelope, Session]] = []
        self.messages: list[EmailMessage] = []

    def _answer(self, command: str, default_answer: str) -> str:
        scripted = self.answers.get(command)
        return scripted.pop(0) if scripted else default_answer

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        answer = self._answer("rcpt", "250 OK")
        if answer.startswith("2"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        answer = self._answer("data", "250 OK")
        if answer.startswith("2"):
            self.accepted.append((envelope, session))
            self.messages.append(message_from_bytes(envelope.original_content or b"", policy=default))
        return answer

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        return self._answer("quit", "221 Bye")


@contextmanager
def mail_server(mailbox: Mailbox, **options: Any) -> Iterator[str]:
    """Run a mail server and return its host and port."""
    controller = Controller(mailbox, hostname="127.0.0.1", port=free_port(), **options)
    controller.start()
    try:
        yield f"127.0.0.1:{controller.port}"
    finally:
        controller.stop()
