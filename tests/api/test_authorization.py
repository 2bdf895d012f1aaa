"""Authorization: every operation, for every kind of caller, on every kind of target."""

import base64
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import jwt
import pytest
from msgspec import Struct

from holdfast import sql as statements
from holdfast.api.call import Operation, Resource
from holdfast.api.operations import OPERATIONS
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import AUDIENCE, Role, create_key
from tests.support import resources
from tests.support.cases import case
from tests.support.harness import (
    Org,
    Server,
    example_event,
    post_hold,
    publish_event,
    query,
    run_with_connection,
    wait_until,
)
from tests.support.http_assertions import expect_error, expect_ok, expect_problem
from tests.support.resources import UNKNOWN_IDS

BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
CALLERS: Final = ("anonymous", "admin", "sales", "review", "door", "customer")
STAFF: Final = ("admin", "sales", "review", "door")
# The owner of the resource in the path: the caller, another user of the org, another org, nobody.
TARGETS: Final = ("own", "fellow", "foreign", "absent")
Statuses = tuple[int, int, int, int]
Row = dict[str, Statuses]

UNKNOWN: Final[Statuses] = (401, 401, 401, 401)
DENIED: Final[Statuses] = (403, 403, 403, 403)


def within_org(status: int) -> Statuses:
    return (status, status, 404, 404)


def own_only(status: int) -> Statuses:
    return (status, 404, 404, 404)


def anything(status: int) -> Statuses:
    """For paths that name no resource."""
    return (status, status, status, status)


def row(*, anonymous: Statuses = UNKNOWN, staff: Statuses = DENIED, customer: Statuses = DENIED, **of: Statuses) -> Row:
    return {"anonymous": anonymous, **dict.fromkeys(STAFF, staff), "customer": customer, **of}


READ_BY_ALL: Final = row(anonymous=(200, 200, 200, 404), staff=within_org(200), customer=within_org(200))
ADMINS: Final = row(admin=within_org(200))
SELLERS: Final = row(admin=within_org(200), sales=within_org(200))
REVIEWERS: Final = row(admin=within_org(200), review=within_org(200))
HOLDERS: Final = row(admin=within_org(200), sales=within_org(200), door=within_org(200), customer=own_only(200))
BUYERS: Final = row(admin=within_org(200), sales=within_org(200), customer=own_only(200))

TABLE: Final[dict[str, Row]] = {
    "place_hold": row(admin=within_org(201), sales=within_org(201), customer=within_org(201)),
    "get_booking": row(admin=within_org(200), sales=within_org(200), review=within_org(200), customer=own_only(200)),
    "extend_booking": BUYERS,
    "confirm_booking": SELLERS,
    "cancel_booking": BUYERS,
    "refund_booking": SELLERS,
    "transfer_booking": BUYERS,
    "start_payment": row(admin=within_org(201), sales=within_org(201), customer=own_only(201)),
    "get_payment": row(admin=within_org(200), sales=within_org(200), review=within_org(200), customer=own_only(200)),
    "refund_payment": SELLERS,
    "receive_notice": row(anonymous=anything(400), staff=anything(400), customer=anything(400)),
    "submit_receipt": BUYERS,
    "list_receipts": REVIEWERS,
    "get_receipt": REVIEWERS,
    "approve_booking": REVIEWERS,
    "reject_booking": REVIEWERS,
    "list_tickets": HOLDERS,
    "get_qr_svg": HOLDERS,
    "get_qr_png": HOLDERS,
    "get_ticket_pdf": HOLDERS,
    "check_in": row(admin=anything(422), door=anything(422)),
    "get_ticket_key": READ_BY_ALL,
    "rotate_ticket_key": ADMINS,
    "get_progress": ADMINS,
    "create_endpoint": row(admin=anything(201)),
    "list_endpoints": row(admin=anything(200)),
    "get_endpoint": ADMINS,
    "change_endpoint": ADMINS,
    "rotate_endpoint": ADMINS,
    "delete_endpoint": ADMINS,
    "list_deliveries": ADMINS,
    "list_bookings": row(admin=anything(200), sales=anything(200), review=anything(200), customer=anything(200)),
    "get_availability": READ_BY_ALL,
    "get_seats": READ_BY_ALL,
    "list_changes": READ_BY_ALL,
    "list_journal": ADMINS,
    "create_event": row(admin=anything(201)),
    "list_events": row(anonymous=anything(200), staff=anything(200), customer=anything(200)),
    "get_event": READ_BY_ALL,
    "change_event": ADMINS,
    "publish_event": ADMINS,
    "complete_event": ADMINS,
    "cancel_event": ADMINS,
    "get_org": row(admin=anything(200)),
    "change_org": row(admin=anything(200)),
    "set_logo": row(admin=anything(200)),
    "delete_logo": row(admin=anything(200)),
    "create_customer_token": row(admin=anything(201), sales=anything(201)),
    "healthz": row(anonymous=anything(200), staff=anything(200), customer=anything(200)),
    "readyz": row(anonymous=anything(200), staff=anything(200), customer=anything(200)),
}


