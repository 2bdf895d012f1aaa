"""At an event with a guest check, a browser without an identity does a proof of work for each hold."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from holdfast.runtime.shared_secrets import Keyring, SecretValue
from holdfast.web import guest_check
from holdfast.web.guest_check import CHALLENGE_SECONDS, SKEW_SECONDS, has_zero_bits, new_challenge, verify_solution
from holdfast.web.page_problems import PageError
from tests.support.browser import chromium
from tests.support.browser_buyer import browser_buyer
from tests.support.harness import Server, example_event, publish_event
from tests.support.html_client import Page, get_page, new_visitor, parse_page, redirect_target, submit_form

BITS = 8
MANY_BITS = 16
POLICY = {"guest_check": "work", "guest_check_bits": BITS}
OLD, NEW = (SecretValue(number, bytes([number] * 32), signs=True) for number in (1, 2))
KEYRING, EVENT, GUEST = Keyring((NEW, OLD)), "ev_1", "guest"
ONE = {"quantity__1__0": "1"}


def solve(challenge: dict[str, Any], *, correctly: bool = True) -> dict[str, str]:
    """The form fields of a solution, or of a number that is none."""
    numbers = (str(number) for number in count())
    number = next(n for n in numbers if has_zero_bits(challenge["seed"], n, challenge["bits"]) is correctly)
    return {
        "check_issued_at": str(challenge["issued_at"]),
        "check_salt": challenge["salt"],
        "check_number": number,
    }


def challenge_for(**changes: Any) -> dict[str, Any]:
    given = {"keyring": KEYRING, "event": EVENT, "guest": GUEST, "bits": BITS, **changes}
    challenge = new_challenge(**given)
    return {name: getattr(challenge, name) for name in challenge.__struct_fields__}


def verify(fields: dict[str, str], bits: int = BITS) -> str:
    return verify_solution(KEYRING, EVENT, GUEST, bits, fields)


def test_a_solution_is_recognised() -> None:
    challenge = challenge_for()
    assert verify(solve(challenge)) == challenge["seed"]


def test_a_rotation_of_the_secret_does_not_waste_the_work() -> None:
    # With few bits, the solution may fit the new secret by chance.
    challenge = challenge_for(keyring=Keyring((OLD,)), bits=MANY_BITS)
    assert verify(solve(challenge), bits=MANY_BITS) == challenge["seed"]


@pytest.mark.parametrize(
    "changes",
    [{"keyring": Keyring((SecretValue(1, b"another", signs=True),))}, {"event": "ev_2"}, {"guest": "another"}],
)
def test_a_solution_is_good_only_for_its_own_event_and_guest(changes: dict[str, Any]) -> None:
    """With few bits, the solution of another challenge may fit by chance; with many it does not."""
    fields = solve(challenge_for(bits=MANY_BITS, **changes))
    with pytest.raises(PageError, match="check_failed"):
        verify(fields, bits=MANY_BITS)


@pytest.mark.parametrize("field", ["check_issued_at", "check_salt", "check_number"])
@pytest.mark.parametrize("value", ["", "-1", "1e3", "٣", "\ud800", "9" * 40])
def test_a_malformed_solution_is_refused(field: str, value: str) -> None:
    with pytest.raises(PageError, match="check_failed"):
        verify({**solve(challenge_for()), field: value}, bits=24)


def test_a_wrong_number_is_refused() -> None:
    with pytest.raises(PageError, match="check_failed"):
        verify(solve(challenge_for(), correctly=False))


@pytest.mark.parametrize("age", [CHALLENGE_SECONDS + 1, -SKEW_SECONDS - 10])
def test_a_solution_outside_its_time_is_refused(monkeypatch: pytest.MonkeyPatch, age: int) -> None:
    fields = solve(challenge_for())
    issued_at = int(fields["check_issued_at"])
    monkeypatch.setattr(guest_check, "time", SimpleNamespace(time=lambda: issued_at + age))
    with pytest.raises(PageError, match="check_expired"):
        verify(fields)


def test_each_bit_doubles_the_work() -> None:
    solutions = {bits: sum(has_zero_bits("seed", str(n), bits) for n in range(20_000)) for bits in (4, 6, 8)}
    assert solutions[4] > 2 * solutions[6] > 4 * solutions[8] > 0


@pytest.fixture(scope="module")
def event(admin: httpx.Client) -> str:
    return publish_event(admin, example_event(policy=POLICY))


def post(client: httpx.Client, page: Page, **fields: str) -> httpx.Response:
    return submit_form(client, page.form("/hold"), {"Accept": "application/json"}, **fields)


def test_a_guest_holds_with_a_solution_and_not_without(buyer: httpx.Client, event: str) -> None:
    page = get_page(buyer, f"/e/{event}")
    challenge = page.data["check"]["challenge"]
    assert challenge["bits"] == BITS
    assert "Turn on JavaScript to book" in page.text
    refused = parse_page(submit_form(buyer, page.form("/hold"), **ONE), 403)
    assert "Turn on JavaScript, reload the page" in refused.text
    assert post(buyer, page, **ONE, **solve(challenge, correctly=False)).json()["code"] == "check_failed"
    assert redirect_target(submit_form(buyer, page.form("/hold"), **ONE, **solve(challenge))).startswith("/b/")


def test_a_solution_is_good_for_one_hold(buyer: httpx.Client, event: str) -> None:
    page = get_page(buyer, f"/e/{event}")
    solution = solve(page.data["check"]["challenge"])
    first = post(buyer, page, **ONE, **solution).json()
    assert post(buyer, page, **ONE, **solution).json() == first
    again = post(buyer, page, quantity__1__0="2", **solution)
    assert (again.status_code, again.json()["code"]) == (403, "check_expired")
    fresh = solve(buyer.get(f"/e/{event}/challenge").json())
    assert post(buyer, page, quantity__1__0="2", **fresh).status_code == 201


def test_a_refused_hold_does_not_use_up_the_solution(buyer: httpx.Client, event: str) -> None:
    page = get_page(buyer, f"/e/{event}")
    solution = solve(page.data["check"]["challenge"])
    assert post(buyer, page, quantity__1__0="600", **solution).status_code == 409
    assert post(buyer, page, **ONE, **solution).status_code == 201


def test_a_solution_of_another_guest_is_refused(server: Server, buyer: httpx.Client, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={**POLICY, "guest_check_bits": 20}))
    page = get_page(buyer, f"/e/{event}")
    with new_visitor(server) as other:
        theirs = get_page(other, f"/e/{event}").data["check"]["challenge"]
    # With so many bits, a number that solves nothing is as good as one that solves another challenge.
    assert post(buyer, page, **ONE, **solve(theirs, correctly=False)).json()["code"] == "check_failed"


def test_customers_of_the_merchant_are_not_checked(buyer: httpx.Client, event: str, admin: httpx.Client) -> None:
    token = admin.post("/v1/customer-tokens", json={"user": "ada"}).json()["token"]
    assert buyer.get("/enter", params={"token": token, "next": f"/e/{event}"}).status_code == 303
    page = get_page(buyer, f"/e/{event}")
    assert page.data["check"] is None
    assert post(buyer, page, **ONE).status_code == 201


def test_other_events_check_nobody(buyer: httpx.Client, admin: httpx.Client) -> None:
    page = get_page(buyer, f"/e/{publish_event(admin, example_event())}")
    assert page.data["check"] is None
    assert post(buyer, page, **ONE).status_code == 201


def test_a_browser_does_the_work_while_its_buyer_chooses(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={**POLICY, "guest_check_bits": 12}))
    with chromium() as browser, browser_buyer(browser, server) as buyer:
        buyer.open_event(event)
        buyer.click_seat("A-5")
        buyer.hold()
        buyer.expect_text("A-5")
        first = buyer.booking
        # If the server has already accepted the solution for another hold, the browser gets a new challenge.
        expired = {"code": "check_expired", "text": "Once more"}
        buyer.page.route(f"**/e/{event}/hold", lambda route: route.fulfill(status=403, json=expired), times=1)
        buyer.open_event(event)
        buyer.click_seat("B-7")
        with buyer.page.expect_response(f"**/e/{event}/challenge"):
            buyer.hold()
        assert buyer.booking != first
        assert [error for error in buyer.errors if "403" not in error] == []
        buyer.errors.clear()
