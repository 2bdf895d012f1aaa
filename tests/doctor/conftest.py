"""One healthy installation for all tests of the doctor. Each test breaks one thing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import AuthResult, LoginPassword

from holdfast.doctor import stripe_check
from holdfast.runtime import db
from tests.support.doctor_harness import PASSWORD, ROLE, Environment, as_role, server_setting
from tests.support.harness import fresh_database, query
from tests.support.mail_server import Mailbox, mail_server
from tests.support.redis_process import RedisServer, running_redis
from tests.support.stripe_balance_server import KEY, running_balance_server
from tests.support.telegram_server import TelegramServer, running_telegram_server
from tests.support.twilio_server import TwilioServer, twilio_server

TOKEN = "1234567:of-the-doctor-bot"


@pytest.fixture(scope="module")
def safe_postgres(postgres: str) -> Iterator[str]:
    """The PostgreSQL of the tests, with everything on that keeps data safe, and with a role that needs a password."""
    access = Path(query(postgres, "SHOW hba_file")[0][0])
    before = access.read_text()
    query(postgres, f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
    access.write_text(f"local all {ROLE} scram-sha-256\n{before}")
    try:
        with server_setting(postgres, "fsync", "on"), server_setting(postgres, "full_page_writes", "on"):
            yield postgres
    finally:
        access.write_text(before)
        query(postgres, "SELECT pg_reload_conf()")
        query(postgres, f"DROP ROLE {ROLE}")


@pytest.fixture(scope="module")
def patient_database(safe_postgres: str) -> Iterator[str]:
    """A database with a role for the application. The URL has the role's password."""
    with fresh_database(safe_postgres) as url:
        name = query(url, "SELECT current_database()")[0][0]
        application_url = as_role(safe_postgres, name)
        asyncio.run(db.migrate(url, application_url=application_url))
        yield application_url


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def mail() -> Iterator[str]:
    """The host and port of a mail server that wants a login."""

    def log_in(_server: object, _session: object, _envelope: object, _mechanism: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        return AuthResult(success=given.password == PASSWORD.encode(), handled=False)

    with mail_server(Mailbox(), authenticator=log_in, auth_require_tls=False) as address:
        yield address


@pytest.fixture(scope="module")
def stripe() -> Iterator[str]:
    with running_balance_server() as url:
        yield url


@pytest.fixture(scope="module")
def sms() -> Iterator[TwilioServer]:
    with twilio_server() as server:
        yield server


@pytest.fixture(scope="module")
def telegram() -> Iterator[TelegramServer]:
    with running_telegram_server() as server:
        server.add_bot(TOKEN, "doctor_bot")
        yield server


@pytest.fixture
def healthy(
    patient_database: str,
    redis: RedisServer,
    mail: str,
    stripe: str,
    sms: TwilioServer,
    telegram: TelegramServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Environment:
    """The settings of an installation in production with everything that Holdfast can use."""
    monkeypatch.setattr(stripe_check, "API", stripe)
    return {
        "PATH": "/usr/bin",
        "HOLDFAST_DATABASE_URL": patient_database,
        "HOLDFAST_REDIS_URL": redis.url,
        "HOLDFAST_SMTP_URL": f"smtp://tickets:{PASSWORD}@{mail}",
        "HOLDFAST_EMAIL_FROM": "tickets@example.com",
        "HOLDFAST_STRIPE_KEY": KEY,
        "HOLDFAST_STRIPE_WEBHOOK_SECRET": "whsec_of_the_dashboard",
        "HOLDFAST_SMS_URL": sms.url,
        "HOLDFAST_TELEGRAM_TOKEN": TOKEN,
        "HOLDFAST_TELEGRAM_API": telegram.url,
        "HOLDFAST_PUBLIC_URL": "https://shop.example.com",
        "HOLDFAST_PROXIES": "1",
        "HOLDFAST_METRICS_TOKEN": "of-the-scraper",
        "HOLDFAST_DATA_DIR": str(tmp_path),
        "HOLDFAST_LIVE_SOCKETS": "10",
    }
