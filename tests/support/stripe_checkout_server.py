"""As much of Stripe as a Checkout session needs, on loopback, with Stripe's own rules and error messages.

localstripe has no sessions and ignores idempotency keys.
"""

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

KEY = "sk_test_of_the_session_server"
SECRET = "whsec_of_the_session_server"
MINUTE, DAY = 60, 86400

Json = dict[str, Any]
Form = dict[str, str]


class SignedRequest(NamedTuple):
    """A signed webhook request."""

    headers: dict[str, str]
    body: bytes


class ApiCall(NamedTuple):
    method: str
    path: str
    form: Form
    idempotency_key: str | None


class StripeApiError(Exception):
    def __init__(self, status: int, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"error": {"type": "invalid_request_error", "message": message, **more}}


def sign(body: bytes, secret: str = SECRET, at: float | None = None) -> SignedRequest:
    stamp = int(time.time() if at is None else at)
    proof = hmac.new(secret.encode(), b"%d.%s" % (stamp, body), hashlib.sha256).hexdigest()
    return SignedRequest({"stripe-signature": f"t={stamp},v1={proof}", "content-type": "application/json"}, body)


class StripeSessions:
    """One merchant's account. Its methods act for the buyer, and its fields cause failures."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sessions: dict[str, Json] = {}
        self.intents: dict[str, Json] = {}
        self.refunds: list[Json] = []
        self.calls: list[ApiCall] = []
        # The status and body of every answer during an outage.
        self.outage: tuple[int, bytes] | None = None
        # The server handles this many calls and loses their answers.
        self.answers_to_lose = 0
        # Never answer, or answer one byte at a time.
        self.hanging = False
        self.dribbling = False
        self.refund_status = "succeeded"
        self.balance_is_empty = False
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._replays: dict[str, tuple[tuple[str, Form], Json]] = {}

    def pay(self, session_id: str) -> list[SignedRequest]:
        """The buyer pays by card. Stripe sends an event for the session and one for its intent."""
        session = self._complete(session_id, "succeeded")
        return [
            self.event("checkout.session.completed", session),
            self.event("payment_intent.succeeded", self.intents[session["payment_intent"]]),
        ]

    def start_delayed_payment(self, session_id: str, status: str = "processing") -> SignedRequest:
        """The buyer chooses a bank debit, which takes days, or a transfer or voucher, which `requires_action`."""
        return self.event("checkout.session.completed", self._complete(session_id, status))

    def settle_delayed_payment(self, session_id: str) -> SignedRequest:
        session = self._set_intent(session_id, "succeeded")
        return self.event("checkout.session.async_payment_succeeded", session)

    def fail_delayed_payment(self, session_id: str) -> SignedRequest:
        session = self._set_intent(session_id, "requires_payment_method")
        return self.event("checkout.session.async_payment_failed", session)

    def expire(self, session_id: str) -> SignedRequest:
        session = self.sessions[session_id]
        session.update(status="expired", url=None)
        return self.event("checkout.session.expired", session)

    def complete_for_free(self, session_id: str) -> SignedRequest:
        session = self.sessions[session_id]
        session.update(status="complete", payment_status="no_payment_required", amount_total=0, url=None)
        return self.event("checkout.session.completed", session)

    def event(self, kind: str, subject: Json) -> SignedRequest:
        event = {
            "id": _new_id("evt"),
            "object": "event",
            "type": kind,
            "livemode": False,
            "data": {"object": _snapshot(subject)},
        }
        return sign(json.dumps(event).encode())

    def latest_charge(self, session_id: str) -> Json:
        charge: Json = self.intents[self.sessions[session_id]["payment_intent"]]["latest_charge"]
        return charge

    def serve(self, call: ApiCall) -> Json:
        if call.method != "POST" or call.idempotency_key is None:
            return self._route(call)
        request = (call.path, call.form)
        earlier = self._replays.get(call.idempotency_key)
        if earlier is None:
            # Stripe stores no refusals: a refused call may be retried under its key.
            earlier = self._replays[call.idempotency_key] = (request, self._route(call))
        if earlier[0] != request:
            raise StripeApiError(
                400,
                "Keys for idempotent requests can only be used with the same parameters they were first used with.",
                type="idempotency_error",
            )
        return earlier[1]

    def _route(self, call: ApiCall) -> Json:
        match call.method, call.path.strip("/").split("/")[1:]:
            case "POST", ["checkout", "sessions"]:
                return _snapshot(self._create(call.form))
            case "GET", ["checkout", "sessions", id_]:
                return self._expanded(_find(self.sessions, id_, "checkout.session"))
            case "POST", ["checkout", "sessions", id_, "expire"]:
                return _snapshot(self._expire(_find(self.sessions, id_, "checkout.session")))
            case "GET", ["payment_intents", id_]:
                return _snapshot(_find(self.intents, id_, "payment_intent"))
            case "POST", ["refunds"]:
                return _snapshot(self._refund(call.form))
        raise StripeApiError(404, f"Unrecognized request URL ({call.method}: {call.path}).")

    def _create(self, form: Form) -> Json:
        expires_at = int(form.get("expires_at", time.time() + DAY))
        left = expires_at - time.time()
        if left < 30 * MINUTE:
            raise _expiry_error("must be at least 30 minutes from Checkout Session creation")
        if left > DAY:
            raise _expiry_error("must be less than 24 hours from Checkout Session creation")
        email = form.get("customer_email")
        if email is not None and "@" not in email:
            raise StripeApiError(400, f"Invalid email address: {email}", code="email_invalid", param="customer_email")
        price = "line_items[0][price_data]"
        currency, amount = form[f"{price}[currency]"], int(form[f"{price}[unit_amount]"])
        _check_amount(currency, amount)
        id_ = _new_id("cs_test")
        self.sessions[id_] = {
            "id": id_,
            "object": "checkout.session",
            "mode": form["mode"],
            "status": "open",
            "payment_status": "unpaid",
            "amount_total": amount * int(form["line_items[0][quantity]"]),
            "currency": currency,
            "client_reference_id": form.get("client_reference_id"),
            "customer_email": email,
            "expires_at": expires_at,
            "success_url": form["success_url"],
            "cancel_url": form["cancel_url"],
            "payment_intent": None,
            "metadata": _metadata(form, "metadata"),
            "url": f"https://checkout.stripe.com/c/pay/{id_}",
            "_of_intent": _metadata(form, "payment_intent_data[metadata]"),
            "_name": form[f"{price}[product_data][name]"],
        }
        return self.sessions[id_]

    def _expire(self, session: Json) -> Json:
        if session["status"] != "open":
            status = session["status"]
            raise StripeApiError(
                400,
                'Only Checkout Sessions with a status in ["open"] can be expired. '
                f"This Checkout Session has a status of `{status}`.",
            )
        session.update(status="expired", url=None)
        return session

    def _complete(self, session_id: str, intent_status: str) -> Json:
        session = self.sessions[session_id]
        assert session["status"] == "open", "an ended session cannot be paid"
        id_ = _new_id("pi")
        self.intents[id_] = {
            "id": id_,
            "object": "payment_intent",
            "amount": session["amount_total"],
            "currency": session["currency"],
            "metadata": session["_of_intent"],
        }
        session.update(status="complete", payment_intent=id_, url=None)
        return self._set_intent(session_id, intent_status)

    def _set_intent(self, session_id: str, status: str) -> Json:
        session = self.sessions[session_id]
        intent = self.intents[session["payment_intent"]]
        paid = status == "succeeded"
        charge = {
            "id": _new_id("ch"),
            "object": "charge",
            "amount": intent["amount"],
            "amount_refunded": 0,
            "currency": intent["currency"],
            "refunded": False,
            "payment_intent": intent["id"],
            "metadata": intent["metadata"],
        }
        intent.update(
            status=status,
            amount_received=intent["amount"] if paid else 0,
            latest_charge=charge if paid else None,
        )
        session.update(payment_status="paid" if paid else "unpaid")
        return session

    def _expanded(self, session: Json) -> Json:
        intent = session["payment_intent"]
        return _snapshot({**session, "payment_intent": self.intents[intent] if intent else None})

    def _refund(self, form: Form) -> Json:
        intent = _find(self.intents, form["payment_intent"], "payment_intent")
        charge = intent["latest_charge"]
        if charge is None:
            raise StripeApiError(400, "This PaymentIntent does not have a successful charge to refund.")
        if charge["refunded"]:
            raise StripeApiError(
                400, f"Charge {charge['id']} has already been refunded.", code="charge_already_refunded"
            )
        if self.balance_is_empty:
            raise StripeApiError(400, "Insufficient funds in your Stripe balance.", code="balance_insufficient")
        amount = charge["amount"] - charge["amount_refunded"]
        charge.update(refunded=True, amount_refunded=charge["amount"])
        refund = {
            "id": _new_id("re"),
            "object": "refund",
            "amount": amount,
            "currency": charge["currency"],
            "payment_intent": intent["id"],
            "status": self.refund_status,
            "metadata": _metadata(form, "metadata"),
        }
        self.refunds.append(refund)
        return refund


def _check_amount(currency: str, amount: int) -> None:
    if currency in ("isk", "ugx") and amount % 100:
        raise StripeApiError(
            400,
            f"Invalid amount. Currency {currency.upper()} has become effectively zero-decimal.",
            code="invalid_charge_amount_no_decimal_compatible",
        )
    if currency in ("bhd", "jod", "kwd", "omr", "tnd") and amount % 10:
        raise StripeApiError(400, "Invalid amount.", code="invalid_charge_amount")


def _expiry_error(problem: str) -> StripeApiError:
    return StripeApiError(400, f"The `expires_at` timestamp {problem}.", param="expires_at")


def _find(objects: dict[str, Json], id_: str, kind: str) -> Json:
    if id_ not in objects:
        raise StripeApiError(404, f"No such {kind}: '{id_}'", code="resource_missing", param="id")
    return objects[id_]


def _metadata(form: Form, prefix: str) -> Form:
    start = f"{prefix}["
    return {name[len(start) : -1]: value for name, value in form.items() if name.startswith(start)}


def _snapshot(document: Json) -> Json:
    """A copy without the private fields of this server."""
    kept: Json = json.loads(json.dumps({name: value for name, value in document.items() if not name.startswith("_")}))
    return kept


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    account: StripeSessions

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep the test output clean."""

    def _serve(self) -> None:
        form = dict(parse_qsl(self.rfile.read(int(self.headers.get("content-length", 0))).decode()))
        call = ApiCall(self.command, urlsplit(self.path).path, form, self.headers.get("idempotency-key"))
        with self.account.lock:
            self.account.calls.append(call)
            status, body = self.account.outage or self._answer(call)
            lost = self.account.answers_to_lose > 0
            self.account.answers_to_lose -= lost
        if self.account.hanging:
            self.account.closing.wait(30)
        if lost or self.account.hanging:
            self.close_connection = True
            return
        blanks = 50 if self.account.dribbling else 0
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(blanks + len(body)))
        self.end_headers()
        try:
            self._write(b" " * blanks, body)
        except ConnectionError:
            self.close_connection = True

    def _write(self, slowly: bytes, body: bytes) -> None:
        for byte in slowly:
            self.wfile.write(bytes([byte]))
            self.account.closing.wait(0.1)
        self.wfile.write(body)

    def _answer(self, call: ApiCall) -> tuple[int, bytes]:
        try:
            if self.headers.get("authorization") != f"Bearer {KEY}":
                raise StripeApiError(401, "Invalid API Key provided: sk_test_****.")
            return 200, json.dumps(self.account.serve(call)).encode()
        except StripeApiError as error:
            return error.status, json.dumps(error.body).encode()


@contextmanager
def running_stripe() -> Iterator[StripeSessions]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    account = StripeSessions(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("_Bound", (_Handler,), {"account": account})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield account
    finally:
        account.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
