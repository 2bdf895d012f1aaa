"""Logs contain nothing about buyers and no secrets."""

import asyncio
import base64
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

from holdfast.notifications.vapid import vapid_key
from holdfast.runtime import db, ids
from holdfast.runtime.shared_secrets import SecretName, SharedSecret
from tests.support.harness import (
    SANDBOX_SECRET,
    Org,
    Server,
    fresh_database,
    post_hold,
    publish_event,
    query,
    running_server,
    shared_data_folder,
    wait_until,
)
from tests.support.html_client import get_page, hold_on_page, new_visitor, submit_file
from tests.support.http_assertions import expect_ok
from tests.support.log_capture import CapturedLog, find_leaks, redirect_output
from tests.support.mail_server import Mailbox, mail_server
from tests.support.push_service import (
    PushService,
    encode,
    post_subscription,
    push_form,
    push_service,
    subscribe_on_page,
)
from tests.support.resources import TINY_PNG, list_tickets, post_notice, post_payment, post_raw_notice, reviewed_event
from tests.support.twilio_server import ACCOUNT as TWILIO_ACCOUNT
from tests.support.twilio_server import TOKEN as TWILIO_TOKEN
from tests.support.twilio_server import Answer, TwilioServer, twilio_server
from tests.support.webhook_receiver import WebhookReceiver, running_webhook_receiver

WAIT_SECONDS = 30
ENTRIES = (
    "booking_held",
    "delivery_failed",
    "delivery_postponed",
    "sms_provider_refused",
    "refund_needs_a_person",
    "endpoint_disabled",
    "receipt_not_stored",
    "reaped",
)
CARD = "4242424242424242"
STRIPE_KEY = "sk_test_" + "51HoldfastHoldfastHoldfast"
STRIPE_SECRET = "whsec_" + "c3RyaXBlIHNpZ25zIHdpdGggdGhpcw=="
MAIL_PASSWORD = "hunter2-of-the-mail"
FILE_NAME = "payslip-of-ana-garcia-iban"
URL_TOKEN = "hook-token-5fj2k"


class LoggedServer:
    """A server with a captured log, and everything that it talks to."""

    def __init__(
        self,
        server: Server,
        log: CapturedLog,
        org: Org,
        mailbox: Mailbox,
        receiver: WebhookReceiver,
        twilio: TwilioServer,
        pushes: PushService,
    ) -> None:
        self.server = server
        self.twilio = twilio
        self.pushes = pushes
        self.log = log
        self.org = org
        self.mailbox = mailbox
        self.receiver = receiver
        self.admin = server.client(org.headers())
        self.log.secrets |= {f"the {role} key": key for role, key in org.keys.items()}

    def new_address(self, name: str) -> str:
        local = f"{name}.{secrets.token_hex(4)}"
        self.log.secrets[f"the address of {name}"] = local
        return f"{local}@example.org"

    def new_user(self, name: str) -> str:
        user = self.log.secrets[f"the user id of {name}"] = f"{name}-{secrets.token_hex(4)}"
        return user

    def new_phone(self, name: str) -> str:
        number = self.log.secrets[f"the phone number of {name}"] = f"1212555{secrets.randbelow(9_000) + 1_000}"
        return f"+{number}"

    def hold(self, event: str, name: str, **more: Any) -> str:
        created = expect_ok(post_hold(self.admin, event, **self._new_hold(name), **more), 201)
        booking: str = created["id"]
        return booking

    @contextmanager
    def customer(self, user: str) -> Iterator[httpx.Client]:
        """A customer who acts with a token of their own, so that Holdfast knows them as the actor."""
        token = self.log.secrets[f"the token of {user}"] = expect_ok(
            self.admin.post("/v1/customer-tokens", json={"user": user}), 201
        )["token"]
        with self.server.client({"Authorization": f"Bearer {token}"}) as customer:
            yield customer

    def _new_hold(self, name: str) -> dict[str, Any]:
        return {"user": self.new_user(name), **self.new_items(name)}

    def new_items(self, name: str) -> dict[str, Any]:
        """A hold without its user."""
        contact = {"email": self.new_address(name), "phone": self.new_phone(name)}
        items = [{"pool": "standing", "tariff": "full"}]
        return {"items": items, "details": {"card": CARD}, "contact": contact}

    def buy(self, event: str, user: str) -> str:
        booking = self.hold(event, user)
        expect_ok(self.admin.post(f"/v1/bookings/{booking}/confirm"))
        return booking

    def wait_for_entry(self, event: str) -> None:
        wait_until(lambda: self.log.has_entry(event), WAIT_SECONDS)


