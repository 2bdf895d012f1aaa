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


def make_message(to: str = BUYER) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", to, "Hello"
    message.set_content("¡Hola!\n.\nA single dot above.\n")
    return message


def expect_undelivered(url: str, to: str = BUYER) -> UndeliveredError:
    """Return the error of an undelivered message. It never contains the recipient or the password."""
    with pytest.raises(UndeliveredError) as caught:
        send(url, make_message(to))
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert to not in text
    assert PASSWORD not in text
    return caught.value


class Certificates:
    """A certificate authority, and a server certificate signed by it."""

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
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def trusted_certificates(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Certificates:
    """The certificates, with an authority that this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    return certificates


def check_password(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    is_valid = isinstance(data, LoginPassword) and data == LoginPassword(b"shop", PASSWORD.encode())
    return AuthResult(success=is_valid, handled=False)


def test_a_message_arrives_unchanged() -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as address:
        send(f"smtp://{address}", make_message())
    ((envelope, _),) = mailbox.accepted
    assert (envelope.mail_from, envelope.rcpt_tos) == ("shop@example.org", [BUYER])
    assert mailbox.messages[0].get_content().replace("\r\n", "\n") == "¡Hola!\n.\nA single dot above.\n"


def test_a_temporary_refusal_is_retried() -> None:
    mailbox = Mailbox(rcpt=[f"451 <{BUYER}> is greylisted"], data=["452 Not now"])
    with mail_server(mailbox) as address:
        first, second = expect_undelivered(f"smtp://{address}"), expect_undelivered(f"smtp://{address}")
        send(f"smtp://{address}", make_message())
    assert [first.is_permanent, second.is_permanent] == [False, False]
    assert ["451" in str(first), "452" in str(second)] == [True, True]
    assert len(mailbox.accepted) == 1


@pytest.mark.parametrize("command", ["rcpt", "data"])
def test_a_permanent_refusal_is_not_retried(command: str) -> None:
    with mail_server(Mailbox(**{command: [f"550 No such user: {BUYER}"]})) as address:
        error = expect_undelivered(f"smtp://{address}")
    assert error.is_permanent
    assert "550" in str(error)


def test_a_server_that_requires_login_does_not_fail_the_recipient_permanently() -> None:
    with mail_server(Mailbox(rcpt=["530 Authentication required"])) as address:
        assert not expect_undelivered(f"smtp://{address}").is_permanent


def test_an_accepted_message_is_not_sent_again_if_quit_fails() -> None:
    mailbox = Mailbox(quit=["500 What?"])
    with mail_server(mailbox) as address:
        send(f"smtp://{address}", make_message())
    assert len(mailbox.accepted) == 1


def test_an_unreachable_server_is_retried() -> None:
    assert not expect_undelivered(f"smtp://127.0.0.1:{free_port()}").is_permanent


def test_a_silent_server_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "SEND_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = expect_undelivered(f"smtp://127.0.0.1:{silent.getsockname()[1]}")
    assert not error.is_permanent
    assert "in time" in str(error)


def test_a_slow_server_times_out_as_early_as_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer arrives in time, but all of them together do not."""
    monkeypatch.setattr(smtp, "SEND_SECONDS", 1.0)

    class SlowMailbox(Mailbox):
        async def handle_MAIL(self, *arguments: Any) -> str:  # noqa: N802
            await asyncio.sleep(0.7)
            arguments[2].mail_from = arguments[3]
            return "250 OK"

        async def handle_RCPT(self, *arguments: Any) -> str:  # noqa: N802
            await asyncio.sleep(0.7)
            return await super().handle_RCPT(*arguments)

    mailbox = SlowMailbox()
    with mail_server(mailbox) as address:
        assert not expect_undelivered(f"smtp://{address}").is_permanent
    assert not mailbox.accepted


def test_a_password_may_contain_any_characters(trusted_certificates: Certificates) -> None:
    mailbox = Mailbox()
    options = {"authenticator": check_password, "auth_required": True, "tls_context": trusted_certificates.context}
    with mail_server(mailbox, **options) as address:
        send(f"smtp://{LOGIN}@{address}", make_message())
        error = expect_undelivered(f"smtp://shop:wrong@{address}")
    assert mailbox.accepted[0][1].authenticated
    assert (error.is_permanent, "535" in str(error)) == (False, True)


def test_a_server_without_login_gets_no_message_if_the_url_has_a_user() -> None:
    with mail_server(Mailbox()) as address:
        assert not expect_undelivered(f"smtp://{LOGIN}@{address}").is_permanent


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_a_password_goes_in_plain_text_only_if_the_url_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on this machine may skip encryption. Elsewhere an attacker could hide that the server offers it."""
    mailbox = Mailbox()
    options = {"authenticator": check_password, "auth_require_tls": False, "auth_required": True}
    with mail_server(mailbox, **options) as address:
        send(f"smtp://{LOGIN}@{address}", make_message())
        monkeypatch.setattr(smtp, "LOOPBACK", frozenset[str]())
        error = expect_undelivered(f"smtp://{LOGIN}@{address}")
        send(f"smtp://{LOGIN}@{address}?starttls=optional", make_message())
    assert not error.is_permanent
    assert len(mailbox.accepted) == 2


def test_starttls_is_used_if_the_server_offers_it(trusted_certificates: Certificates) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, tls_context=trusted_certificates.context) as address:
        send(f"smtp://{address}", make_message())
        send(f"smtp://{address}?starttls=never", make_message())
    assert [session.ssl is not None for _, session in mailbox.accepted] == [True, False]


def test_smtps_encrypts_from_the_start(trusted_certificates: Certificates) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, ssl_context=trusted_certificates.context) as address:
        send(f"smtps://{address}", make_message())
    assert len(mailbox.accepted) == 1


def test_a_server_without_encryption_gets_no_message_if_starttls_is_required() -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as address:
        error = expect_undelivered(f"smtp://{address}?starttls=required")
    assert not error.is_permanent
    assert not mailbox.accepted


@pytest.mark.parametrize(("scheme", "option"), [("smtp", "tls_context"), ("smtps", "ssl_context")])
def test_a_server_with_an_untrusted_certificate_gets_no_message(
    certificates: Certificates, scheme: str, option: str
) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, **{option: certificates.context}) as address:
        error = expect_undelivered(f"{scheme}://{address}")
    assert (error.is_permanent, "certificate" in str(error)) == (False, True)
    assert not mailbox.accepted


def test_a_non_ascii_address_needs_a_server_with_smtputf8() -> None:
    mailbox = Mailbox()
    message = make_message()
    del message["To"]
    message["To"] = "josé@example.org"
    with mail_server(mailbox, enable_SMTPUTF8=True) as address:
        send(f"smtp://{address}", message)
    with mail_server(Mailbox(), enable_SMTPUTF8=False) as address, pytest.raises(UndeliveredError) as caught:
        send(f"smtp://{address}", message)
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
def test_an_unusable_url_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(SmtpUrlError) as caught:
        Smtp(url)
    text = "".join(traceback.format_exception(caught.value, chain=True)).partition("SmtpUrlError")[2]
    assert "hunter2" not in text
    assert "The mail server's URL" in text
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
def test_every_form_of_url_is_accepted_and_never_shown(url: str) -> None:
    assert PASSWORD not in repr(Smtp(url))