def test_the_table_has_a_row_for_every_operation() -> None:
    assert set(TABLE) == set(BY_NAME)


class Stage(Struct, frozen=True):
    """Two orgs, a client for each kind of caller of the first, and resources that must not change."""

    org: Org
    other: Org
    clients: dict[str, httpx.Client]
    other_admin: httpx.Client
    unchanged: dict[tuple[Resource, str, str], str]

    @property
    def admin(self) -> httpx.Client:
        return self.clients["admin"]

    @property
    def customer(self) -> httpx.Client:
        return self.clients["customer"]


@pytest.fixture(scope="module")
def stage(server: Server, org: Org) -> Iterator[Stage]:
    other = Org(server.database_url)
    headers: dict[str, dict[str, str]] = {role: org.headers(role) for role in STAFF}
    with server.client(org.headers("sales")) as sales:
        headers["customer"] = customer_headers(sales, "u-1")
    clients = {caller: server.client(headers.get(caller)) for caller in CALLERS}
    other_admin = server.client(other.headers("admin"))
    yield Stage(org, other, clients, other_admin, {})
    for client in (*clients.values(), other_admin):
        client.close()


def customer_headers(sales: httpx.Client, user: str, ttl_seconds: int = 900) -> dict[str, str]:
    body = {"user": user, "ttl_seconds": ttl_seconds}
    token = expect_ok(sales.post("/v1/customer-tokens", json=body), 201)["token"]
    return {"Authorization": f"Bearer {token}"}


def target(stage: Stage, operation: Operation, kind: str) -> str:
    """The id of a new resource in the state that the operation needs."""
    if operation.resource not in UNKNOWN_IDS:
        return resources.create_resource(stage.admin, operation.resource)
    if kind == "absent":
        return UNKNOWN_IDS[operation.resource]
    owner = stage.other_admin if kind == "foreign" else stage.admin
    make = READY.get(operation.name)
    if make is None and operation.resource in (Resource.EVENT, Resource.ENDPOINT):
        return resources.create_resource(owner, operation.resource)
    user = "u-2" if kind == "fellow" else "u-1"
    return make(owner, user) if make else resources.create_resource(owner, operation.resource, user)


def unchanged_target(stage: Stage, operation: Operation, kind: str) -> str:
    """Callers who only read the resource, or are refused, share one."""
    key = (operation.resource, kind, operation.name if operation.name in READY else "")
    if key not in stage.unchanged:
        stage.unchanged[key] = target(stage, operation, kind)
    return stage.unchanged[key]


# Creates the state that an operation needs.
READY: Final[dict[str, Callable[[httpx.Client, str], str]]] = {
    "refund_booking": resources.create_confirmed_booking,
    "transfer_booking": resources.create_confirmed_booking,
    "approve_booking": resources.create_submitted_booking,
    "reject_booking": resources.create_submitted_booking,
    "refund_payment": resources.create_payment_in_review,
}


def call_operation(
    client: httpx.Client, operation: Operation, id_: str, body: Any = None, more: dict[str, str] | None = None
) -> httpx.Response:
    headers = {**({"Idempotency-Key": secrets.token_hex(8)} if operation.needs_idempotency_key else {}), **(more or {})}
    path = re.sub(r"{\w+}", id_, operation.path)
    sent = body if body is not None else BODIES.get(operation.name)
    content = {"content": sent} if isinstance(sent, bytes) else {"json": sent}
    return client.request(operation.method, path, headers=headers, **content)