def _accept_login(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=True)


@contextmanager
def logged_server(postgres: str, path: Path) -> Iterator[LoggedServer]:
    with ExitStack() as stack:
        mailbox, receiver = Mailbox(), stack.enter_context(running_webhook_receiver())
        options = {"authenticator": _accept_login, "auth_require_tls": False}
        mail_address = stack.enter_context(mail_server(mailbox, **options))
        twilio = stack.enter_context(twilio_server())
        certificates = path.parent / "certificates"
        certificates.mkdir()
        pushes = stack.enter_context(push_service(certificates))
        database = stack.enter_context(fresh_database(postgres))
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            unreachable = f"http://127.0.0.1:{unused.getsockname()[1]}"
        environment = {
            "HOLDFAST_SMTP_URL": f"smtp://shop:{MAIL_PASSWORD}@{mail_address}",
            "HOLDFAST_EMAIL_FROM": "tickets@theatre.example",
            "HOLDFAST_SMS_URL": twilio.url,
            "HOLDFAST_WEB_PUSH": "true",
            "HOLDFAST_PUSH_SERVICES": pushes.host,
            "SSL_CERT_FILE": str(certificates / "fullchain.pem"),
            "HOLDFAST_STRIPE_KEY": STRIPE_KEY,
            "HOLDFAST_STRIPE_API": unreachable,
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
            "the token of the SMS provider": TWILIO_TOKEN,
            "the same token in a header": base64.b64encode(f"{TWILIO_ACCOUNT}:{TWILIO_TOKEN}".encode()).decode(),
        }
        logged = LoggedServer(server, log, Org(database), mailbox, receiver, twilio, pushes)
        with logged.admin:
            yield logged


def _send_emails(logged: LoggedServer, event: str) -> None:
    """Send emails that arrive, and emails that a server refuses with the address in its answer."""
    logged.buy(event, "happy")
    wait_until(lambda: len(logged.mailbox.accepted) == 1, WAIT_SECONDS)
    for code, user in (("550", "unknown"), ("451", "greylisted")):
        address = f"{user}@example.org"
        logged.mailbox.answers["rcpt"] = [f"{code} <{address}> is not for me"]
        logged.buy(event, user)
        wait_until(lambda: not logged.mailbox.answers["rcpt"], WAIT_SECONDS)
    logged.mailbox.answers["data"] = ["554 That is spam"]
    logged.buy(event, "spammed")
    wait_until(lambda: not logged.mailbox.answers["data"], WAIT_SECONDS)
    logged.wait_for_entry("delivery_failed")


def _send_sms(logged: LoggedServer, event: str) -> None:
    """Send SMS that arrive, and SMS that the provider refuses with the number in its answer."""
    logged.buy(event, "texted")
    wait_until(lambda: bool(logged.twilio.sent), WAIT_SECONDS)
    for code in (21610, 21606):
        number = logged.log.secrets["the phone number of texted"]
        logged.twilio.answers.append(Answer(400, code, f"It cannot go to +{number}"))
        logged.buy(event, f"not-texted-{code}")
        wait_until(lambda: not logged.twilio.answers, WAIT_SECONDS)
    logged.wait_for_entry("sms_provider_refused")


def _act_as_customers(logged: LoggedServer, event: str) -> None:
    """Place, extend, pay, transfer and cancel holds with customer tokens, and be refused."""
    user = logged.new_user("self-service")
    with logged.customer(user) as customer:
        mine, given = [
            expect_ok(post_hold(customer, event, **{**logged.new_items(name), "user": user}), 201)["id"]
            for name in ("self-service", "giver")
        ]
        customer.post(f"/v1/bookings/{mine}/extend")
        expect_ok(post_payment(customer, mine), 201)
        expect_ok(customer.post(f"/v1/bookings/{mine}/cancel"))
        assert post_hold(customer, event, user=user, items=[{"pool": "none"}]).status_code >= 400
        expect_ok(logged.admin.post(f"/v1/bookings/{given}/confirm"))
        heir = {"email": logged.new_address("heir"), "phone": logged.new_phone("heir")}
        transfer = {"user": logged.new_user("heir"), "contact": heir}
        expect_ok(logged.admin.post(f"/v1/bookings/{given}/transfer", json=transfer))
    logged.wait_for_entry("booking_cancelled")


