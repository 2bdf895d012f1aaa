"""The page of a hold says what to pay, where and with which reference. It takes a receipt until a while after the hold
has expired."""

from typing import Any

import httpx

from holdfast.runtime import ids
from tests.support.browser import chromium, in_thread
from tests.support.harness import Org, Server, publish_event, query
from tests.support.html_client import Page, get_page, new_visitor, parse_page, redirect_target, submit_file
from tests.support.http_assertions import expect_ok
from tests.support.resources import TINY_PNG, reviewed_event
from tests.support.slots import hold_pools, sign_in

PLACES: list[dict[str, Any]] = [{"code": "places", "capacity": 1, "tariffs": [{"code": "full", "price": 1000}]}]
INSTRUCTIONS = "Banco <Acme>\nIBAN ES91 2100 0418"
GRACE = {"review": "manual", "late_grace_seconds": 300}
LATE = "Already paid? If your spots are still free, we'll accept your receipt until"


def _expire(server: Server, booking: str, seconds_ago: int) -> None:
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    statement = (
        "UPDATE booking SET expires_at = holdfast_now() - $3 * interval '1 second' WHERE event_id = $1 AND id = $2"
    )
    query(server.database_url, statement, *parsed, seconds_ago)


def _expired_page(
    server: Server, admin: httpx.Client, buyer: httpx.Client, seconds_ago: int = 60, **event: Any
) -> tuple[str, Page]:
    fields = {"policy": GRACE, "pools": PLACES, "payment_instructions": INSTRUCTIONS, **event}
    booking = hold_pools(admin, publish_event(admin, reviewed_event(**fields)), "places", user="ada")
    sign_in(buyer, admin, "ada")
    _expire(server, booking, seconds_ago)
    return booking, get_page(buyer, f"/b/{booking}")


def test_the_hold_page_says_what_to_pay_where_and_with_which_reference(
    admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, reviewed_event(pools=PLACES, payment_instructions=INSTRUCTIONS))
    booking = hold_pools(admin, event, "places", user="ada")
    sign_in(buyer, admin, "ada")
    page = get_page(buyer, f"/b/{booking}")
    reference = expect_ok(admin.get(f"/v1/bookings/{booking}"))["reference"]
    assert f"Use {reference} as the payment reference." in page.text
    assert "Pay €11.90 to" in page.text
    # The style keeps the line break.
    assert "Banco &lt;Acme&gt;\nIBAN ES91 2100 0418</p>" in page.response.text
    assert reference in [attributes.get("data-copy") for _, attributes in page.tags]


def test_the_instructions_of_the_org_are_for_events_without_their_own(server: Server) -> None:
    with server.client(Org(server.database_url).headers()) as admin, new_visitor(server) as buyer:
        sign_in(buyer, admin, "ada")
        for own, shown in ((None, "To the org"), ("To the event", "To the event")):
            expect_ok(admin.patch("/v1/org", json={"payment_instructions": "To the org"}))
            event = publish_event(admin, reviewed_event(pools=PLACES, payment_instructions=own))
            page = get_page(buyer, f"/b/{hold_pools(admin, event, 'places', user='ada')}")
            assert [text for text in ("To the org", "To the event") if text in page.text] == [shown]
        paid_online = publish_event(admin, reviewed_event(pools=PLACES, policy={"review": "none"}))
        assert "To the org" not in get_page(buyer, f"/b/{hold_pools(admin, paid_online, 'places', user='ada')}").text


def test_an_expired_hold_takes_a_receipt_within_the_grace_period(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking, page = _expired_page(server, admin, buyer)
    assert LATE in page.text
    assert "If someone else takes them first, we can't accept your receipt." in page.text
    assert INSTRUCTIONS.partition("\n")[2] not in page.text
    assert page.data["isLate"]
    assert 200 < page.data["secondsLeft"] <= 240
    assert redirect_target(submit_file(buyer, page.form("/receipt"), TINY_PNG)) == f"/b/{booking}"
    assert "We're checking your receipt" in get_page(buyer, f"/b/{booking}").text


def test_an_expired_hold_takes_no_receipt_without_a_chance(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """After the grace period, when the last unit is gone, and in events that take no receipts."""
    for seconds_ago, policy, is_gone in (
        (301, GRACE, False),
        (60, {**GRACE, "review": "none"}, False),
        (60, GRACE, True),
    ):
        booking, page = _expired_page(server, admin, buyer, seconds_ago, policy=policy)
        if is_gone:
            hold_pools(admin, _event_of(booking), "places", user="ben")
            page = get_page(buyer, f"/b/{booking}")
        assert "Your time ran out" in page.text
        assert LATE not in page.text
        assert not page.has_form("/receipt")
        assert page.data["secondsLeft"] is None
        assert ("Already paid? Contact" in page.text) is (policy is GRACE)


def _event_of(booking: str) -> str:
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    return ids.format_event_id(parsed[0])


def test_a_late_receipt_for_a_spot_that_is_gone_is_refused_with_advice(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    booking, page = _expired_page(server, admin, buyer)
    hold_pools(admin, _event_of(booking), "places", user="ben")
    refused = parse_page(submit_file(buyer, page.form("/receipt"), TINY_PNG), 410)
    assert "Sorry, we can no longer accept your receipt. If you've already paid, contact the organiser" in refused.text
    assert not refused.has_form("/receipt")


def test_an_unreadable_late_receipt_can_be_sent_again(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    _, page = _expired_page(server, admin, buyer)
    refused = parse_page(submit_file(buyer, page.form("/receipt"), b"not a picture"), 422)
    assert "We can't read that file." in refused.text
    assert redirect_target(submit_file(buyer, refused.form("/receipt"), TINY_PNG))


def test_the_page_copies_the_reference_and_closes_the_form_when_the_grace_period_ends(
    server: Server, admin: httpx.Client
) -> None:
    policy = {"review": "manual", "late_grace_seconds": 3}
    event = publish_event(admin, reviewed_event(pools=PLACES, policy=policy, payment_instructions=INSTRUCTIONS))
    booking = hold_pools(admin, event, "places", user="ada")
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": "ada"}), 201)["token"]
    with chromium() as browser:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(f"{server.url}/enter?token={token}")
        page.goto(f"{server.url}/b/{booking}")
        button = page.locator("[data-copy]")
        button.click()
        page.get_by_role("button", name="Copied").wait_for()
        reference = expect_ok(admin.get(f"/v1/bookings/{booking}"))["reference"]
        assert page.evaluate("navigator.clipboard.readText()") == reference
        in_thread(_expire, server, booking, 0)
        page.get_by_text(LATE).wait_for()
        page.get_by_text("Your hold expired and your spots went back on sale.").wait_for()
        assert page.locator("form[data-receipt]").count() == 0
