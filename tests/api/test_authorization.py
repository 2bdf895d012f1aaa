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
# Resources that belong to no user.
OF_ORG: Final = (Resource.EVENT, Resource.ENDPOINT, Resource.SERIES, Resource.SERIES_JOB)
# Whose resource the path names: the caller's, another user's of the org, another org's, or nobody's.
TARGETS: Final = ("own", "other_user", "other_org", "absent")
Statuses = tuple[int, int, int, int]
Row = dict[str, Statuses]

UNKNOWN: Final[Statuses] = (401, 401, 401, 401)
DENIED: Final[Statuses] = (403, 403, 403, 403)


def within_org(status: int) -> Statuses:
    return (status, status, 404, 404)


def own_only(status: int) -> Statuses:
    return (status, 404, 404, 404)


def any_target(status: int) -> Statuses:
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
    "export_bookings": SELLERS,
    "get_booking": row(admin=within_org(200), sales=within_org(200), review=within_org(200), customer=own_only(200)),
    "extend_booking": BUYERS,
    "confirm_booking": SELLERS,
    "cancel_booking": BUYERS,
    "refund_booking": SELLERS,
    "transfer_booking": BUYERS,
    "start_payment": row(admin=within_org(201), sales=within_org(201), customer=own_only(201)),
    "get_payment": row(admin=within_org(200), sales=within_org(200), review=within_org(200), customer=own_only(200)),
    "refund_payment": SELLERS,
    "receive_notice": row(anonymous=any_target(400), staff=any_target(400), customer=any_target(400)),
    "submit_receipt": BUYERS,
    "list_receipts": REVIEWERS,
    "get_receipt": REVIEWERS,
    "approve_booking": REVIEWERS,
    "reject_booking": REVIEWERS,
    "list_tickets": HOLDERS,
    "get_qr_svg": HOLDERS,
    "get_qr_png": HOLDERS,
    "get_ticket_pdf": HOLDERS,
    "check_in": row(admin=any_target(422), door=any_target(422)),
    "get_ticket_key": READ_BY_ALL,
    "rotate_ticket_key": ADMINS,
    "get_progress": ADMINS,
    "create_endpoint": row(admin=any_target(201)),
    "list_endpoints": row(admin=any_target(200)),
    "get_endpoint": ADMINS,
    "change_endpoint": ADMINS,
    "rotate_endpoint": ADMINS,
    "delete_endpoint": ADMINS,
    "list_deliveries": ADMINS,
    "list_bookings": row(
        admin=any_target(200), sales=any_target(200), review=any_target(200), customer=any_target(200)
    ),
    "get_availability": READ_BY_ALL,
    "get_seats": READ_BY_ALL,
    "list_changes": READ_BY_ALL,
    "list_journal": ADMINS,
    "create_event": row(admin=any_target(201)),
    "list_events": row(anonymous=any_target(200), staff=any_target(200), customer=any_target(200)),
    "get_event": READ_BY_ALL,
    "change_event": ADMINS,
    "publish_event": ADMINS,
    "complete_event": ADMINS,
    "cancel_event": ADMINS,
    "create_series": row(admin=any_target(201)),
    "list_series": row(anonymous=any_target(200), staff=any_target(200), customer=any_target(200)),
    "get_series": READ_BY_ALL,
    "change_series": ADMINS,
    "create_series_events": row(admin=within_org(202)),
    "get_series_job": ADMINS,
    "get_org": row(admin=any_target(200)),
    "change_org": row(admin=any_target(200)),
    "set_logo": row(admin=any_target(200)),
    "delete_logo": row(admin=any_target(200)),
    "create_customer_token": row(admin=any_target(201), sales=any_target(201)),
    "healthz": row(anonymous=any_target(200), staff=any_target(200), customer=any_target(200)),
    "readyz": row(anonymous=any_target(200), staff=any_target(200), customer=any_target(200)),
}


def test_the_table_has_a_row_for_every_operation() -> None:
    assert set(TABLE) == set(BY_NAME)


class Tenants(Struct, frozen=True):
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
def tenants(server: Server, org: Org) -> Iterator[Tenants]:
    other = Org(server.database_url)
    headers: dict[str, dict[str, str]] = {role: org.headers(role) for role in STAFF}
    with server.client(org.headers("sales")) as sales:
        headers["customer"] = customer_headers(sales, "u-1")
    clients = {caller: server.client(headers.get(caller)) for caller in CALLERS}
    other_admin = server.client(other.headers("admin"))
    yield Tenants(org, other, clients, other_admin, {})
    for client in (*clients.values(), other_admin):
        client.close()


