"""An org receives signed webhook events at its own URLs and can look up every delivery."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
from standardwebhooks import Webhook

from holdfast.api.openapi import openapi_document
from holdfast.api.operations import OPERATIONS
from tests.support.concurrent_requests import request, send_all_at_once
from tests.support.harness import (
    Org,
    Server,
    example_event,
    post_hold,
    publish_event,
    query,
    running_server,
    wait_until,
)
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.resources import reviewed_event
from tests.support.webhook_receiver import ReceivedWebhook, WebhookReceiver, running_webhook_receiver

ARRIVES_SECONDS = 30
DOCUMENT: Any = json.loads(openapi_document(OPERATIONS))
ENDPOINTS_MAX = 20
NOWHERE = "https://hooks.example.org/x"


@pytest.fixture(scope="module")
def server(product: Server) -> Server:
    return product


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with running_webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def admin(server: Server, org: Org) -> Iterator[httpx.Client]:
    """The admin of an org without endpoints."""
    with server.client(org.headers()) as client:
        yield client
        for endpoint in client.get("/v1/webhook-endpoints").json()["items"]:
            client.delete(f"/v1/webhook-endpoints/{endpoint['id']}")


def _create(client: httpx.Client, url: str = NOWHERE, **more: Any) -> dict[str, Any]:
    return expect_ok(client.post("/v1/webhook-endpoints", json={"url": url, **more}), 201)


def _get(client: httpx.Client, id_: str) -> dict[str, Any]:
    return expect_ok(client.get(f"/v1/webhook-endpoints/{id_}"))


def _patch(client: httpx.Client, id_: str, **change: Any) -> dict[str, Any]:
    return expect_ok(client.patch(f"/v1/webhook-endpoints/{id_}", json=change))


def _deliveries(client: httpx.Client, id_: str, **query: Any) -> dict[str, Any]:
    return expect_ok(client.get(f"/v1/webhook-endpoints/{id_}/deliveries", params=query))


def _place_hold(client: httpx.Client, event: str) -> str:
    booking: str = expect_ok(post_hold(client, event, items=[{"pool": "standing", "tariff": "full"}]), 201)["id"]
    return booking


def _wait_until(condition: Callable[[], bool]) -> None:
    wait_until(condition, ARRIVES_SECONDS)


def test_an_endpoint_can_be_created_read_changed_and_deleted(admin: httpx.Client) -> None:
    endpoint = _create(admin, kinds=["booking.confirmed"])
    assert (endpoint["url"], endpoint["kinds"], endpoint["enabled"], endpoint["disabled_reason"]) == (
        NOWHERE,
        ["booking.confirmed"],
        True,
        None,
    )
    found = _get(admin, endpoint["id"])
    assert {**endpoint, "secret": None} == found
    assert expect_ok(admin.get("/v1/webhook-endpoints"))["items"] == [found]
    changed = _patch(admin, endpoint["id"], kinds=[], url=f"{NOWHERE}/2")
    assert (changed["kinds"], changed["url"], changed["enabled"]) == ([], f"{NOWHERE}/2", True)
    assert _patch(admin, endpoint["id"]) == changed
    off = _patch(admin, endpoint["id"], enabled=False)
    assert (off["enabled"], off["disabled_reason"]) == (False, "switched off")
    on = _patch(admin, endpoint["id"], enabled=True)
    assert (on["enabled"], on["disabled_reason"]) == (True, None)
    assert expect_ok(admin.delete(f"/v1/webhook-endpoints/{endpoint['id']}"))["id"] == endpoint["id"]
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/rotate"), ("GET", "/deliveries")):
        body: dict[str, Any] | None = {} if method in ("PATCH", "POST") else None
        expect_error(
            admin.request(method, f"/v1/webhook-endpoints/{endpoint['id']}{path}", json=body), 404, "not_found"
        )
    assert expect_ok(admin.get("/v1/webhook-endpoints"))["items"] == []


def test_a_secret_is_returned_only_when_it_is_created(server: Server, admin: httpx.Client) -> None:
    endpoint = _create(admin)
    assert endpoint["secret"].startswith("whsec_")
    Webhook(endpoint["secret"])
    rotated = expect_ok(admin.post(f"/v1/webhook-endpoints/{endpoint['id']}/rotate"))
    assert rotated["secret"].startswith("whsec_")
    assert rotated["secret"] != endpoint["secret"]
    event = publish_event(admin, example_event())
    _place_hold(admin, event)
    answers = [
        admin.get(f"/v1/webhook-endpoints/{endpoint['id']}"),
        admin.get("/v1/webhook-endpoints"),
        admin.patch(f"/v1/webhook-endpoints/{endpoint['id']}", json={"enabled": True}),
        admin.get(f"/v1/webhook-endpoints/{endpoint['id']}/deliveries"),
        admin.get(f"/v1/events/{event}/journal"),
        admin.delete(f"/v1/webhook-endpoints/{endpoint['id']}"),
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert not [answer.text for answer in answers if "whsec_" in answer.text]


@pytest.mark.parametrize("kind", ["booking.stolen", "confirmed", "booking.*", "event.created", "payment.held", " ", ""])
def test_unknown_kinds_are_refused(admin: httpx.Client, kind: str) -> None:
    body = {"url": NOWHERE, "kinds": ["booking.confirmed", kind]}
    expect_error(admin.post("/v1/webhook-endpoints", json=body), 422, "invalid_request")
    endpoint = _create(admin)
    expect_error(admin.patch(f"/v1/webhook-endpoints/{endpoint['id']}", json={"kinds": [kind]}), 422, "invalid_request")
    assert _get(admin, endpoint["id"])["kinds"] == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.org",
        "ftp://hooks.example.org/",
        "file:///etc/passwd",
        "https://user:secret@hooks.example.org/",
        "https://hooks.example.org/#part",
        "https://",
        "https://hooks.example.org:0/",
        "https://hooks.example.org:99999/",
        "http://2130706433/",
        "http://0x7f.1/",
        "https://hooks example.org/",
    ],
)
def test_a_url_that_is_not_http_is_refused(admin: httpx.Client, url: str) -> None:
    expect_error(admin.post("/v1/webhook-endpoints", json={"url": url}), 422, "invalid_request")
    endpoint = _create(admin)
    expect_error(admin.patch(f"/v1/webhook-endpoints/{endpoint['id']}", json={"url": url}), 422, "invalid_request")
    assert _get(admin, endpoint["id"])["url"] == NOWHERE


def test_private_addresses_are_refused_by_default(database: str, receiver: WebhookReceiver) -> None:
    """A host name is resolved only at delivery. If its address is private, nothing is sent."""
    hosts = ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "172.16.0.1", "0.0.0.0", "[::1]", "[fd00::1]",
             "[::ffff:127.0.0.1]"]  # fmt: skip
    org = Org(database)
    with running_server(database, workers=1, worker=True, HOLDFAST_WEBHOOKS_TO_PRIVATE_ADDRESSES="false") as server:
        with server.client(org.headers()) as admin:
            public = _create(admin)
            for host in hosts:
                url = f"http://{host}/hook"
                expect_error(admin.post("/v1/webhook-endpoints", json={"url": url}), 422, "invalid_request")
                path = f"/v1/webhook-endpoints/{public['id']}"
                expect_error(admin.patch(path, json={"url": url}), 422, "invalid_request")
            _patch(admin, public["id"], enabled=False)
            by_name = _create(admin, receiver.url.replace("127.0.0.1", "localhost"))
            publish_event(admin, example_event())
            _wait_until(lambda: bool(_deliveries(admin, by_name["id"])["items"][0]["attempts"]))
            _wait_until(lambda: _deliveries(admin, by_name["id"])["items"][0]["last_error"] is not None)
            (delivery,) = _deliveries(admin, by_name["id"])["items"]
            assert (delivery["status"], delivery["last_error"]) == ("waiting", "the address is not public")
            assert receiver.received == []


def is_documented(webhook: ReceivedWebhook) -> bool:
    """Whether the webhook matches the OpenAPI document."""
    request = DOCUMENT["webhooks"][webhook.kind]["post"]["requestBody"]
    schema = {**request["content"]["application/json"]["schema"], "components": DOCUMENT["components"]}
    return jsonschema_rs.is_valid(schema, webhook.document, validate_formats=True)


def test_a_receiver_gets_signed_webhook_events_in_order(admin: httpx.Client, receiver: WebhookReceiver) -> None:
    endpoint = _create(admin, receiver.url)
    event = publish_event(admin, reviewed_event())
    booking = _place_hold(admin, event)
    expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f"}))
    expect_ok(admin.post(f"/v1/bookings/{booking}/approve"))
    expect_ok(admin.post(f"/v1/bookings/{booking}/refund", json={"reason": "Rain."}))
    expect_ok(admin.patch(f"/v1/events/{event}", json={"title": "Saturday night"}))
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    of_booking = [
        "booking.held",
        "booking.payment_submitted",
        "payment.submitted",
        "payment.succeeded",
        "booking.confirmed",
        "booking.refunded",
        "payment.refund_due",
    ]
    _wait_until(lambda: len(receiver.kinds_of(booking)) > len(of_booking))
    # Only staff can refund a receipt.
    assert receiver.kinds_of(booking) == [*of_booking, "payment.review"]
    _wait_until(lambda: "event.cancelled" in [webhook.kind for webhook in receiver.received])
    of_event = [webhook for webhook in receiver.received if webhook.kind.startswith("event.")]
    assert [webhook.kind for webhook in of_event] == ["event.published", "event.changed", "event.cancelled"]
    assert all(webhook.is_signed_with(endpoint["secret"]) for webhook in receiver.received)
    assert len({webhook.headers["webhook-id"] for webhook in receiver.received}) == len(receiver.received)
    assert [webhook.kind for webhook in receiver.received if not is_documented(webhook)] == []
    assert not is_documented(ReceivedWebhook({}, b'{"type": "booking.held", "timestamp": "now", "data": {}}'))
    assert [webhook.document["data"]["event"] for webhook in of_event] == [event] * 3
    assert of_event[1].document["data"]["title"] == "Saturday night"
    refunded = next(webhook.document for webhook in receiver.received if webhook.kind == "booking.refunded")
    data = refunded["data"]
    assert (data["booking"], data["user"], data["status"], data["reason"]) == (booking, "u-1", "refunded", "Rain.")
    assert data["items"] == [
        {"pool": "standing", "tariff": "full", "seat": None, "quantity": 1, "unit_price": 1500},
    ]
    journal = expect_ok(admin.get(f"/v1/events/{event}/journal"))["items"]
    entries = {entry["seq"]: entry for entry in journal}
    assert entries[data["seq"]]["kind"] == "refunded"


def test_a_changed_body_or_another_secret_does_not_verify(admin: httpx.Client, receiver: WebhookReceiver) -> None:
    endpoint, other = _create(admin, receiver.url), _create(admin)
    publish_event(admin, example_event())
    _wait_until(lambda: bool(receiver.received))
    (webhook, *_) = receiver.received
    assert webhook.is_signed_with(endpoint["secret"])
    assert not webhook.is_signed_with(other["secret"])
    assert not ReceivedWebhook(webhook.headers, webhook.body.replace(b"Friday", b"Sunday")).is_signed_with(
        endpoint["secret"]
    )


def test_an_endpoint_gets_only_its_own_kinds(admin: httpx.Client, receiver: WebhookReceiver) -> None:
    _create(admin, receiver.url, kinds=["booking.confirmed", "event.completed"])
    event = publish_event(admin, example_event())
    booking = _place_hold(admin, event)
    expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))
    expect_ok(admin.post(f"/v1/events/{event}/complete"))
    _wait_until(lambda: len(receiver.received) >= 2)
    assert sorted(webhook.kind for webhook in receiver.received) == ["booking.confirmed", "event.completed"]


def test_an_org_gets_no_webhooks_about_another(server: Server, admin: httpx.Client, receiver: WebhookReceiver) -> None:
    other = Org(server.database_url)
    endpoint = _create(admin, receiver.url)
    with server.client(other.headers()) as stranger:
        _place_hold(stranger, publish_event(stranger, example_event()))
        for path in ("", "/deliveries"):
            expect_error(stranger.get(f"/v1/webhook-endpoints/{endpoint['id']}{path}"), 404, "not_found")
        expect_error(stranger.post(f"/v1/webhook-endpoints/{endpoint['id']}/rotate"), 404, "not_found")
        expect_error(
            stranger.patch(f"/v1/webhook-endpoints/{endpoint['id']}", json={"enabled": False}), 404, "not_found"
        )
        expect_error(stranger.delete(f"/v1/webhook-endpoints/{endpoint['id']}"), 404, "not_found")
        assert expect_ok(stranger.get("/v1/webhook-endpoints"))["items"] == []
    event = publish_event(admin, example_event())
    _wait_until(lambda: bool(receiver.received))
    assert {webhook.document["data"]["event"] for webhook in receiver.received} == {event}
    assert receiver.received[0].is_signed_with(endpoint["secret"])


def test_after_a_rotation_the_old_and_the_new_secret_both_sign(admin: httpx.Client, receiver: WebhookReceiver) -> None:
    old = _create(admin, receiver.url)
    new = expect_ok(admin.post(f"/v1/webhook-endpoints/{old['id']}/rotate"))
    publish_event(admin, example_event())
    _wait_until(lambda: bool(receiver.received))
    (webhook,) = receiver.received
    assert len(webhook.headers["webhook-signature"].split(" ")) == 2
    assert webhook.is_signed_with(old["secret"])
    assert webhook.is_signed_with(new["secret"])
    newest = expect_ok(admin.post(f"/v1/webhook-endpoints/{old['id']}/rotate"))
    publish_event(admin, example_event())
    _wait_until(lambda: len(receiver.received) == 2)
    assert [receiver.received[1].is_signed_with(each["secret"]) for each in (old, new, newest)] == [False, True, True]


def test_the_old_secret_signs_for_a_day(server: Server, admin: httpx.Client, receiver: WebhookReceiver) -> None:
    old = _create(admin, receiver.url)
    new = expect_ok(admin.post(f"/v1/webhook-endpoints/{old['id']}/rotate"))
    id_ = bytes.fromhex(old["id"].removeprefix("we_"))
    (row,) = query(
        server.database_url, "SELECT old_secret_until - holdfast_now() AS left FROM webhook_endpoint WHERE id = $1", id_
    )
    assert 86_000 < row["left"].total_seconds() <= 86_400
    query(server.database_url, "UPDATE webhook_endpoint SET old_secret_until = holdfast_now() WHERE id = $1", id_)
    publish_event(admin, example_event())
    _wait_until(lambda: bool(receiver.received))
    assert [receiver.received[0].is_signed_with(each["secret"]) for each in (old, new)] == [False, True]


def test_deliveries_are_listed_in_pages_newest_first(admin: httpx.Client, receiver: WebhookReceiver) -> None:
    endpoint = _create(admin, receiver.url)
    events = [publish_event(admin, example_event()) for _ in range(2)]
    for number in range(6):
        _place_hold(admin, events[number % 2])
    _wait_until(lambda: len(receiver.received) == 8)
    _wait_until(lambda: {each["status"] for each in _deliveries(admin, endpoint["id"])["items"]} == {"delivered"})
    everything = _deliveries(admin, endpoint["id"])
    assert everything["next"] is None
    assert len(everything["items"]) == 8
    moments = [each["created_at"] for each in everything["items"]]
    assert moments == sorted(moments, reverse=True)
    pages, after = [], None
    while True:
        page = _deliveries(admin, endpoint["id"], limit=3, **({"after": after} if after else {}))
        pages.append(page["items"])
        after = page["next"]
        if after is None:
            break
    assert [len(page) for page in pages] == [3, 3, 2]
    assert [each for page in pages for each in page] == everything["items"]
    newest = everything["items"][0]
    assert (newest["event"], newest["kind"], newest["attempts"]) == (events[1], "booking.held", 1)
    assert (newest["next_attempt_at"], newest["last_error"], newest["done_at"] is None) == (None, None, False)
    assert _deliveries(admin, endpoint["id"], status="failed")["items"] == []
    assert len(_deliveries(admin, endpoint["id"], status="delivered")["items"]) == 8
    for params in ({"after": "x"}, {"after": f"{events[0]}:x"}, {"limit": 0}, {"limit": 201}, {"status": "lost"}):
        answer = admin.get(f"/v1/webhook-endpoints/{endpoint['id']}/deliveries", params=params)
        expect_error(answer, 422, "invalid_request")


def test_deliveries_of_the_same_moment_are_paged_without_gaps(admin: httpx.Client) -> None:
    """All bookings of an event end in one batch, and so at the same time."""
    event = publish_event(admin, example_event())
    for _ in range(5):
        _place_hold(admin, event)
    endpoint = _create(admin, kinds=["booking.cancelled"])
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    numbers, after = [], None
    while True:
        page = _deliveries(admin, endpoint["id"], limit=2, **({"after": after} if after else {}))
        numbers += [each["seq"] for each in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert len(numbers) == len(set(numbers)) == 5
    assert numbers == sorted(numbers, reverse=True)


def test_a_failed_delivery_is_listed_and_retried(admin: httpx.Client, receiver: WebhookReceiver) -> None:
    receiver.status = 500
    endpoint = _create(admin, receiver.url)
    publish_event(admin, example_event())
    _wait_until(lambda: any(each["last_error"] for each in _deliveries(admin, endpoint["id"])["items"]))
    (waiting,) = _deliveries(admin, endpoint["id"], status="waiting")["items"]
    assert (waiting["attempts"], waiting["last_error"], waiting["done_at"]) == (1, "HTTP 500", None)
    assert waiting["next_attempt_at"] > waiting["created_at"]
    receiver.status = 200
    _wait_until(lambda: _deliveries(admin, endpoint["id"])["items"][0]["status"] == "delivered")
    assert len({webhook.headers["webhook-id"] for webhook in receiver.received}) == 1
    assert len(receiver.received) == _deliveries(admin, endpoint["id"])["items"][0]["attempts"] == 2


def test_an_endpoint_that_answers_410_is_disabled_and_can_be_enabled_again(
    admin: httpx.Client, receiver: WebhookReceiver
) -> None:
    receiver.status = 410
    endpoint = _create(admin, receiver.url)
    event = publish_event(admin, example_event())
    _wait_until(lambda: not _get(admin, endpoint["id"])["enabled"])
    assert "410" in _get(admin, endpoint["id"])["disabled_reason"]
    (failed,) = _deliveries(admin, endpoint["id"])["items"]
    assert (failed["status"], failed["next_attempt_at"]) == ("failed", None)
    receiver.status, received = 204, len(receiver.received)
    missed = _place_hold(admin, event)
    assert len(_deliveries(admin, endpoint["id"])["items"]) == 1, "a disabled endpoint receives nothing new"
    back = _patch(admin, endpoint["id"], enabled=True)
    assert (back["enabled"], back["disabled_reason"]) == (True, None)
    booking = _place_hold(admin, event)
    _wait_until(lambda: len(receiver.received) > received)
    assert (receiver.kinds_of(missed), receiver.kinds_of(booking)) == ([], ["booking.held"])
    assert _get(admin, endpoint["id"])["enabled"]


def test_a_disabled_or_deleted_endpoint_gets_no_webhooks(admin: httpx.Client, receiver: WebhookReceiver) -> None:
    """A delivery to another endpoint shows that there was enough time."""
    off, gone, on = (_create(admin, receiver.url) for _ in range(3))
    _patch(admin, off["id"], enabled=False)
    expect_ok(admin.delete(f"/v1/webhook-endpoints/{gone['id']}"))
    _place_hold(admin, publish_event(admin, example_event()))
    _wait_until(lambda: len(receiver.received) >= 2)
    assert _deliveries(admin, off["id"])["items"] == []
    assert all(webhook.is_signed_with(on["secret"]) for webhook in receiver.received)
    assert len(receiver.received) == 2


def test_an_org_has_a_limited_number_of_endpoints(server: Server, admin: httpx.Client) -> None:
    for _ in range(ENDPOINTS_MAX):
        endpoint = _create(admin)
    expect_error(admin.post("/v1/webhook-endpoints", json={"url": NOWHERE}), 409, "limit_reached")
    with server.client(Org(server.database_url).headers()) as other:
        _create(other)
    expect_ok(admin.delete(f"/v1/webhook-endpoints/{endpoint['id']}"))
    _create(admin)


def test_simultaneous_requests_do_not_exceed_the_limit_of_endpoints(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    body = {"url": NOWHERE}
    send_all_at_once(
        server.port, [request("POST", "/v1/webhook-endpoints", org.keys["admin"], body) for _ in range(60)]
    )
    assert len(expect_ok(admin.get("/v1/webhook-endpoints"))["items"]) == ENDPOINTS_MAX