BODIES: Final[dict[str, Any]] = {
    "place_hold": {"user": "u-1", "items": [{"seat": "B-1"}]},
    "create_event": example_event(),
    "change_event": {"title": "Another title"},
    "create_customer_token": {"user": "u-1"},
    "transfer_booking": {"user": "u-3"},
    "start_payment": {"provider": "sandbox"},
    "submit_receipt": {"file_ref": "a file"},
    "check_in": {"code": "not a ticket"},
    "create_endpoint": {"url": "http://127.0.0.1:9/hook"},
    "change_org": {"colour": "#1f6feb"},
    "set_logo": resources.TINY_PNG,
}


def version(stage: Stage, operation: Operation, id_: str) -> Any:
    """The version or content of the resource, as its owner sees it."""
    if operation.resource not in UNKNOWN_IDS:
        return None
    path = {
        Resource.EVENT: f"/v1/events/{id_}",
        Resource.BOOKING: f"/v1/bookings/{id_}",
        Resource.PAYMENT: f"/v1/payments/{id_}",
        Resource.RECEIPT: f"/v1/receipts/{id_}",
        Resource.TICKET: f"/v1/tickets/{id_}/qr.svg",
        Resource.ENDPOINT: f"/v1/webhook-endpoints/{id_}",
    }[operation.resource]
    seen = [client.get(path) for client in (stage.admin, stage.other_admin)]
    has_version = operation.resource in (Resource.EVENT, Resource.BOOKING)
    return [a.json()["version"] if has_version else a.content for a in seen if a.status_code == 200]


CODES: Final = {
    400: "invalid_signature",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    422: "invalid_ticket",
}


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_caller_gets_the_status_in_the_table_and_a_refused_caller_changes_nothing(
    stage: Stage, operation: Operation, kind: str
) -> None:
    expected = {caller: TABLE[operation.name][caller][TARGETS.index(kind)] for caller in CALLERS}
    unchanged = unchanged_target(stage, operation, kind)
    before = version(stage, operation, unchanged)
    for caller, status in expected.items():
        changes = status < 400 and operation.method != "GET"
        with case(caller):
            answer = call_operation(
                stage.clients[caller], operation, target(stage, operation, kind) if changes else unchanged
            )
            assert answer.status_code == status, answer.text
            if status >= 400:
                assert expect_problem(answer)["code"] == CODES[status]
    assert version(stage, operation, unchanged) == before


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.resource in UNKNOWN_IDS], ids=lambda o: o.name)
def test_a_resource_of_another_org_looks_exactly_like_one_that_does_not_exist(
    stage: Stage, operation: Operation
) -> None:
    for caller in (*STAFF, "customer"):
        with case(caller):
            client = stage.clients[caller]
            foreign = call_operation(client, operation, unchanged_target(stage, operation, "foreign"))
            absent = call_operation(client, operation, UNKNOWN_IDS[operation.resource])
            garbage = call_operation(client, operation, "nothing")
            assert foreign.status_code == absent.status_code == garbage.status_code
            assert foreign.content == absent.content == garbage.content
            assert set(foreign.headers) == set(absent.headers) == set(garbage.headers)


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.resource is Resource.BOOKING], ids=lambda o: o.name)
def test_a_booking_of_another_customer_looks_exactly_like_one_that_does_not_exist(
    stage: Stage, operation: Operation
) -> None:
    fellow = call_operation(stage.customer, operation, unchanged_target(stage, operation, "fellow"))
    absent = call_operation(stage.customer, operation, UNKNOWN_IDS[operation.resource])
    assert (fellow.status_code, fellow.content) == (absent.status_code, absent.content)