def customer_headers(sales: httpx.Client, user: str, ttl_seconds: int = 900) -> dict[str, str]:
    body = {"user": user, "ttl_seconds": ttl_seconds}
    token = expect_ok(sales.post("/v1/customer-tokens", json=body), 201)["token"]
    return {"Authorization": f"Bearer {token}"}


def create_target(tenants: Tenants, operation: Operation, kind: str) -> str:
    """Create a resource in the state that the operation needs, and return its id."""
    if operation.resource not in UNKNOWN_IDS:
        return resources.create_resource(tenants.admin, operation.resource)
    if kind == "absent":
        return UNKNOWN_IDS[operation.resource]
    owner = tenants.other_admin if kind == "other_org" else tenants.admin
    create = READY.get(operation.name)
    if create is None and operation.resource in OF_ORG:
        return resources.create_resource(owner, operation.resource)
    user = "u-2" if kind == "other_user" else "u-1"
    return create(owner, user) if create else resources.create_resource(owner, operation.resource, user)


def shared_target(tenants: Tenants, operation: Operation, kind: str) -> str:
    """The id of a resource that callers share if they only read it or are refused."""
    key = (operation.resource, kind, operation.name if operation.name in READY else "")
    if key not in tenants.unchanged:
        tenants.unchanged[key] = create_target(tenants, operation, kind)
    return tenants.unchanged[key]


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
    "create_series": {"title": "Casablanca"},
    "change_series": {"title": "Another title"},
    "create_series_events": {"template": example_event(), "rule": resources.THREE_DAYS},
    "create_customer_token": {"user": "u-1"},
    "transfer_booking": {"user": "u-3"},
    "start_payment": {"provider": "sandbox"},
    "submit_receipt": {"file_ref": "a file"},
    "check_in": {"code": "not a ticket"},
    "create_endpoint": {"url": "http://127.0.0.1:9/hook"},
    "change_org": {"colour": "#1f6feb"},
    "set_logo": resources.TINY_PNG,
}


def read_version(tenants: Tenants, operation: Operation, id_: str) -> Any:
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
        Resource.SERIES: f"/v1/series/{id_}",
        Resource.SERIES_JOB: f"/v1/series-jobs/{id_}",
    }[operation.resource]
    answers = [client.get(path) for client in (tenants.admin, tenants.other_admin)]
    has_version = operation.resource in (Resource.EVENT, Resource.BOOKING)
    return [
        answer.json()["version"] if has_version else answer.content for answer in answers if answer.status_code == 200
    ]


CODES: Final = {
    400: "invalid_signature",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    422: "invalid_ticket",
}


# Every combination, because access depends on the operation, the caller and the owner of the target together. A path
# that names no resource has one target.
@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        pytest.param(operation, kind, id=f"{operation.name}-{kind}")
        for operation in OPERATIONS
        for kind in (TARGETS if operation.resource in UNKNOWN_IDS else TARGETS[:1])
    ],
)
def test_every_caller_gets_the_status_in_the_table_and_a_refused_caller_changes_nothing(
    tenants: Tenants, operation: Operation, kind: str
) -> None:
    expected = {caller: TABLE[operation.name][caller][TARGETS.index(kind)] for caller in CALLERS}
    unchanged = shared_target(tenants, operation, kind)
    before = read_version(tenants, operation, unchanged)
    for caller, status in expected.items():
        changes = status < 400 and operation.method != "GET"
        with case(caller):
            answer = call_operation(
                tenants.clients[caller], operation, create_target(tenants, operation, kind) if changes else unchanged
            )
            assert answer.status_code == status, answer.text
            if status >= 400:
                assert expect_problem(answer)["code"] == CODES[status]
    assert read_version(tenants, operation, unchanged) == before


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.resource in UNKNOWN_IDS], ids=lambda o: o.name)
def test_a_resource_of_another_org_looks_exactly_like_one_that_does_not_exist(
    tenants: Tenants, operation: Operation
) -> None:
    for caller in (*STAFF, "customer"):
        with case(caller):
            client = tenants.clients[caller]
            other_org = call_operation(client, operation, shared_target(tenants, operation, "other_org"))
            absent = call_operation(client, operation, UNKNOWN_IDS[operation.resource])
            garbage = call_operation(client, operation, "nothing")
            assert other_org.status_code == absent.status_code == garbage.status_code
            assert other_org.content == absent.content == garbage.content
            assert set(other_org.headers) == set(absent.headers) == set(garbage.headers)


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.resource is Resource.BOOKING], ids=lambda o: o.name)
def test_a_booking_of_another_customer_looks_exactly_like_one_that_does_not_exist(
    tenants: Tenants, operation: Operation
) -> None:
    other_user = call_operation(tenants.customer, operation, shared_target(tenants, operation, "other_user"))
    absent = call_operation(tenants.customer, operation, UNKNOWN_IDS[operation.resource])
    assert (other_user.status_code, other_user.content) == (absent.status_code, absent.content)


