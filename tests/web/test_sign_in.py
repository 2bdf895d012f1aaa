"""No link makes a browser somebody else without a question, and no link signs in twice."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import jwt
import pytest

from holdfast.runtime import ids
from tests.support.harness import Org, Server, example_event, publish_event, query
from tests.support.html_client import (
    IFRAME_HEADERS,
    Page,
    get_page,
    hold_on_page,
    new_visitor,
    parse_page,
    redirect_target,
    submit_form,
)
from tests.support.http_assertions import expect_ok

STANDING: Final = {"quantity__1__0": "2"}
CROSS_SITE: Final = {"Sec-Fetch-Site": "cross-site"}
SAME_ORIGIN: Final = {"Sec-Fetch-Site": "same-origin"}
SAME_SITE: Final = {"Sec-Fetch-Site": "same-site"}
# What browsers say about a link of another site, a link or redirect of a Holdfast page, and a typed address, and what
# older browsers and plain HTTP say.
FOREIGN: Final = [CROSS_SITE, SAME_ORIGIN, {"Sec-Fetch-Site": "none"}, {}]


@pytest.fixture(scope="module")
def event(admin: httpx.Client) -> str:
    return publish_event(admin, example_event())


@pytest.fixture
def other_browser(server: Server) -> Iterator[httpx.Client]:
    with new_visitor(server) as client:
        yield client


def _token(clerk: httpx.Client, user: str = "ada", **more: int) -> str:
    token: str = expect_ok(clerk.post("/v1/customer-tokens", json={"user": user, **more}), 201)["token"]
    return token


def _follow(browser: httpx.Client, token: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return browser.get("/enter", params={"token": token, "next": "/paid"}, headers=headers or CROSS_SITE)


def _user(admin: httpx.Client, browser: httpx.Client, event: str) -> str:
    """Whom the browser books for."""
    booking = hold_on_page(browser, event, **STANDING).removeprefix("/b/")
    user: str = expect_ok(admin.get(f"/v1/bookings/{booking}"))["user"]
    return user


def _question(answer: httpx.Response) -> Page:
    page = parse_page(answer)
    assert page.has_form("/enter")
    return page


@pytest.mark.parametrize("headers", [*FOREIGN, SAME_SITE], ids=str)
def test_a_new_browser_and_a_guest_without_bookings_sign_in_at_once(
    admin: httpx.Client, buyer: httpx.Client, other_browser: httpx.Client, event: str, headers: dict[str, str]
) -> None:
    other_browser.get(f"/e/{event}")
    for browser in (buyer, other_browser):
        assert redirect_target(_follow(browser, _token(admin), headers)) == "/paid"
        assert _user(admin, browser, event) == "ada"


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_guest_with_bookings_is_asked(
    admin: httpx.Client, buyer: httpx.Client, event: str, headers: dict[str, str]
) -> None:
    guest, token = _user(admin, buyer, event), _token(admin)
    page = _question(_follow(buyer, token, headers))
    assert "Continue as ada?" in page.text
    assert "You've already booked" in page.text
    assert _user(admin, buyer, event) == guest, "the question changes nothing"
    assert page.links("/o/"), "the buyer can stay who they are"
    assert not page.links("/paid"), "an attacker can choose this address"
    assert redirect_target(submit_form(buyer, page.form("/enter"))) == "/paid"
    assert _user(admin, buyer, event) == "ada"


def test_a_customer_is_asked_before_becoming_another(admin: httpx.Client, buyer: httpx.Client, event: str) -> None:
    redirect_target(_follow(buyer, _token(admin, "bob")))
    page = _question(_follow(buyer, _token(admin)))
    assert "as bob right now" in page.text
    assert _user(admin, buyer, event) == "bob"
    assert redirect_target(submit_form(buyer, page.form("/enter"))) == "/paid"
    assert _user(admin, buyer, event) == "ada"


def test_the_same_customer_is_not_asked(admin: httpx.Client, buyer: httpx.Client, event: str) -> None:
    redirect_target(_follow(buyer, _token(admin)))
    assert _user(admin, buyer, event) == "ada"
    assert redirect_target(_follow(buyer, _token(admin))) == "/paid"


def test_a_link_of_the_merchants_own_site_is_followed_without_a_question(
    admin: httpx.Client, buyer: httpx.Client, event: str
) -> None:
    redirect_target(_follow(buyer, _token(admin, "bob")))
    assert redirect_target(_follow(buyer, _token(admin), SAME_SITE)) == "/paid"
    assert _user(admin, buyer, event) == "ada"


def test_an_answer_cannot_lead_to_another_sign_in(
    server: Server, admin: httpx.Client, buyer: httpx.Client, event: str
) -> None:
    """The link chooses the page that follows. If that is another sign-in link, Holdfast asks again."""
    redirect_target(_follow(buyer, _token(admin, "bob")))
    mallory = _token(admin, "mallory")
    link = {"token": _token(admin), "next": f"/enter?token={mallory}"}
    form = _question(buyer.get("/enter", params=link, headers=CROSS_SITE)).form("/enter")
    then = redirect_target(submit_form(buyer, form))
    assert then == f"/enter?token={mallory}"
    assert "Continue as mallory?" in _question(buyer.get(then, headers=SAME_ORIGIN)).text
    assert _user(admin, buyer, event) == "ada"


def test_a_customer_of_one_org_is_new_to_another(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    redirect_target(_follow(buyer, _token(admin, "bob")))
    with server.client(Org(server.database_url).headers()) as clerk:
        assert redirect_target(_follow(buyer, _token(clerk))) == "/paid"


def test_another_site_cannot_answer_the_question(admin: httpx.Client, buyer: httpx.Client, event: str) -> None:
    redirect_target(_follow(buyer, _token(admin, "bob")))
    form = _question(_follow(buyer, _token(admin))).form("/enter")
    attacks = [{"Origin": "https://evil.example"}, CROSS_SITE, {"Sec-Fetch-Site": "same-site"}]
    assert [submit_form(buyer, form, headers).status_code for headers in attacks] == [403, 403, 403]
    assert submit_form(buyer, form, form_token="").status_code == 403
    assert _user(admin, buyer, event) == "bob"
    assert redirect_target(submit_form(buyer, form)) == "/paid"


def test_a_link_signs_in_once(
    admin: httpx.Client, buyer: httpx.Client, other_browser: httpx.Client, event: str
) -> None:
    token = _token(admin)
    assert redirect_target(_follow(buyer, token)) == "/paid"
    assert redirect_target(_follow(buyer, token)) == "/paid", "a reload by the same customer does no harm"
    page = parse_page(_follow(other_browser, token), 410)
    assert "This link has already been used" in page.text
    assert "start again from there" in page.text
    assert _user(admin, other_browser, event).startswith("guest-")
    assert parse_page(_follow(other_browser, token), 410).response.status_code == 410, "nor instead of a question"


def test_a_question_that_was_answered_elsewhere_signs_nobody_in(
    admin: httpx.Client, buyer: httpx.Client, other_browser: httpx.Client, event: str
) -> None:
    guest, token = _user(admin, buyer, event), _token(admin)
    form = _question(_follow(buyer, token)).form("/enter")
    redirect_target(_follow(other_browser, token))
    assert parse_page(submit_form(buyer, form), 410)
    assert _user(admin, buyer, event) == guest


def test_one_of_many_browsers_signs_in_with_a_link(server: Server, admin: httpx.Client) -> None:
    token = _token(admin)

    def follow(_: int) -> int:
        with new_visitor(server) as browser:
            return _follow(browser, token).status_code

    with ThreadPoolExecutor(8) as threads:
        codes = list(threads.map(follow, range(16)))
    assert sorted(codes) == [303] + [410] * 15


def _spellings(token: str) -> list[str]:
    """The last character of a signature carries four bits of it, and two that nobody looks at."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    first = alphabet.index(token[-1]) & ~0b11
    return [token[:-1] + alphabet[first + spare] for spare in range(4)]