def test_lists_show_nothing_of_another_org(stage: Stage) -> None:
    event = publish_event(stage.other_admin, example_event())
    booking = expect_ok(post_hold(stage.other_admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    for caller in ("admin", "sales", "review", "customer"):
        client = stage.clients[caller]
        assert booking not in client.get("/v1/bookings", params={"limit": 200}).text
        assert expect_ok(client.get("/v1/bookings", params={"event": event}))["items"] == []
        assert event not in client.get("/v1/events", params={"limit": 200}).text
        assert event not in client.get("/v1/events", params={"org": stage.other.slug, "limit": 200}).text


def test_a_customer_lists_their_own_bookings_and_no_others(stage: Stage) -> None:
    event = publish_event(stage.admin, example_event())
    own = expect_ok(post_hold(stage.admin, event, user="u-1", items=[{"seat": "A-1"}]), 201)["id"]
    expect_ok(post_hold(stage.admin, event, user="u-2", items=[{"seat": "A-2"}]), 201)
    for params in ({}, {"user": "u-1"}):
        items = expect_ok(stage.customer.get("/v1/bookings", params={"event": event, **params}))["items"]
        assert [item["id"] for item in items] == [own]
    others = stage.customer.get("/v1/bookings", params={"event": event, "user": "u-2"})
    assert others.status_code == 403 or expect_ok(others)["items"] == []


def test_a_customer_holds_for_themselves_and_for_nobody_else(stage: Stage) -> None:
    event = publish_event(stage.admin, example_event())
    unnamed = stage.customer.post(
        f"/v1/events/{event}/holds", json={"items": [{"seat": "A-1"}]}, headers={"Idempotency-Key": "1"}
    )
    assert expect_ok(unnamed, 201)["user"] == "u-1"
    assert expect_ok(post_hold(stage.customer, event, user="u-1", items=[{"seat": "A-2"}]), 201)["user"] == "u-1"
    expect_error(post_hold(stage.customer, event, user="u-2", items=[{"seat": "A-3"}]), 403, "forbidden")
    assert expect_ok(post_hold(stage.admin, event, user="u-2", items=[{"seat": "A-3"}]), 201)["user"] == "u-2"


def test_idempotency_keys_of_two_customers_and_of_the_back_end_do_not_collide(server: Server, stage: Stage) -> None:
    event = publish_event(stage.admin, example_event())
    made = []
    with server.client(customer_headers(stage.admin, "u-2")) as second:
        for client, seat in ((stage.customer, "A-1"), (second, "A-2"), (stage.admin, "A-3")):
            body = {"items": [{"seat": seat}], **({"user": "u-3"} if client is stage.admin else {})}
            answer = client.post(f"/v1/events/{event}/holds", json=body, headers={"Idempotency-Key": "same"})
            assert "idempotency-replayed" not in answer.headers
            made.append(expect_ok(answer, 201)["user"])
    assert made == ["u-1", "u-2", "u-3"]


def test_a_customer_does_not_get_the_booking_of_the_back_end_under_the_same_key_and_body(stage: Stage) -> None:
    event = publish_event(stage.admin, example_event())
    first = expect_ok(post_hold(stage.admin, event, key="same", user="u-1", items=[{"seat": "A-1"}]), 201)
    again = post_hold(stage.customer, event, key="same", user="u-1", items=[{"seat": "A-1"}])
    assert expect_error(again, 409, "seat_taken")["conflicts"] == [first["items"][0]["seat"]]


def test_a_key_of_another_org_cannot_replay_a_booking(stage: Stage) -> None:
    event = publish_event(stage.admin, example_event())
    body = {"user": "u-1", "items": [{"seat": "A-1"}]}
    first = expect_ok(post_hold(stage.admin, event, key="same", **body), 201)
    stolen = post_hold(stage.other_admin, event, key="same", **body)
    assert (
        expect_error(stolen, 404, "not_found")
        == post_hold(stage.other_admin, UNKNOWN_IDS[Resource.EVENT], key="same", **body).json()
    )
    again = post_hold(stage.admin, event, key="same", **body)
    assert expect_ok(again, 201)["id"] == first["id"]
    assert again.headers["idempotency-replayed"] == "true"


READ_WITHOUT_A_TOKEN: Final = ("get_event", "get_availability", "get_seats", "list_changes")


@pytest.mark.parametrize("name", [*READ_WITHOUT_A_TOKEN, "place_hold"])
@pytest.mark.parametrize("caller", ["anonymous", "customer"])
def test_a_draft_does_not_exist_for_the_public_and_for_customers(stage: Stage, caller: str, name: str) -> None:
    draft = expect_ok(stage.admin.post("/v1/events", json=example_event()), 201)["id"]
    answer = call_operation(stage.clients[caller], BY_NAME[name], draft)
    absent = call_operation(stage.clients[caller], BY_NAME[name], UNKNOWN_IDS[Resource.EVENT])
    assert answer.json() == absent.json()
    assert absent.status_code == (401 if (caller, name) == ("anonymous", "place_hold") else 404)


def test_a_draft_is_in_the_lists_of_staff_only(stage: Stage) -> None:
    draft = expect_ok(stage.admin.post("/v1/events", json=example_event()), 201)["id"]
    for caller in CALLERS:
        for params in ({}, {"status": "draft"}, {"org": stage.org.slug}):
            listed = stage.clients[caller].get("/v1/events", params={"limit": 200, **params}).text
            assert (draft in listed) is (caller in STAFF), (caller, params)


@pytest.mark.parametrize("caller", STAFF)
@pytest.mark.parametrize("name", READ_WITHOUT_A_TOKEN)
def test_staff_reads_drafts(stage: Stage, caller: str, name: str) -> None:
    draft = expect_ok(stage.admin.post("/v1/events", json=example_event()), 201)["id"]
    expect_ok(call_operation(stage.clients[caller], BY_NAME[name], draft))


@pytest.mark.parametrize("name", READ_WITHOUT_A_TOKEN)
@pytest.mark.parametrize("ending", ["complete", "cancel"])
def test_an_event_that_has_ended_can_still_be_read_by_all(stage: Stage, ending: str, name: str) -> None:
    event = publish_event(stage.admin, example_event())
    expect_ok(stage.admin.post(f"/v1/events/{event}/{ending}"))
    for caller in CALLERS:
        expect_ok(call_operation(stage.clients[caller], BY_NAME[name], event))


def is_refused(client: httpx.Client) -> bool:
    answer = client.get("/v1/bookings")
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 401


def test_a_revoked_key_is_refused(server: Server, stage: Stage) -> None:
    async def make(connection: db.Connection) -> list[str]:
        return [await create_key(db.Database(connection), stage.org.id, Role.ADMIN) for _ in range(2)]

    def revoke(key: str) -> None:
        query(server.database_url, statements.credentials.revoke_key, stage.org.id, key[:12])

    used, unused = run_with_connection(make, server.database_url)
    with server.client({"Authorization": f"Bearer {used}"}) as client:
        assert not is_refused(client)
        revoke(used)
        wait_until(lambda: is_refused(client), 15)
        expect_error(client.get("/v1/bookings"), 401, "unauthorized")
    revoke(unused)
    expect_error(
        httpx.get(f"{server.url}/v1/bookings", headers={"Authorization": f"Bearer {unused}"}), 401, "unauthorized"
    )


def test_a_customer_token_is_refused_once_it_has_expired(server: Server, stage: Stage) -> None:
    with server.client(customer_headers(stage.admin, "u-1", ttl_seconds=1)) as client:
        wait_until(lambda: is_refused(client), 15)
        expect_error(client.get("/v1/bookings"), 401, "unauthorized")
    with server.client(customer_headers(stage.admin, "u-1", ttl_seconds=60)) as client:
        assert not is_refused(client)


class Forger:
    """Makes valid and forged tokens of an org."""

    def __init__(self, server: Server, stage: Stage) -> None:
        def secret(org: Org) -> bytes:
            found: bytes = query(server.database_url, statements.credentials.token_secret, org.id)[0][0]
            return found

        self.expires_at = int(time.time()) + 600
        self.secret = secret(stage.org)
        self.other_secret = secret(stage.other)
        self.kid = ids.format_org_id(stage.org.id)
        self.other_kid = ids.format_org_id(stage.other.id)

    def token(self, *, secret: bytes | None = None, kid: str = "", **claims: Any) -> str:
        """A valid token except for the given parts. A claim of None is left out."""
        all_claims = {"sub": "u-1", "aud": AUDIENCE, "exp": self.expires_at, **claims}
        return jwt.encode(
            {name: value for name, value in all_claims.items() if value is not None},
            self.secret if secret is None else secret,
            algorithm="HS256",
            headers={"kid": kid or self.kid},
        )

    def spliced(self, **claims: Any) -> str:
        """The signature of a valid token under other claims."""
        header, _, signature = self.token().split(".")
        return f"{header}.{self.token(**claims).split('.')[1]}.{signature}"

    def signed(self, algorithm: str, digest: str) -> str:
        """A valid token except for its algorithm."""
        _, claims, _ = self.token().split(".")
        text = f"{self.relabelled(alg=algorithm).split('.')[0]}.{claims}"
        signature = hmac.digest(self.secret, text.encode(), digest)
        return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    def relabelled(self, **changes: Any) -> str:
        """The claims and the signature of a valid token under another header."""
        _, claims, signature = self.token().split(".")
        header = json.dumps({"alg": "HS256", "typ": "JWT", "kid": self.kid, **changes}).encode()
        return f"{base64.urlsafe_b64encode(header).rstrip(b'=').decode()}.{claims}.{signature}"


@pytest.fixture(scope="module")
def forger(server: Server, stage: Stage) -> Forger:
    return Forger(server, stage)


FORGERIES: Final[dict[str, Callable[[Forger], str]]] = {
    "signed_by_another_org": lambda f: f.token(secret=f.other_secret),
    "signed_by_one_org_for_another": lambda f: f.token(kid=f.other_kid),
    "signed_with_nothing": lambda f: f.token(secret=b"\0" * 32),
    "algorithm_none": lambda f: f.relabelled(alg="none").rpartition(".")[0] + ".",
    "algorithm_none_and_a_signature": lambda f: f.relabelled(alg="none"),
    "algorithm_none_in_capitals": lambda f: f.relabelled(alg="NONE").rpartition(".")[0] + ".",
    "algorithm_hs384_with_the_right_secret": lambda f: f.signed("HS384", "sha384"),
    "algorithm_hs512_with_the_right_secret": lambda f: f.signed("HS512", "sha512"),
    "algorithm_of_public_keys": lambda f: f.relabelled(alg="RS256"),
    "algorithm_missing": lambda f: f.relabelled(alg=None),
    "another_user": lambda f: f.spliced(sub="u-2"),
    "a_longer_life": lambda f: f.spliced(exp=int(time.time()) + 10**6),
    "no_signature": lambda f: f.token().rpartition(".")[0] + ".",
    "no_signature_part": lambda f: f.token().rpartition(".")[0],
    "half_a_signature": lambda f: f.token()[:-20],
    "a_part_too_many": lambda f: f.token() + ".e30",
    "expired": lambda f: f.token(exp=int(time.time()) - 1),
    "expired_long_ago": lambda f: f.token(exp=0),
    "never_expires": lambda f: f.token(exp=None),
    "expires_in_words": lambda f: f.token(exp="tomorrow"),
    "not_valid_yet": lambda f: f.token(nbf=int(time.time()) + 600),
    "nobody": lambda f: f.token(sub=None),
    "a_user_that_is_a_number": lambda f: f.token(sub=1),
    "no_audience": lambda f: f.token(aud=None),
    "another_audience": lambda f: f.token(aud="another-product"),
    "an_org_that_is_not_there": lambda f: f.token(kid=ids.format_org_id(bytes(16))),
    "an_org_by_another_name": lambda f: f.token(kid=f.kid.upper()),
}


@pytest.mark.parametrize(
    "make",
    [lambda f: f.token(), lambda f: f.signed("HS256", "sha256"), lambda f: f.spliced()],
    ids=["made_whole", "signed_by_hand", "spliced_as_it_was"],
)
def test_a_valid_token_is_accepted(server: Server, forger: Forger, make: Callable[[Forger], str]) -> None:
    with server.client({"Authorization": f"Bearer {make(forger)}"}) as client:
        expect_ok(client.get("/v1/bookings"))


@pytest.mark.parametrize("forge", [pytest.param(forge, id=name) for name, forge in FORGERIES.items()])
def test_a_forged_token_is_refused(server: Server, forger: Forger, forge: Callable[[Forger], str]) -> None:
    with server.client({"Authorization": f"Bearer {forge(forger)}"}) as client:
        for path in ("/v1/bookings", "/v1/events"):
            expect_error(client.get(path), 401, "unauthorized")


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.body_type not in (None, bytes)], ids=lambda o: o.name)
def test_a_malformed_request_gets_422_whoever_sends_it(stage: Stage, operation: Operation) -> None:
    """The answer depends on the request alone, so it tells a stranger nothing about what exists."""
    unknown = {"Authorization": "Bearer nobody"}
    callers = {
        "anonymous": (stage.clients["anonymous"], {}),
        "unknown": (stage.clients["anonymous"], unknown),
        "door": (stage.clients["door"], {}),
    }
    for caller, (client, headers) in callers.items():
        with case(caller):
            answer = call_operation(client, operation, UNKNOWN_IDS.get(operation.resource, ""), ["no object"], headers)
            expect_error(answer, 422, "invalid_request")