def test_lists_show_nothing_of_another_org(tenants: Tenants) -> None:
    event = publish_event(tenants.other_admin, example_event())
    booking = expect_ok(post_hold(tenants.other_admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    for caller in ("admin", "sales", "review", "customer"):
        client = tenants.clients[caller]
        assert booking not in client.get("/v1/bookings", params={"limit": 200}).text
        assert expect_ok(client.get("/v1/bookings", params={"event": event}))["items"] == []
        assert event not in client.get("/v1/events", params={"limit": 200}).text
        assert event not in client.get("/v1/events", params={"org": tenants.other.slug, "limit": 200}).text


def test_a_customer_lists_their_own_bookings_and_no_others(tenants: Tenants) -> None:
    event = publish_event(tenants.admin, example_event())
    own = expect_ok(post_hold(tenants.admin, event, user="u-1", items=[{"seat": "A-1"}]), 201)["id"]
    expect_ok(post_hold(tenants.admin, event, user="u-2", items=[{"seat": "A-2"}]), 201)
    for params in ({}, {"user": "u-1"}):
        items = expect_ok(tenants.customer.get("/v1/bookings", params={"event": event, **params}))["items"]
        assert [item["id"] for item in items] == [own]
    others = tenants.customer.get("/v1/bookings", params={"event": event, "user": "u-2"})
    assert others.status_code == 403 or expect_ok(others)["items"] == []


def test_a_customer_can_only_hold_for_themselves(tenants: Tenants) -> None:
    event = publish_event(tenants.admin, example_event())
    unnamed = tenants.customer.post(
        f"/v1/events/{event}/holds", json={"items": [{"seat": "A-1"}]}, headers={"Idempotency-Key": "1"}
    )
    assert expect_ok(unnamed, 201)["user"] == "u-1"
    assert expect_ok(post_hold(tenants.customer, event, user="u-1", items=[{"seat": "A-2"}]), 201)["user"] == "u-1"
    expect_error(post_hold(tenants.customer, event, user="u-2", items=[{"seat": "A-3"}]), 403, "forbidden")
    assert expect_ok(post_hold(tenants.admin, event, user="u-2", items=[{"seat": "A-3"}]), 201)["user"] == "u-2"


def test_idempotency_keys_of_customers_and_the_back_end_do_not_collide(server: Server, tenants: Tenants) -> None:
    event = publish_event(tenants.admin, example_event())
    users = []
    with server.client(customer_headers(tenants.admin, "u-2")) as second:
        for client, seat in ((tenants.customer, "A-1"), (second, "A-2"), (tenants.admin, "A-3")):
            body = {"items": [{"seat": seat}], **({"user": "u-3"} if client is tenants.admin else {})}
            answer = client.post(f"/v1/events/{event}/holds", json=body, headers={"Idempotency-Key": "same"})
            assert "idempotency-replayed" not in answer.headers
            users.append(expect_ok(answer, 201)["user"])
    assert users == ["u-1", "u-2", "u-3"]


def test_a_customer_cannot_replay_a_booking_of_the_back_end(tenants: Tenants) -> None:
    event = publish_event(tenants.admin, example_event())
    first = expect_ok(post_hold(tenants.admin, event, key="same", user="u-2", items=[{"seat": "A-1"}]), 201)
    repeated = post_hold(tenants.customer, event, key="same", items=[{"seat": "A-1"}])
    problem = expect_error(repeated, 409, "seat_taken")
    assert problem["conflicts"] == [first["items"][0]["seat"]]
    assert "booking" not in problem


def test_a_key_of_another_org_cannot_replay_a_booking(tenants: Tenants) -> None:
    event = publish_event(tenants.admin, example_event())
    body = {"user": "u-1", "items": [{"seat": "A-1"}]}
    first = expect_ok(post_hold(tenants.admin, event, key="same", **body), 201)
    stolen = post_hold(tenants.other_admin, event, key="same", **body)
    assert (
        expect_error(stolen, 404, "not_found")
        == post_hold(tenants.other_admin, UNKNOWN_IDS[Resource.EVENT], key="same", **body).json()
    )
    repeated = post_hold(tenants.admin, event, key="same", **body)
    assert expect_ok(repeated, 201)["id"] == first["id"]
    assert repeated.headers["idempotency-replayed"] == "true"


PUBLIC_READS: Final = ("get_event", "get_availability", "get_seats", "list_changes")


@pytest.mark.parametrize(
    ("caller", "name"),
    [
        *(("anonymous", name) for name in (*PUBLIC_READS, "place_hold")),
        ("customer", "get_event"),
        ("customer", "place_hold"),
    ],
)
def test_a_draft_is_not_found_for_the_public_and_for_customers(tenants: Tenants, caller: str, name: str) -> None:
    draft = expect_ok(tenants.admin.post("/v1/events", json=example_event()), 201)["id"]
    answer = call_operation(tenants.clients[caller], BY_NAME[name], draft)
    absent = call_operation(tenants.clients[caller], BY_NAME[name], UNKNOWN_IDS[Resource.EVENT])
    assert answer.json() == absent.json()
    assert absent.status_code == (401 if (caller, name) == ("anonymous", "place_hold") else 404)


def test_only_staff_see_a_draft_in_lists(tenants: Tenants) -> None:
    draft = expect_ok(tenants.admin.post("/v1/events", json=example_event()), 201)["id"]
    for caller in CALLERS:
        for params in ({}, {"status": "draft"}, {"org": tenants.org.slug}):
            listed = tenants.clients[caller].get("/v1/events", params={"limit": 200, **params}).text
            assert (draft in listed) is (caller in STAFF), (caller, params)


@pytest.mark.parametrize(
    ("caller", "name"),
    [*((caller, "get_event") for caller in STAFF), *(("admin", name) for name in PUBLIC_READS if name != "get_event")],
)
def test_staff_can_read_drafts(tenants: Tenants, caller: str, name: str) -> None:
    draft = expect_ok(tenants.admin.post("/v1/events", json=example_event()), 201)["id"]
    expect_ok(call_operation(tenants.clients[caller], BY_NAME[name], draft))


@pytest.mark.parametrize(("ending", "name"), [*(("complete", name) for name in PUBLIC_READS), ("cancel", "get_event")])
def test_everybody_can_still_read_an_ended_event(tenants: Tenants, ending: str, name: str) -> None:
    event = publish_event(tenants.admin, example_event())
    expect_ok(tenants.admin.post(f"/v1/events/{event}/{ending}"))
    for caller in CALLERS:
        expect_ok(call_operation(tenants.clients[caller], BY_NAME[name], event))


def is_refused(client: httpx.Client) -> bool:
    answer = client.get("/v1/bookings")
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 401


def test_a_revoked_key_is_refused(server: Server, tenants: Tenants) -> None:
    async def create_keys(connection: db.Connection) -> list[str]:
        return [await create_key(db.Database(connection), tenants.org.id, Role.ADMIN) for _ in range(2)]

    def revoke(key: str) -> None:
        query(server.database_url, statements.credentials.revoke_key, tenants.org.id, key[:12])

    used, unused = run_with_connection(create_keys, server.database_url)
    with server.client({"Authorization": f"Bearer {used}"}) as client:
        assert not is_refused(client)
        revoke(used)
        wait_until(lambda: is_refused(client), 15)
        expect_error(client.get("/v1/bookings"), 401, "unauthorized")
    revoke(unused)
    expect_error(
        httpx.get(f"{server.url}/v1/bookings", headers={"Authorization": f"Bearer {unused}"}, timeout=30, verify=False),
        401,
        "unauthorized",
    )


def test_a_customer_token_is_refused_once_it_has_expired(server: Server, tenants: Tenants) -> None:
    with server.client(customer_headers(tenants.admin, "u-1", ttl_seconds=1)) as client:
        wait_until(lambda: is_refused(client), 15)
        expect_error(client.get("/v1/bookings"), 401, "unauthorized")
    with server.client(customer_headers(tenants.admin, "u-1", ttl_seconds=60)) as client:
        assert not is_refused(client)


class TokenForge:
    """Creates valid and forged tokens of an org."""

    def __init__(self, server: Server, tenants: Tenants) -> None:
        def secret(org: Org) -> bytes:
            found: bytes = query(server.database_url, statements.credentials.token_secret, org.id)[0][0]
            return found

        self.expires_at = int(time.time()) + 600
        self.secret = secret(tenants.org)
        self.other_secret = secret(tenants.other)
        self.kid = ids.format_org_id(tenants.org.id)
        self.other_kid = ids.format_org_id(tenants.other.id)

    def token(self, *, secret: bytes | None = None, kid: str = "", **claims: Any) -> str:
        """A valid token except for the given parts. A claim of None is left out."""
        all_claims = {"sub": "u-1", "aud": AUDIENCE, "exp": self.expires_at, **claims}
        return jwt.encode(
            {name: value for name, value in all_claims.items() if value is not None},
            self.secret if secret is None else secret,
            algorithm="HS256",
            headers={"kid": kid or self.kid},
        )

    def splice(self, **claims: Any) -> str:
        """The signature of a valid token under other claims."""
        header, _, signature = self.token().split(".")
        return f"{header}.{self.token(**claims).split('.')[1]}.{signature}"

    def sign(self, algorithm: str, digest: str) -> str:
        """A valid token except for its algorithm."""
        _, claims, _ = self.token().split(".")
        text = f"{self.relabel(alg=algorithm).split('.')[0]}.{claims}"
        signature = hmac.digest(self.secret, text.encode(), digest)
        return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    def relabel(self, **changes: Any) -> str:
        """The claims and the signature of a valid token under another header."""
        _, claims, signature = self.token().split(".")
        header = json.dumps({"alg": "HS256", "typ": "JWT", "kid": self.kid, **changes}).encode()
        return f"{base64.urlsafe_b64encode(header).rstrip(b'=').decode()}.{claims}.{signature}"


@pytest.fixture(scope="module")
def token_forge(server: Server, tenants: Tenants) -> TokenForge:
    return TokenForge(server, tenants)


FORGERIES: Final[dict[str, Callable[[TokenForge], str]]] = {
    "signed_by_another_org": lambda f: f.token(secret=f.other_secret),
    "signed_by_one_org_for_another": lambda f: f.token(kid=f.other_kid),
    "signed_with_zeros": lambda f: f.token(secret=b"\0" * 32),
    "algorithm_none": lambda f: f.relabel(alg="none").rpartition(".")[0] + ".",
    "algorithm_none_and_a_signature": lambda f: f.relabel(alg="none"),
    "algorithm_none_in_capitals": lambda f: f.relabel(alg="NONE").rpartition(".")[0] + ".",
    "algorithm_hs384_with_the_right_secret": lambda f: f.sign("HS384", "sha384"),
    "algorithm_hs512_with_the_right_secret": lambda f: f.sign("HS512", "sha512"),
    "algorithm_of_public_keys": lambda f: f.relabel(alg="RS256"),
    "algorithm_missing": lambda f: f.relabel(alg=None),
    "another_user": lambda f: f.splice(sub="u-2"),
    "a_later_expiry": lambda f: f.splice(exp=int(time.time()) + 10**6),
    "no_signature": lambda f: f.token().rpartition(".")[0] + ".",
    "no_signature_part": lambda f: f.token().rpartition(".")[0],
    "half_a_signature": lambda f: f.token()[:-20],
    "a_part_too_many": lambda f: f.token() + ".e30",
    "expired": lambda f: f.token(exp=int(time.time()) - 1),
    "expired_long_ago": lambda f: f.token(exp=0),
    "never_expires": lambda f: f.token(exp=None),
    "expires_in_words": lambda f: f.token(exp="tomorrow"),
    "not_valid_yet": lambda f: f.token(nbf=int(time.time()) + 600),
    "no_user": lambda f: f.token(sub=None),
    "a_user_that_is_a_number": lambda f: f.token(sub=1),
    "no_audience": lambda f: f.token(aud=None),
    "another_audience": lambda f: f.token(aud="another-product"),
    "an_unknown_org": lambda f: f.token(kid=ids.format_org_id(bytes(16))),
    "an_org_in_capitals": lambda f: f.token(kid=f.kid.upper()),
}


@pytest.mark.parametrize(
    "make",
    [lambda f: f.token(), lambda f: f.sign("HS256", "sha256"), lambda f: f.splice()],
    ids=["made_whole", "signed_by_hand", "spliced_unchanged"],
)
def test_a_valid_token_is_accepted(server: Server, token_forge: TokenForge, make: Callable[[TokenForge], str]) -> None:
    with server.client({"Authorization": f"Bearer {make(token_forge)}"}) as client:
        expect_ok(client.get("/v1/bookings"))


@pytest.mark.parametrize("forge", [pytest.param(forge, id=name) for name, forge in FORGERIES.items()])
def test_a_forged_token_is_refused(server: Server, token_forge: TokenForge, forge: Callable[[TokenForge], str]) -> None:
    with server.client({"Authorization": f"Bearer {forge(token_forge)}"}) as client:
        for path in ("/v1/bookings", "/v1/events"):
            expect_error(client.get(path), 401, "unauthorized")


@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.body_type not in (None, bytes)], ids=lambda o: o.name)
def test_a_malformed_request_is_looked_at_only_if_its_sender_may_send_it(
    tenants: Tenants, operation: Operation
) -> None:
    """What exists makes no difference, so nobody can learn it from the answer."""
    unknown = {"Authorization": "Bearer nobody"}
    may_enter = Role.DOOR in operation.access.roles
    callers = {
        "anonymous": (tenants.clients["anonymous"], {}, (401, "unauthorized")),
        "unknown": (tenants.clients["anonymous"], unknown, (401, "unauthorized")),
        "door": (tenants.clients["door"], {}, (422, "invalid_request") if may_enter else (403, "forbidden")),
        "admin": (tenants.admin, {}, (422, "invalid_request")),
    }
    for caller, (client, headers, expected) in callers.items():
        with case(caller):
            answer = call_operation(client, operation, UNKNOWN_IDS.get(operation.resource, ""), ["no object"], headers)
            expect_error(answer, *expected)