def test_another_spelling_of_a_token_is_the_same_token(server: Server, org: Org, admin: httpx.Client) -> None:
    """Older tokens have no id. Their content tells them apart."""
    (row,) = query(server.database_url, "SELECT token_secret FROM org WHERE id = $1", org.id)
    claims: dict[str, Any] = jwt.decode(_token(admin), options={"verify_signature": False})
    del claims["jti"]
    old = jwt.encode({**claims, "sub": "eve"}, row["token_secret"], headers={"kid": ids.format_org_id(org.id)})
    for token in (_token(admin), old):
        codes = []
        for spelling in _spellings(token):
            with new_visitor(server) as browser:
                codes.append(_follow(browser, spelling).status_code)
        assert codes[0] == 303
        assert 303 not in codes[1:]


def test_a_look_at_a_link_does_not_use_it_up(admin: httpx.Client, buyer: httpx.Client) -> None:
    token = _token(admin)
    answer = buyer.head("/enter", params={"token": token, "next": "/paid"})
    assert answer.status_code == 200
    assert redirect_target(_follow(buyer, token)) == "/paid"


def test_the_api_accepts_a_token_again_and_again(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    token = _token(admin)
    redirect_target(_follow(buyer, token))
    with server.client({"Authorization": f"Bearer {token}"}) as customer:
        assert [customer.get("/v1/bookings").status_code for _ in range(3)] == [200, 200, 200]


def test_used_tokens_are_forgotten_after_they_expire(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    old = "INSERT INTO used_token SELECT sha256(n::text::bytea), holdfast_now() - interval '2 hours' FROM"
    query(server.database_url, f"{old} generate_series(1, 15) AS n")
    count = "SELECT count(*) FROM used_token WHERE expires_at < holdfast_now() - interval '1 hour'"
    left = [15]
    for _ in range(2):
        redirect_target(_follow(buyer, _token(admin)))
        left.append(query(server.database_url, count)[0][0])
    assert left == [15, 5, 0]


@pytest.mark.parametrize("user", ["x" * 41, "ada\u202eevil", "a\nb"], ids=["long", "turned around", "two lines"])
def test_a_name_that_tells_the_buyer_nothing_is_not_shown(admin: httpx.Client, buyer: httpx.Client, user: str) -> None:
    redirect_target(_follow(buyer, _token(admin, user)))
    page = _question(_follow(buyer, _token(admin, f"{user}2")))
    assert "Continue with another account?" in page.text
    assert "with another account right now" in page.text
    assert user not in page.response.text


def test_the_question_works_in_a_frame_of_a_site_that_the_org_allows(server: Server, buyer: httpx.Client) -> None:
    with server.client(Org(server.database_url).headers()) as clerk:
        expect_ok(clerk.patch("/v1/org", json={"frame_origins": ["https://theatre.example"]}))
        # The client keeps no cookie of a frame, because there is no TLS here.
        redirect_target(_follow(buyer, _token(clerk, "bob")))
        answer = _follow(buyer, _token(clerk), {**CROSS_SITE, **IFRAME_HEADERS})
    form = _question(answer).form("/enter")
    assert answer.headers["content-security-policy"].endswith("frame-ancestors https://theatre.example")
    assert redirect_target(submit_form(buyer, form, IFRAME_HEADERS)) == "/paid"


def test_the_way_out_leads_to_no_other_site(admin: httpx.Client, buyer: httpx.Client) -> None:
    redirect_target(_follow(buyer, _token(admin, "bob")))
    page = get_page(buyer, f"/enter?token={_token(admin)}&next=//evil.example")
    assert "evil" not in page.response.text
    assert redirect_target(submit_form(buyer, page.form("/enter"), next="//evil.example")) == "/"
