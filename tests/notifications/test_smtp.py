"""Messages reach the mail server, or the caller learns whether to retry; passwords and addresses do not leak."""

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import traceback
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.notifications import smtp
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.smtp import Smtp, SmtpUrlError
from tests.support.harness import free_port
from tests.support.mail_server import Mailbox, mail_server

BUYER = "ana.buyer@example.org"
PASSWORD = "se/cr@t:ñ"  # written as in a URL: se%2Fcr%40t%3A%C3%B1
LOGIN = "shop:se%2Fcr%40t%3A%C3%B1"


def send(url: str, message: EmailMessage) -> None:
    asyncio.run(Smtp(url).send(message))


def note(to: str = BUYER) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", to, "Hello"
    message.set_content("¡Hola!\n.\nA single dot above.\n")
    return message


def failing(url: str, to: str = BUYER) -> UndeliveredError:
    """The error of a message that does not arrive. It never names the recipient, nor the password."""
    with pytest.raises(UndeliveredError) as caught:
        send(url, note(to))
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert to not in told
    assert PASSWORD not in told
    return caught.value


class Papers:
    """A certificate authority, and a server's certificate that it has signed."""

    def __init__(self, folder: Path) -> None:
        self.authority = folder / "authority.pem"
        key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        root = self._certificate("Test authority", key.public_key(), "Test authority", key, is_authority=True)
        server = self._certificate("localhost", server_key.public_key(), "Test authority", key, is_authority=False)
        self.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
        chain, private = folder / "server.pem", folder / "server.key"
        chain.write_bytes(server.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            server_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(chain, private)

    def _certificate(
        self,
        subject: str,
        public: ec.EllipticCurvePublicKey,
        issuer: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        is_authority: bool,
    ) -> x509.Certificate:
        today = dt.datetime.now(dt.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - dt.timedelta(days=1))
            .not_valid_after(today + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(key, hashes.SHA256())
        )


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def trusted(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> Papers:
    """This machine trusts the authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(papers.authority))
    return papers


def knows_the_password(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    known = isinstance(data, LoginPassword) and data == LoginPassword(b"shop", PASSWORD.encode())
    return AuthResult(success=known, handled=False)


def test_a_message_arrives_as_it_was_sent() -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as where:
        send(f"smtp://{where}", note())
    ((envelope, _),) = mailbox.accepted
    assert (envelope.mail_from, envelope.rcpt_tos) == ("shop@example.org", [BUYER])
    assert mailbox.messages[0].get_content().replace("\r\n", "\n") == "¡Hola!\n.\nA single dot above.\n"


def test_a_temporary_refusal_is_retried() -> None:
    mailbox = Mailbox(rcpt=[f"451 <{BUYER}> is greylisted"], data=["452 Not now"])
    with mail_server(mailbox) as where:
        first, second = failing(f"smtp://{where}"), failing(f"smtp://{where}")
        send(f"smtp://{where}", note())
    assert [first.is_permanent, second.is_permanent] == [False, False]
    assert ["451" in str(first), "452" in str(second)] == [True, True]
    assert len(mailbox.accepted) == 1


@pytest.mark.parametrize("about", ["rcpt", "data"])
def test_a_permanent_refusal_is_not_retried(about: str) -> None:
    with mail_server(Mailbox(**{about: [f"550 No such user: {BUYER}"]})) as where:
        error = failing(f"smtp://{where}")
    assert error.is_permanent
    assert "550" in str(error)


def test_a_server_that_wants_a_login_first_does_not_condemn_the_recipient() -> None:
    with mail_server(Mailbox(rcpt=["530 Authentication required"])) as where:
        assert not failing(f"smtp://{where}").is_permanent


def test_a_message_that_was_taken_is_not_sent_again_when_the_goodbye_goes_wrong() -> None:
    mailbox = Mailbox(quit=["500 What?"])
    with mail_server(mailbox) as where:
        send(f"smtp://{where}", note())
    assert len(mailbox.accepted) == 1


def test_a_server_that_is_not_there_is_tried_again() -> None:
    assert not failing(f"smtp://127.0.0.1:{free_port()}").is_permanent


def test_a_silent_server_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "SEND_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = failing(f"smtp://127.0.0.1:{silent.getsockname()[1]}")
    assert not error.is_permanent
    assert "in time" in str(error)


def test_a_trickling_server_times_out_as_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer comes soon enough; all together do not."""
    monkeypatch.setattr(smtp, "SEND_SECONDS", 1.0)

    class Slow(Mailbox):
        async def handle_MAIL(self, *about: Any) -> str:  # noqa: N802
            await asyncio.sleep(0.7)
            about[2].mail_from = about[3]
            return "250 OK"

        async def handle_RCPT(self, *about: Any) -> str:  # noqa: N802
            await asyncio.sleep(0.7)
            return await super().handle_RCPT(*about)

    mailbox = Slow()
    with mail_server(mailbox) as where:
        assert not failing(f"smtp://{where}").is_permanent
    assert not mailbox.accepted


def test_a_user_logs_in_with_any_characters_in_the_password(trusted: Papers) -> None:
    mailbox = Mailbox()
    options = {"authenticator": knows_the_password, "auth_required": True, "tls_context": trusted.context}
    with mail_server(mailbox, **options) as where:
        send(f"smtp://{LOGIN}@{where}", note())
        error = failing(f"smtp://shop:wrong@{where}")
    assert mailbox.accepted[0][1].authenticated
    assert (error.is_permanent, "535" in str(error)) == (False, True)


def test_a_server_without_a_login_is_not_sent_a_message_by_a_user() -> None:
    with mail_server(Mailbox()) as where:
        assert not failing(f"smtp://{LOGIN}@{where}").is_permanent


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_a_password_goes_in_plain_text_only_if_the_url_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on this machine may skip encryption. Elsewhere, an attacker in between could hide that it is offered."""
    mailbox = Mailbox()
    options = {"authenticator": knows_the_password, "auth_require_tls": False, "auth_required": True}
    with mail_server(mailbox, **options) as where:
        send(f"smtp://{LOGIN}@{where}", note())
        monkeypatch.setattr(smtp, "LOOPBACK", frozenset[str]())
        error = failing(f"smtp://{LOGIN}@{where}")
        send(f"smtp://{LOGIN}@{where}?starttls=optional", note())
    assert not error.is_permanent
    assert len(mailbox.accepted) == 2


def test_encryption_is_used_where_the_server_offers_it(trusted: Papers) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, tls_context=trusted.context) as where:
        send(f"smtp://{where}", note())
        send(f"smtp://{where}?starttls=never", note())
    assert [session.ssl is not None for _, session in mailbox.accepted] == [True, False]


def test_encryption_from_the_start(trusted: Papers) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, ssl_context=trusted.context) as where:
        send(f"smtps://{where}", note())
    assert len(mailbox.accepted) == 1


def test_a_server_without_encryption_gets_nothing_where_it_is_required() -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as where:
        error = failing(f"smtp://{where}?starttls=required")
    assert not error.is_permanent
    assert not mailbox.accepted


@pytest.mark.parametrize(("scheme", "option"), [("smtp", "tls_context"), ("smtps", "ssl_context")])
def test_a_server_that_cannot_prove_who_it_is_gets_nothing(papers: Papers, scheme: str, option: str) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, **{option: papers.context}) as where:
        error = failing(f"{scheme}://{where}")
    assert (error.is_permanent, "certificate" in str(error)) == (False, True)
    assert not mailbox.accepted


def test_an_address_beyond_ascii_needs_a_server_that_knows_such() -> None:
    mailbox = Mailbox()
    message = note()
    del message["To"]
    message["To"] = "josé@example.org"
    with mail_server(mailbox, enable_SMTPUTF8=True) as where:
        send(f"smtp://{where}", message)
    with mail_server(Mailbox(), enable_SMTPUTF8=False) as where, pytest.raises(UndeliveredError) as caught:
        send(f"smtp://{where}", message)
    assert mailbox.accepted[0][0].rcpt_tos == ["josé@example.org"]
    assert (caught.value.is_permanent, "josé" in str(caught.value)) == (True, False)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mail.example.org",
        "http://u:hunter2@mail.example.org",
        "smtp://",
        "smtp://u:hunter2@",
        "smtp://u:hunter2/x@mail.example.org",
        "smtp://u:hunter2#x@mail.example.org",
        "smtp://u:hunter2?x@mail.example.org",
        "smtp://u:hunter2@mail.example.org:hunter2",
        "smtp://u:hunter2@mail.example.org:99999",
        "smtp://u:hunter2@mail.example.org:0",
        "smtp://u:hunter2@mail.example.org/inbox",
        "smtp://u:hunter2@[mail.example.org",
        "smtp://u:hunter2@mail.example.org?starttls",
        "smtp://u:hunter2@mail.example.org?starttls=",
        "smtp://u:hunter2@mail.example.org?starttls=yes",
        "smtp://u:hunter2@mail.example.org?starttls=required&starttls=never",
        "smtp://u:hunter2@mail.example.org?verify=no",
        "smtps://u:hunter2@mail.example.org?starttls=required",
        "smtp://hunter2@mail.example.org",
        "smtp://:hunter2@mail.example.org",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_repeating_the_password(url: str) -> None:
    with pytest.raises(SmtpUrlError) as caught:
        Smtp(url)
    told = "".join(traceback.format_exception(caught.value, chain=True)).partition("SmtpUrlError")[2]
    assert "hunter2" not in told
    assert "The mail server's URL" in told
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "smtp://localhost",
        "smtp://mail.example.org:2525/",
        "SMTP://mail.example.org",
        "smtp://[::1]:25",
        f"smtp://{LOGIN}@mail.example.org?starttls=required",
        f"smtps://{LOGIN}@mail.example.org:465",
    ],
)
def test_a_url_of_each_form_is_taken_and_never_shown(url: str) -> None:
    assert PASSWORD not in repr(Smtp(url))