def _send_pushes(logged: LoggedServer) -> None:
    """Let a guest's browser subscribe, at a known and an unknown push service, and send it messages that are accepted,
    refused and retried."""
    event = publish_event(logged.admin, reviewed_event(policy={"review": "manual", "hold_seconds": 600}))
    for status in (201, 400, 503):
        with new_visitor(logged.server) as guest:
            booking = hold_on_page(guest, event, quantity__1__0="1")
            stranger, fields = push_form(guest, logged.pushes, booking)
            unknown = {**fields, "endpoint": f"https://push.example/{URL_TOKEN}"}
            assert post_subscription(guest, booking, unknown).status_code == 422
            browser = subscribe_on_page(guest, logged.pushes, booking)
            for name, each in (("a browser", browser), ("another browser", stranger)):
                logged.log.secrets |= {
                    f"the push endpoint of {name}, {status}": each.endpoint.rpartition("/")[2],
                    f"the push key of {name}, {status}": encode(each.point),
                    f"the push secret of {name}, {status}": encode(each.auth),
                }
            assert submit_file(guest, get_page(guest, booking).form("/receipt"), TINY_PNG).status_code == 303
        if status != 201:
            logged.pushes.answers.append((status, None))
        expect_ok(logged.admin.post(f"/v1/bookings/{booking.rpartition('/')[2]}/approve"))
        _wait_for_push(logged, booking)
    asyncio.run(_keep_vapid_key(logged))
    guests = query(logged.server.database_url, "SELECT user_id FROM booking WHERE user_id LIKE 'guest-%'")
    logged.log.secrets |= {f"the user id of guest {number}": row["user_id"] for number, row in enumerate(guests)}


def _wait_for_push(logged: LoggedServer, booking: str) -> None:
    """Until the worker has tried to send the message about the booking, and has logged how that went."""
    parsed = ids.parse_booking_id(booking.rpartition("/")[2])
    assert parsed is not None
    statement = (
        "SELECT status <> 'waiting' OR last_error IS NOT NULL FROM delivery WHERE stream = $1 AND channel = 'push'"
    )
    wait_until(lambda: bool(query(logged.server.database_url, statement, parsed[1])[0][0]), WAIT_SECONDS)


async def _keep_vapid_key(logged: LoggedServer) -> None:
    pool = await db.create_pool(logged.server.database_url, 1)
    secret = (await SharedSecret(db.Database(pool), SecretName.WEB_PUSH).keyring()).signing
    await pool.close()
    private = vapid_key(secret).private.private_numbers().private_value.to_bytes(32, "big")
    for name, value in (("secret", secret.value), ("private key", private)):
        logged.log.secrets |= {f"the VAPID {name}": encode(value), f"the VAPID {name} in hexadecimal": value.hex()}


