"""Logs contain nothing about buyers and no secrets."""

import json
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from tests.support.harness import (
    DATA_FOLDER,
    SANDBOX_SECRET,
    Org,
    Server,
    fresh_database,
    post_hold,
    publish_event,
    query,
    running_server,
    wait_until,
)
from tests.support.http_assertions import expect_ok
from tests.support.log_capture import CapturedLog, find_leaks, redirect_output
from tests.support.mail_server import Mailbox, mail_server
from tests.support.resources import TINY_PNG, list_tickets, post_notice, post_payment, post_raw_notice, reviewed_event
from tests.support.webhook_receiver import WebhookReceiver, running_webhook_receiver

SEEN_SECONDS = 30
CARD = "4242424242424242"
STRIPE_KEY = "sk_test_" + "51HoldfastHoldfastHoldfast"
STRIPE_SECRET = "whsec_" + "c3RyaXBlIHNpZ25zIHdpdGggdGhpcw=="
MAIL_PASSWORD = "hunter2-of-the-mail"
FILE_NAME = "payslip-of-ana-garcia-iban"
URL_TOKEN = "hook-token-5fj2k"


class Stage:
    """A server with all that it talks to, and one buyer after the other."""

    def __init__(self, server: Server, log: CapturedLog, org: Org, mailbox: Mailbox, receiver: WebhookReceiver) -> None:
        self.server = server
        self.log = log
        self.org = org
        self.mailbox = mailbox
        self.receiver = receiver
        self.admin = server.client(org.headers())
        self.log.secrets |= {f"the {role} key": key for role, key in org.keys.items()}

    def address(self, who: str) -> str:
        local = f"{who}.{secrets.token_hex(4)}"
        self.log.secrets[f"the address of {who}"] = local
        return f"{local}@example.org"

    def held(self, event: str, who: str, **more: Any) -> str:
        body = {"items": [{"pool": "standing", "tariff": "full"}], "details": {"card": CARD}, **more}
        held = expect_ok(post_hold(self.admin, event, user=who, email=self.address(who), **body), 201)
        booking: str = held["id"]
        return booking

    def confirmed(self, event: str, who: str) -> str:
        booking = self.held(event, who)
        expect_ok(self.admin.post(f"/v1/bookings/{booking}/confirm"))
        return booking

    def wait(self, what: str) -> None:
        wait_until(lambda: self.log.has_entry(what), SEEN_SECONDS)


def _may_log_in(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=True)