CONTRADICTIONS: Final[dict[str, tuple[str, Any]]] = {
    "items_and_best_available": (
        "place_hold",
        {"user": "u-1", "items": [{"seat": "A-1"}], "best_available": {"pool": "stalls", "quantity": 1}},
    ),
    "neither_items_nor_best_available": ("place_hold", {"user": "u-1"}),
    "a_seat_twice": ("place_hold", {"user": "u-1", "items": [{"seat": "A-1"}, {"seat": "A-1"}]}),
    "a_seat_in_a_quantity": ("place_hold", {"user": "u-1", "items": [{"seat": "A-1", "quantity": 2}]}),
    "a_pool_twice": ("create_event", example_event(pools=[{"code": "a", "capacity": 1}, {"code": "a", "capacity": 1}])),
    "a_pool_of_nothing": ("create_event", example_event(pools=[{"code": "a"}])),
    "the_year_1": ("create_event", example_event(starts_at="0001-01-01T00:00:00Z")),
    "a_start_in_the_year_1": ("change_event", {"starts_at": "0001-01-01T00:00:00Z"}),
}


@pytest.mark.parametrize(("name", "body"), [pytest.param(*value, id=key) for key, value in CONTRADICTIONS.items()])
@pytest.mark.parametrize("caller", ["anonymous", "door", "admin"])
def test_a_contradictory_request_is_refused_before_anything_else(
    stage: Stage, caller: str, name: str, body: Any
) -> None:
    for id_ in (UNKNOWN_IDS[Resource.EVENT], "nothing"):
        expect_error(call_operation(stage.clients[caller], BY_NAME[name], id_, body), 422, "invalid_request")


