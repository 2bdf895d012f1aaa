"""A buyer clicks "Notify me" on the page of their booking, and hears of it when the page is closed."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.runtime import ids
from holdfast.web.push_pages import SCOPE
from tests.support.browser import chromium, in_thread
from tests.support.browser_buyer import BrowserBuyer, browser_buyer
from tests.support.harness import Server, publish_event, query, wait_until
from tests.support.push_service import PushService, SubscribedBrowser, count_subscriptions, push_service_and_server
from tests.support.resources import reviewed_event
from tests.web.test_accessibility import find_violations

WAIT_SECONDS = 30
ENDING = "Your hold ends in 2 minutes"

# The real push services of browsers are out of reach, and a headless browser shows no notifications. Everything else is
# the browser's own: the worker, its registration and its events.
STUB = """
let answer = "default";
Object.defineProperty(Notification, "permission", { get: () => answer });
Notification.requestPermission = async () => (answer = window.name === "blocked" ? "denied" : "granted");
PushManager.prototype.getSubscription = async () => {
  const stored = localStorage.getItem("subscription");
  return stored && { ...JSON.parse(stored), toJSON: () => JSON.parse(stored) };
};
PushManager.prototype.subscribe = async function (options) {
  localStorage.setItem("options", JSON.stringify(options));
  localStorage.setItem("subscription", localStorage.getItem("offered"));
  return this.getSubscription();
};
"""
KEEP_NOTIFICATIONS = """() => {
  self.shown = [];
  registration.showNotification = async (title, options) => shown.push({ title, options });
}"""


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


@pytest.fixture(scope="module")
def browser(event: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def booking_key(path: str) -> tuple[bytes, bytes]:
    parsed = ids.parse_booking_id(path.rpartition("/")[2])
    assert parsed is not None
    return parsed


def hold_in_browser(buyer: BrowserBuyer, event: str) -> None:
    buyer.open_event(event)
    buyer.page.get_by_role("button", name="Add one: child").click()
    buyer.hold()


def end_soon(server: Server, booking: str) -> None:
    """Let the hold end in just under two minutes."""
    for statement in (
        "UPDATE booking SET expires_at = holdfast_now() + interval '119 s' WHERE event_id = $1 AND id = $2",
        "UPDATE push_subscription SET due_at = holdfast_now() WHERE event_id = $1 AND booking_id = $2",
    ):
        query(server.database_url, statement, *booking_key(booking))


def offer_subscription(page: Page, service: PushService) -> SubscribedBrowser:
    """What the browser's push service would return to the page."""
    key: str = page.evaluate("JSON.parse(document.getElementById('page').textContent).push.key")
    browser = service.new_browser(key)
    form = browser.form()
    endpoint = form.pop("endpoint")
    page.evaluate("text => localStorage.setItem('offered', text)", json.dumps({"endpoint": endpoint, "keys": form}))
    return browser


def test_a_buyer_subscribes_on_the_page_and_is_warned_before_the_hold_ends(
    browser: Browser, server: Server, service: PushService, event: str
) -> None:
    with browser_buyer(browser, server) as buyer:
        page = buyer.page
        page.context.add_init_script(STUB)
        hold_in_browser(buyer, event)
        subscribed = offer_subscription(page, service)
        button = page.get_by_role("button", name="Notify me")
        expect(button).to_be_visible()
        assert find_violations(page) == []
        button.click()
        expect(page.get_by_role("status").filter(has_text="Done! We'll notify you on this device.")).to_be_visible()
        expect(button).to_be_hidden()
        options = json.loads(page.evaluate("localStorage.getItem('options')"))
        assert options == {"userVisibleOnly": True, "applicationServerKey": subscribed.server_key}
        scope = page.evaluate("navigator.serviceWorker.ready.then(registration => registration.scope)")
        assert scope == server.url + SCOPE
        page.reload()
        expect(page.get_by_text("Done! We'll notify you on this device.")).to_be_visible()
        in_thread(end_soon, server, buyer.booking)
        in_thread(wait_until, lambda: bool(subscribed.messages), WAIT_SECONDS)
        assert service.refusals == []
        (message,) = subscribed.messages
        assert message.content["title"] == ENDING
        (shown,) = deliver(page, message.content)
        assert shown["title"] == ENDING
        assert shown["options"]["body"] == message.content["body"]
        assert shown["options"]["data"] == {"path": f"/b/{buyer.booking}"}


def deliver(page: Page, content: dict[str, str]) -> list[Any]:
    """Push the message to the service worker, and return what it shows."""
    (worker,) = page.context.service_workers
    worker.evaluate(KEEP_NOTIFICATIONS)
    session = page.context.new_cdp_session(page)
    registrations: list[Any] = []
    session.on("ServiceWorker.workerRegistrationUpdated", lambda event: registrations.extend(event["registrations"]))
    session.send("ServiceWorker.enable")
    origin = page.url.partition("/b/")[0]
    while not registrations:
        page.wait_for_timeout(20)
    (registration,) = [each for each in registrations if each["scopeURL"] == origin + SCOPE]
    session.send(
        "ServiceWorker.deliverPushMessage",
        {"origin": origin, "registrationId": registration["registrationId"], "data": json.dumps(content)},
    )
    for _ in range(WAIT_SECONDS * 50):
        shown: list[Any] = worker.evaluate("() => shown")
        if shown:
            return shown
        page.wait_for_timeout(20)
    pytest.fail("the worker showed nothing")


def test_a_buyer_whose_push_service_is_unknown_reads_so(
    browser: Browser, server: Server, service: PushService, event: str
) -> None:
    with browser_buyer(browser, server) as buyer:
        buyer.page.context.add_init_script(STUB)
        hold_in_browser(buyer, event)
        offer_subscription(buyer.page, service)
        buyer.page.evaluate(
            "localStorage.setItem('offered', localStorage.getItem('offered').replace('localhost', 'push.example'))"
        )
        buyer.page.get_by_role("button", name="Notify me").click()
        buyer.expect_text("Your browser's push service isn't supported here.")
        buyer.errors = [error for error in buyer.errors if "(Unprocessable" not in error]
        assert in_thread(count_subscriptions, server, buyer.booking) == 0


def test_a_buyer_whose_browser_blocks_notifications_reads_what_to_do(
    browser: Browser, server: Server, event: str
) -> None:
    with browser_buyer(browser, server) as buyer:
        buyer.page.context.add_init_script(STUB)
        hold_in_browser(buyer, event)
        buyer.page.evaluate("window.name = 'blocked'")
        buyer.page.get_by_role("button", name="Notify me").click()
        buyer.expect_text("Your browser blocks notifications from this site.")
        assert in_thread(count_subscriptions, server, buyer.booking) == 0
