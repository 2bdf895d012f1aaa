"""A browser can subscribe only to its own booking, through a form of our page, and gets what it subscribed to."""

from collections.abc import Iterator

import httpx
import pytest

from holdfast.web.push_pages import WORKER_PATH
from tests.support.harness import Org, Server, example_event, publish_event, wait_until
from tests.support.html_client import get_page, hold_on_page, new_visitor, same_origin_headers, submit_file
from tests.support.http_assertions import expect_ok
from tests.support.push_service import (
    JSON,
    PushService,
    SubscribedBrowser,
    count_subscriptions,
    post_subscription,
    push_form,
    push_service_and_server,
    subscribe_on_page,
)
from tests.support.resources import TINY_PNG, reviewed_event

WAIT_SECONDS = 30
STANDING = {"quantity__1__0": "2"}


@pytest.fixture(scope="module")
def service_and_server(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PushService, Server]]:
    with push_service_and_server(postgres, tmp_path_factory.mktemp("push")) as running:
        yield running


@pytest.fixture(scope="module")
def server(service_and_server: tuple[PushService, Server]) -> Server:
    return service_and_server[1]


@pytest.fixture(scope="module")
def service(service_and_server: tuple[PushService, Server]) -> PushService:
    return service_and_server[0]


@pytest.fixture(scope="module")
def event(admin: httpx.Client) -> str:
    policy = {"review": "manual", "hold_seconds": 600, "extend_seconds": 300, "max_hold_seconds": 1800}
    return publish_event(admin, reviewed_event(policy=policy))


def test_a_buyer_hears_that_the_receipt_was_approved(
    server: Server, service: PushService, admin: httpx.Client, event: str
) -> None:
    with new_visitor(server) as buyer:
        booking = hold_on_page(buyer, event, **STANDING)
        assert submit_file(buyer, get_page(buyer, booking).form("/receipt"), TINY_PNG).status_code == 303
        subscribed = subscribe_on_page(buyer, service, booking)
        assert count_subscriptions(server, booking) == 1
        expect_ok(admin.post(f"/v1/bookings/{booking.rpartition('/')[2]}/approve"))
        wait_until(lambda: bool(subscribed.messages), WAIT_SECONDS)
        assert [message.content["title"] for message in subscribed.messages] == ["Your receipt was approved"]
        wait_until(lambda: count_subscriptions(server, booking) == 0, WAIT_SECONDS)
        assert not get_page(buyer, booking).has_form("/notify")


def test_only_a_form_of_the_page_can_subscribe(server: Server, service: PushService, event: str) -> None:
    with new_visitor(server) as buyer, new_visitor(server) as stranger:
        booking = hold_on_page(buyer, event, **STANDING)
        other = hold_on_page(stranger, event, **STANDING)
        _, fields = push_form(buyer, service, booking)
        refused = {
            "without a token": post_subscription(buyer, booking, {**fields, "form_token": ""}),
            "from another site": post_subscription(buyer, booking, fields, Origin="https://evil.example"),
            "with the token of another buyer": post_subscription(stranger, other, fields),
            "without a session": httpx.post(f"{server.url}{booking}/notify", data=fields, headers=JSON),
        }
        assert {name: response.status_code for name, response in refused.items()} == dict.fromkeys(refused, 403)
        _, own = push_form(stranger, service, other)
        assert post_subscription(stranger, booking, own).status_code == 404, "for the booking of another buyer"
        assert [count_subscriptions(server, each) for each in (booking, other)] == [0, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "http://push.example/x"},
        {"endpoint": "https://" + "x" * 3_000},
        {"p256dh": "AAAA"},
        {"auth": ""},
        {"key_number": "77"},
        {"key_number": "-1"},
        {"key_number": "99999999999999999999"},
    ],
)
def test_an_invalid_subscription_is_refused(
    server: Server, service: PushService, event: str, change: dict[str, str]
) -> None:
    with new_visitor(server) as buyer:
        booking = hold_on_page(buyer, event, **STANDING)
        _, fields = push_form(buyer, service, booking)
        response = post_subscription(buyer, booking, {**fields, **change})
        assert (response.status_code, response.json()) == (422, {"code": "invalid_request"})
        assert count_subscriptions(server, booking) == 0


def test_a_subscription_at_an_unknown_push_service_is_refused(server: Server, service: PushService, event: str) -> None:
    with new_visitor(server) as buyer:
        booking = hold_on_page(buyer, event, **STANDING)
        _, fields = push_form(buyer, service, booking)
        response = post_subscription(buyer, booking, {**fields, "endpoint": "https://push.example/x"})
        assert (response.status_code, response.json()) == (422, {"code": "unknown_push_service"})
        assert count_subscriptions(server, booking) == 0


def test_a_booking_that_has_ended_takes_no_subscription(server: Server, service: PushService, event: str) -> None:
    with new_visitor(server) as buyer:
        booking = hold_on_page(buyer, event, **STANDING)
        _, fields = push_form(buyer, service, booking)
        token = {"form_token": fields["form_token"]}
        assert buyer.post(f"{booking}/cancel", data=token, headers=same_origin_headers(buyer)).status_code == 303
        assert post_subscription(buyer, booking, fields).status_code == 409


def test_the_worker_script_can_control_booking_pages_and_load_nothing(server: Server) -> None:
    with new_visitor(server) as visitor:
        script = visitor.get(WORKER_PATH)
    assert (script.status_code, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert script.headers["cache-control"] == "no-cache"
    assert script.headers["content-security-policy"].startswith("default-src 'none'")
    assert "connect-src" not in script.headers["content-security-policy"]


def test_without_the_setting_pages_offer_no_push_messages(shared_server: Server) -> None:
    with shared_server.client(Org(shared_server.database_url).headers()) as admin, new_visitor(shared_server) as buyer:
        booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
        page = get_page(buyer, booking)
        assert not page.has_form("/notify")
        fields = {**page.form("/cancel").fields, **SubscribedBrowser("https://push.example/x", "").form()}
        assert post_subscription(buyer, booking, {**fields, "key_number": "1"}).status_code == 404