CONTRADICTORY_REQUESTS: Final[dict[str, tuple[str, Any]]] = {
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


@pytest.mark.parametrize(
    ("name", "body"), [pytest.param(*value, id=key) for key, value in CONTRADICTORY_REQUESTS.items()]
)
def test_a_contradictory_request_is_refused_after_its_sender_and_before_the_event(
    tenants: Tenants, name: str, body: Any
) -> None:
    ids_ = (UNKNOWN_IDS[Resource.EVENT], "nothing") if name != "create_event" else ("",)
    for id_ in ids_:
        expect_error(call_operation(tenants.admin, BY_NAME[name], id_, body), 422, "invalid_request")
        expect_error(call_operation(tenants.clients["door"], BY_NAME[name], id_, body), 403, "forbidden")
        expect_error(call_operation(tenants.clients["anonymous"], BY_NAME[name], id_, body), 401, "unauthorized")


def test_a_hold_without_a_user_is_refused_before_the_event_lookup(tenants: Tenants) -> None:
    for id_ in (UNKNOWN_IDS[Resource.EVENT], "nothing"):
        answer = call_operation(tenants.admin, BY_NAME["place_hold"], id_, {"items": [{"seat": "A-1"}]})
        expect_error(answer, 422, "invalid_request")


def test_a_customer_who_names_another_user_is_refused_before_the_event_lookup(tenants: Tenants) -> None:
    for id_ in (UNKNOWN_IDS[Resource.EVENT], "nothing"):
        body = {"user": "u-2", "items": [{"seat": "A-1"}]}
        expect_error(call_operation(tenants.customer, BY_NAME["place_hold"], id_, body), 403, "forbidden")


def test_a_seat_named_twice_is_refused_before_an_event_not_on_sale(tenants: Tenants) -> None:
    draft = expect_ok(tenants.admin.post("/v1/events", json=example_event()), 201)["id"]
    expect_error(post_hold(tenants.admin, draft, items=[{"seat": "A-1"}, {"seat": "A-1"}]), 422, "invalid_request")


def test_the_public_cannot_learn_whether_a_booking_exists(tenants: Tenants) -> None:
    booking = create_target(tenants, BY_NAME["get_booking"], "own")
    anonymous = tenants.clients["anonymous"]
    exists = anonymous.get(f"/v1/bookings/{booking}")
    absent = anonymous.get(f"/v1/bookings/{UNKNOWN_IDS[Resource.BOOKING]}")
    expect_error(exists, 401, "unauthorized")
    assert exists.content == absent.content