def _make_payments(logged: LoggedServer, event: str) -> None:
    """Make payments that succeed, fail, stay silent, have a wrong amount, or meet an unreachable provider."""
    return_url = f"https://shop.example/back?card={CARD}&token={URL_TOKEN}"
    for action in ("pay", "fail", "pay_twice", "never_answer"):
        booking = logged.hold(event, f"payer-{action}")
        payment = expect_ok(post_payment(logged.admin, booking, return_url=return_url), 201)
        httpx.post(payment["checkout_url"], data={"action": action}, timeout=30, verify=False)
    assert post_payment(
        logged.admin, logged.hold(event, "abroad"), provider="stripe", return_url=return_url
    ).status_code in (
        422,
        502,
    )
    booking = logged.hold(event, "cheater")
    expect_ok(
        post_notice(logged.admin, expect_ok(post_payment(logged.admin, booking, return_url=return_url), 201), amount=1)
    )
    booking = logged.hold(event, "by-hand")
    expect_ok(logged.admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": f"{FILE_NAME}.png"}))
    expect_ok(logged.admin.post(f"/v1/bookings/{booking}/approve"))
    expect_ok(logged.admin.post(f"/v1/bookings/{booking}/refund", json={"reason": f"Card {CARD}."}))
    logged.wait_for_entry("refund_needs_a_person")
    logged.wait_for_entry("sandbox_notice_sent")


def _send_notices(logged: LoggedServer) -> None:
    body = json.dumps({"type": "payment.succeeded", "data": {"provider_ref": "sbx_none", "amount": 1, "card": CARD}})
    for provider in ("sandbox", "stripe"):
        headers = {"webhook-id": "msg_1", "webhook-timestamp": "1", "webhook-signature": f"v1,{CARD}"}
        answer = httpx.post(
            f"{logged.server.url}/v1/webhooks/{provider}", content=body, headers=headers, timeout=30, verify=False
        )
        assert answer.status_code == 400
    post_raw_notice(logged.admin, body, "msg_card")
    post_raw_notice(logged.admin, f'{{"type": "{CARD}", "data": "{CARD}"}}', "msg_odd")
    post_raw_notice(logged.admin, CARD, "msg_odder")


def _send_webhooks(logged: LoggedServer, event: str) -> None:
    url = f"{logged.receiver.url}?token={URL_TOKEN}"
    endpoint = expect_ok(logged.admin.post("/v1/webhook-endpoints", json={"url": url}), 201)
    dead = expect_ok(logged.admin.post("/v1/webhook-endpoints", json={"url": f"http://127.0.0.1:9/{URL_TOKEN}"}), 201)
    rotated = expect_ok(logged.admin.post(f"/v1/webhook-endpoints/{endpoint['id']}/rotate"))
    logged.log.secrets |= {
        "the secret of a webhook": endpoint["secret"].removeprefix("whsec_"),
        "the new secret of a webhook": rotated["secret"].removeprefix("whsec_"),
    }
    logged.receiver.status = 500
    logged.hold(event, "notified")
    logged.wait_for_entry("delivery_postponed")
    logged.receiver.status = 410
    logged.hold(event, "notified-again")
    logged.wait_for_entry("endpoint_disabled")
    for unused_endpoint in (endpoint, dead):
        logged.admin.delete(f"/v1/webhook-endpoints/{unused_endpoint['id']}")


def _upload_receipts(logged: LoggedServer, event: str) -> None:
    """Upload receipts, also one that cannot be read and one that cannot be stored."""
    path = f"/v1/bookings/{logged.hold(event, 'proving')}/receipt"
    name = f"{FILE_NAME}.png"
    assert logged.admin.post(path, files={"file": (name, b"<html>", "text/html")}).status_code == 422
    malformed = f'--limit\r\ncontent-disposition: form-data; name="{FILE_NAME}"; filename="{name}"\r\n'
    headers = {"content-type": "multipart/form-data; boundary=limit"}
    assert logged.admin.post(path, content=malformed.encode(), headers=headers).status_code == 422
    folder = shared_data_folder() / "receipts" / logged.org.id.hex()
    folder.parent.mkdir(exist_ok=True)
    folder.write_bytes(b"")
    assert logged.admin.post(path, files={"file": (name, TINY_PNG, "image/png")}).status_code == 503
    folder.unlink()
    expect_ok(logged.admin.post(path, files={"file": (name, TINY_PNG, "image/png")}))
    expect_ok(logged.admin.post(path.replace("receipt", "reject"), json={"reason": f"It is {name}."}))
    logged.wait_for_entry("receipt_not_stored")


def _use_tokens(logged: LoggedServer, event: str) -> None:
    """Send valid and invalid tokens, also in the wrong fields."""
    user = logged.new_address("customer")
    token = expect_ok(logged.admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    header, claims, signature = token.split(".")
    code = list_tickets(logged.admin, logged.buy(event, "guest"))[0]["code"]
    wrong = f"hf_sk_{secrets.token_urlsafe(32)}"
    secret_values = {
        "a token": token,
        "the signature of a token": signature,
        "a wrong key": wrong,
        "the code of a ticket": code,
    }
    logged.log.secrets |= secret_values
    bad = [wrong, f"{header}.{claims}.{signature[::-1]}", f"{header}.{claims}", "é", token[:-2], "x" * 5000]
    for each in (token, *bad):
        authorization = [(b"Authorization", b"Bearer " + each.encode("latin-1"))]
        for path in ("/v1/bookings", f"/v1/bookings/{token}", f"/v1/bookings?user={user}&after={token}", f"/{token}"):
            httpx.get(f"{logged.server.url}{path}", headers=authorization, timeout=30, verify=False)
    for shown in (code, code[:-1], f"{code[:50]}{user}"):
        logged.admin.post("/v1/checkins", json={"code": shown, "gate": user, "nonce": token})
    logged.admin.post(
        f"/v1/events/{event}/holds", json={"user": user, "email": "@"}, headers={"Idempotency-Key": token}
    )
    for raw in (f"GET /{token} HTTP/9\r\n\r\n", f"{user}\r\n\r\n", f"GET / HTTP/1.1\r\nX: {token}\r\nX {user}\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", logged.server.port), 5) as connection:
            connection.sendall(raw.encode())
            connection.settimeout(5)
            while connection.recv(4096):
                pass


def _let_time_pass(logged: LoggedServer) -> None:
    """Let a hold expire, and cancel an event."""
    event = publish_event(logged.admin, reviewed_event(policy={"hold_seconds": 1, "review": "manual"}))
    logged.hold(event, "slow")
    logged.wait_for_entry("reaped")
    logged.buy(event, "disappointed")
    expect_ok(logged.admin.post(f"/v1/events/{event}/cancel"))


@pytest.fixture(scope="module")
def ordinary_log(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> CapturedLog:
    """The log of a server after everything that buyers, providers and receivers can do."""
    path = tmp_path_factory.mktemp("ordinary") / "log"
    with logged_server(postgres, path) as logged:
        event = publish_event(logged.admin, reviewed_event())
        _send_emails(logged, event)
        _send_sms(logged, event)
        _act_as_customers(logged, event)
        _make_payments(logged, event)
        _send_notices(logged)
        _send_webhooks(logged, event)
        _upload_receipts(logged, event)
        _send_pushes(logged)
        _use_tokens(logged, event)
        _let_time_pass(logged)
    return logged.log


@pytest.fixture(scope="module")
def broken_database_log(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> CapturedLog:
    """The log of a server whose database refuses rows with errors that contain the whole row."""
    path = tmp_path_factory.mktemp("broken") / "log"
    with logged_server(postgres, path) as logged:
        event = publish_event(logged.admin, reviewed_event(policy={"hold_seconds": 1, "review": "manual"}))
        for table, check in (
            ("booking", "status <> 'expired'"),
            ("booking", "user_id <> 'poison'"),
            ("webhook_endpoint", "url NOT LIKE '%poison%'"),
            ("payment", "return_url NOT LIKE '%poison%'"),
            ("receipt", "file_ref <> 'poison'"),
        ):
            query(logged.server.database_url, f"ALTER TABLE {table} ADD CHECK ({check}) NOT VALID")
        contact = {"email": logged.new_address("poison"), "phone": logged.new_phone("poison")}
        body: dict[str, Any] = {"items": [{"seat": "A-1"}], "details": {"card": CARD}, "contact": contact}
        assert post_hold(logged.admin, event, user="poison", **body).status_code == 500
        url = f"https://hooks.example.org/poison/{URL_TOKEN}"
        assert logged.admin.post("/v1/webhook-endpoints", json={"url": url}).status_code == 500
        other_event = publish_event(logged.admin, reviewed_event())
        return_url = f"https://shop.example/poison?card={CARD}"
        assert post_payment(logged.admin, logged.hold(other_event, "payer"), return_url=return_url).status_code == 500
        receipt_path = f"/v1/bookings/{logged.hold(other_event, 'prover')}/receipt"
        ref = {"file_ref": "poison", "message_ref": f"{FILE_NAME}.png"}
        assert logged.admin.post(receipt_path, json=ref).status_code == 500
        logged.wait_for_entry("command_failed")
        logged.hold(event, "late")
        logged.wait_for_entry("sweep_failed")
        query(logged.server.database_url, "ALTER TABLE delivery RENAME TO renamed")
        logged.wait_for_entry("job_failed")
        query(logged.server.database_url, "ALTER TABLE renamed RENAME TO delivery")
        time.sleep(1)
    return logged.log


def test_ordinary_traffic_logs_no_secret(ordinary_log: CapturedLog) -> None:
    for event in ENTRIES:
        assert ordinary_log.has_entry(event), "the log lacks an expected entry"
    assert find_leaks(ordinary_log.text, ordinary_log.secrets) == []


def test_database_errors_are_logged_without_their_rows(broken_database_log: CapturedLog) -> None:
    for event in ("command_failed", "request_failed", "sweep_failed", "job_failed"):
        assert broken_database_log.has_entry(event), "the log lacks an expected entry"
    assert find_leaks(broken_database_log.text, broken_database_log.secrets) == []


def test_every_log_line_of_ours_is_one_json_object(ordinary_log: CapturedLog) -> None:
    others = [line for line in ordinary_log.text.splitlines() if not line.startswith("{")]
    assert not [line for line in others if not re.match(r"\[[A-Z]+\] |Holdfast is serving ", line)]


def test_the_leak_search_finds_every_kind_of_secret(ordinary_log: CapturedLog) -> None:
    """Without this, the tests above would prove nothing."""
    for name, secret in ordinary_log.secrets.items():
        line = json.dumps({"event": "planted", "detail": f"it was {secret} that did not work"})
        assert f"{name} in planted" in find_leaks(f"{ordinary_log.text}\n{line}", ordinary_log.secrets)
    tokens = ("hf_sk_0123456789abcdef", "whsec_Zm9v", "eyJhbGciOiJI.eyJzdWI.c2ln")
    for planted in ("someone@example.com", "+4915112345678", *tokens, CARD):
        assert find_leaks(f"[INFO] {planted}", {}), planted
    assert find_leaks("[INFO] 4242 4242 4242 4242", {})