@contextmanager
def staged(postgres: str, path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        mailbox, receiver = Mailbox(), stack.enter_context(running_webhook_receiver())
        options = {"authenticator": _may_log_in, "auth_require_tls": False}
        where = stack.enter_context(mail_server(mailbox, **options))
        database = stack.enter_context(fresh_database(postgres))
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            silent = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        environment = {
            "HOLDFAST_SMTP_URL": f"smtp://shop:{MAIL_PASSWORD}@{where}",
            "HOLDFAST_MAIL_FROM": "tickets@theatre.example",
            "HOLDFAST_STRIPE_KEY": STRIPE_KEY,
            "HOLDFAST_STRIPE_API": silent,
            "HOLDFAST_STRIPE_WEBHOOK_SECRET": STRIPE_SECRET,
        }
        with redirect_output(path):
            server = stack.enter_context(running_server(database, workers=2, worker=True, **environment))
        log = CapturedLog(path)
        log.secrets |= {
            "the card number": CARD,
            "the stripe key": STRIPE_KEY,
            "the stripe secret": STRIPE_SECRET.removeprefix("whsec_"),
            "the sandbox secret": SANDBOX_SECRET.removeprefix("whsec_"),
            "the password of the mail server": MAIL_PASSWORD,
            "the name of a file": FILE_NAME,
            "the token in a URL": URL_TOKEN,
        }
        stage = Stage(server, log, Org(database), mailbox, receiver)
        with stage.admin:
            yield stage


def _mail(stage: Stage, event: str) -> None:
    """Letters that arrive, that are refused for now, and for good, by a server that repeats the address."""
    stage.confirmed(event, "happy")
    wait_until(lambda: len(stage.mailbox.accepted) == 1, SEEN_SECONDS)
    for code, who in (("550", "unknown"), ("451", "greylisted")):
        address = f"{who}@example.org"
        stage.mailbox.answers["rcpt"] = [f"{code} <{address}> is not for me"]
        stage.confirmed(event, who)
        wait_until(lambda: not stage.mailbox.answers["rcpt"], SEEN_SECONDS)
    stage.mailbox.answers["data"] = ["554 That is spam"]
    stage.confirmed(event, "spammed")
    wait_until(lambda: not stage.mailbox.answers["data"], SEEN_SECONDS)
    stage.wait("delivery_failed")


def _payments(stage: Stage, event: str) -> None:
    """Paid, failed, silent, late, wrong, refused by the provider, and a provider that is not there."""
    back = f"https://shop.example/back?card={CARD}&token={URL_TOKEN}"
    for action in ("pay", "fail", "pay_twice", "never_answer"):
        booking = stage.held(event, f"payer-{action}")
        payment = expect_ok(post_payment(stage.admin, booking, return_url=back), 201)
        httpx.post(payment["checkout_url"], data={"action": action})
    assert post_payment(stage.admin, stage.held(event, "abroad"), provider="stripe", return_url=back).status_code in (
        422,
        502,
    )
    booking = stage.held(event, "cheater")
    expect_ok(post_notice(stage.admin, expect_ok(post_payment(stage.admin, booking, return_url=back), 201), amount=1))
    booking = stage.held(event, "by-hand")
    expect_ok(stage.admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": f"{FILE_NAME}.png"}))
    expect_ok(stage.admin.post(f"/v1/bookings/{booking}/approve"))
    expect_ok(stage.admin.post(f"/v1/bookings/{booking}/refund", json={"reason": f"Card {CARD}."}))
    stage.wait("refund_needs_a_person")
    stage.wait("sandbox_notice_sent")


def _notices(stage: Stage) -> None:
    body = json.dumps({"type": "payment.succeeded", "data": {"provider_ref": "sbx_none", "amount": 1, "card": CARD}})
    for provider in ("sandbox", "stripe"):
        headers = {"webhook-id": "msg_1", "webhook-timestamp": "1", "webhook-signature": f"v1,{CARD}"}
        answer = httpx.post(f"{stage.server.url}/v1/webhooks/{provider}", content=body, headers=headers)
        assert answer.status_code == 400
    post_raw_notice(stage.admin, body, "msg_card")
    post_raw_notice(stage.admin, f'{{"type": "{CARD}", "data": "{CARD}"}}', "msg_odd")
    post_raw_notice(stage.admin, CARD, "msg_odder")


def _webhooks(stage: Stage, event: str) -> None:
    url = f"{stage.receiver.url}?token={URL_TOKEN}"
    made = expect_ok(stage.admin.post("/v1/webhook-endpoints", json={"url": url}), 201)
    dead = expect_ok(stage.admin.post("/v1/webhook-endpoints", json={"url": f"http://127.0.0.1:9/{URL_TOKEN}"}), 201)
    rotated = expect_ok(stage.admin.post(f"/v1/webhook-endpoints/{made['id']}/rotate"))
    stage.log.secrets |= {
        "the secret of a webhook": made["secret"].removeprefix("whsec_"),
        "the new secret of a webhook": rotated["secret"].removeprefix("whsec_"),
    }
    stage.receiver.status = 500
    stage.held(event, "told")
    stage.wait("delivery_postponed")
    stage.receiver.status = 410
    stage.held(event, "told-again")
    stage.wait("endpoint_disabled")
    for endpoint in (made, dead):
        stage.admin.delete(f"/v1/webhook-endpoints/{endpoint['id']}")


def _receipts(stage: Stage, event: str) -> None:
    """Also one that cannot be read, and one that cannot be stored."""
    path = f"/v1/bookings/{stage.held(event, 'proving')}/receipt"
    name = f"{FILE_NAME}.png"
    assert stage.admin.post(path, files={"file": (name, b"<html>", "text/html")}).status_code == 422
    broken = f'--limit\r\ncontent-disposition: form-data; name="{FILE_NAME}"; filename="{name}"\r\n'
    headers = {"content-type": "multipart/form-data; boundary=limit"}
    assert stage.admin.post(path, content=broken.encode(), headers=headers).status_code == 422
    folder = DATA_FOLDER / "receipts" / stage.org.id.hex()
    folder.parent.mkdir(exist_ok=True)
    folder.write_bytes(b"")
    assert stage.admin.post(path, files={"file": (name, TINY_PNG, "image/png")}).status_code == 503
    folder.unlink()
    expect_ok(stage.admin.post(path, files={"file": (name, TINY_PNG, "image/png")}))
    expect_ok(stage.admin.post(path.replace("receipt", "reject"), json={"reason": f"It is {name}."}))
    stage.wait("receipt_not_stored")


def _tokens(stage: Stage, event: str) -> None:
    """Good ones, bad ones, and all of them where they do not belong."""
    user = stage.address("customer")
    token = expect_ok(stage.admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    header, claims, signature = token.split(".")
    code = list_tickets(stage.admin, stage.confirmed(event, "guest"))[0]["code"]
    wrong = f"hf_sk_{secrets.token_urlsafe(32)}"
    named = {
        "a token": token,
        "the signature of a token": signature,
        "a wrong key": wrong,
        "the code of a ticket": code,
    }
    stage.log.secrets |= named
    bad = [wrong, f"{header}.{claims}.{signature[::-1]}", f"{header}.{claims}", "é", token[:-2], "x" * 5000]
    for each in (token, *bad):
        authorization = [(b"Authorization", b"Bearer " + each.encode("latin-1"))]
        for path in ("/v1/bookings", f"/v1/bookings/{token}", f"/v1/bookings?user={user}&after={token}", f"/{token}"):
            httpx.get(f"{stage.server.url}{path}", headers=authorization)
    for shown in (code, code[:-1], f"{code[:50]}{user}"):
        stage.admin.post("/v1/checkins", json={"code": shown, "gate": user, "nonce": token})
    stage.admin.post(f"/v1/events/{event}/holds", json={"user": user, "email": "@"}, headers={"Idempotency-Key": token})
    for raw in (f"GET /{token} HTTP/9\r\n\r\n", f"{user}\r\n\r\n", f"GET / HTTP/1.1\r\nX: {token}\r\nX {user}\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", stage.server.port), 5) as connection:
            connection.sendall(raw.encode())
            connection.settimeout(5)
            while connection.recv(4096):
                pass


def _time(stage: Stage) -> None:
    """Holds that run out, and an event that is called off."""
    event = publish_event(stage.admin, reviewed_event(policy={"hold_seconds": 1, "review": "manual"}))
    stage.held(event, "slow")
    stage.wait("reaped")
    stage.confirmed(event, "disappointed")
    expect_ok(stage.admin.post(f"/v1/events/{event}/cancel"))


@pytest.fixture(scope="module")
def ordinary(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> CapturedLog:
    """The log of a server at which whatever buyers, providers and receivers do has happened."""
    path = tmp_path_factory.mktemp("ordinary") / "log"
    with staged(postgres, path) as stage:
        event = publish_event(stage.admin, reviewed_event())
        _mail(stage, event)
        _payments(stage, event)
        _notices(stage)
        _webhooks(stage, event)
        _receipts(stage, event)
        _tokens(stage, event)
        _time(stage)
    return stage.log


@pytest.fixture(scope="module")
def broken(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> CapturedLog:
    """The log of a server whose database trips over what it is given, and says so with the whole row."""
    path = tmp_path_factory.mktemp("broken") / "log"
    with staged(postgres, path) as stage:
        event = publish_event(stage.admin, reviewed_event(policy={"hold_seconds": 1, "review": "manual"}))
        for table, check in (
            ("booking", "status <> 'expired'"),
            ("booking", "user_id <> 'poison'"),
            ("webhook_endpoint", "url NOT LIKE '%poison%'"),
            ("payment", "return_url NOT LIKE '%poison%'"),
            ("receipt", "file_ref <> 'poison'"),
        ):
            query(stage.server.database_url, f"ALTER TABLE {table} ADD CHECK ({check}) NOT VALID")
        body: dict[str, Any] = {"items": [{"seat": "A-1"}], "details": {"card": CARD}}
        address = stage.address("poison")
        assert post_hold(stage.admin, event, user="poison", email=address, **body).status_code == 500
        url = f"https://hooks.example.org/poison/{URL_TOKEN}"
        assert stage.admin.post("/v1/webhook-endpoints", json={"url": url}).status_code == 500
        calm = publish_event(stage.admin, reviewed_event())
        back = f"https://shop.example/poison?card={CARD}"
        assert post_payment(stage.admin, stage.held(calm, "payer"), return_url=back).status_code == 500
        path_ = f"/v1/bookings/{stage.held(calm, 'prover')}/receipt"
        ref = {"file_ref": "poison", "message_ref": f"{FILE_NAME}.png"}
        assert stage.admin.post(path_, json=ref).status_code == 500
        stage.wait("command_failed")
        stage.held(event, "late")
        stage.wait("sweep_failed")
        query(stage.server.database_url, "ALTER TABLE delivery RENAME TO elsewhere")
        stage.wait("job_failed")
        query(stage.server.database_url, "ALTER TABLE elsewhere RENAME TO delivery")
        time.sleep(1)
    return stage.log


def test_nothing_that_buyers_providers_and_receivers_do_brings_a_secret_into_the_log(ordinary: CapturedLog) -> None:
    for what in ("delivery_failed", "refund_needs_a_person", "endpoint_disabled", "receipt_not_stored", "reaped"):
        assert ordinary.has_entry(what), "the log is not that of what happened"
    assert find_leaks(ordinary.text, ordinary.secrets) == []


def test_errors_of_the_database_are_told_without_the_rows_they_are_about(broken: CapturedLog) -> None:
    for what in ("command_failed", "request_failed", "sweep_failed", "job_failed"):
        assert broken.has_entry(what), "the log is not that of what happened"
    assert find_leaks(broken.text, broken.secrets) == []


def test_every_log_line_of_ours_is_one_json_object(ordinary: CapturedLog) -> None:
    others = [line for line in ordinary.text.splitlines() if not line.startswith("{")]
    assert not [line for line in others if not re.match(r"\[[A-Z]+\] |Holdfast is serving ", line)]


def test_the_leak_search_finds_every_kind_of_secret(ordinary: CapturedLog) -> None:
    """Without this, the tests above would prove nothing."""
    for name, secret in ordinary.secrets.items():
        line = json.dumps({"event": "planted", "detail": f"it was {secret} that did not work"})
        assert f"{name} in planted" in find_leaks(f"{ordinary.text}\n{line}", ordinary.secrets)
    for planted in ("someone@example.com", "hf_sk_0123456789abcdef", "whsec_Zm9v", "eyJhbGciOiJI.eyJzdWI.c2ln", CARD):
        assert find_leaks(f"[INFO] {planted}", {}), planted
    assert find_leaks("[INFO] 4242 4242 4242 4242", {})
