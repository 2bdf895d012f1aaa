"""A guest who may not hold more reads why, and what to do."""

import re
from typing import Any

import httpx

from holdfast.runtime import ids
from tests.support.harness import Server, example_event, publish_event, query
from tests.support.html_client import get_page, hold_on_page, parse_page, submit_form

ONE = {"quantity__1__0": "1"}


def refusal(client: httpx.Client, event: str, status: int) -> str:
    form = get_page(client, f"/e/{event}").form("/hold")
    return parse_page(submit_form(client, form, **ONE), status).text


def new_event(admin: httpx.Client, **policy: Any) -> str:
    return publish_event(admin, example_event(policy=policy))


def test_a_full_address_suggests_another_connection(
    admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = new_event(admin, max_unpaid_units_per_address=1)
    hold_on_page(buyer, event, **ONE)
    assert "usa otra conexión, como tus datos móviles" in refusal(spanish_buyer, event, 409)
    assert "switch to another connection, such as mobile data" in refusal(buyer, event, 409)


def test_a_guest_at_the_limit_is_asked_to_pay_first(admin: httpx.Client, buyer: httpx.Client) -> None:
    event = new_event(admin, max_unpaid_units_per_user=1)
    hold_on_page(buyer, event, **ONE)
    assert "Pay for some or release them to book more" in refusal(buyer, event, 409)


def test_a_guest_who_has_to_wait_reads_for_how_long(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = new_event(admin, cooldown_after_expired=1, cooldown_seconds=86_400)
    hold_on_page(buyer, event, **ONE)
    expire = "UPDATE booking SET expires_at = holdfast_now() WHERE event_id = $1"
    query(server.database_url, expire, ids.parse_event_id(event))
    assert re.search(r"Please try again in 1[34]\d\d min\.", refusal(buyer, event, 429))