def test_a_hold_without_a_user_is_refused_before_the_event_lookup(stage: Stage) -> None:
    for id_ in (UNKNOWN_IDS[Resource.EVENT], "nothing"):
        answer = call_operation(stage.admin, BY_NAME["place_hold"], id_, {"items": [{"seat": "A-1"}]})
        expect_error(answer, 422, "invalid_request")


def test_a_customer_who_names_another_user_is_refused_before_the_event_lookup(stage: Stage) -> None:
    for id_ in (UNKNOWN_IDS[Resource.EVENT], "nothing"):
        body = {"user": "u-2", "items": [{"seat": "A-1"}]}
        expect_error(call_operation(stage.customer, BY_NAME["place_hold"], id_, body), 403, "forbidden")


def test_a_seat_named_twice_is_refused_before_an_event_not_on_sale(stage: Stage) -> None:
    draft = expect_ok(stage.admin.post("/v1/events", json=example_event()), 201)["id"]
    expect_error(post_hold(stage.admin, draft, items=[{"seat": "A-1"}, {"seat": "A-1"}]), 422, "invalid_request")


def test_the_public_may_not_learn_whether_a_booking_exists(stage: Stage) -> None:
    booking = target(stage, BY_NAME["get_booking"], "own")
    anonymous = stage.clients["anonymous"]
    exists = anonymous.get(f"/v1/bookings/{booking}")
    absent = anonymous.get(f"/v1/bookings/{UNKNOWN_IDS[Resource.BOOKING]}")
    expect_error(exists, 401, "unauthorized")
    assert exists.content == absent.content
