"""A guest recovers their bookings in another browser by email. Nobody learns who has bookings, and no link opens more
than its owner's bookings, or twice."""

import re
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec import Struct

from holdfast.runtime import ids
from holdfast.runtime.credentials import create_org
from holdfast.runtime.db import Database
from holdfast.runtime.shared_secrets import Keyring, SecretValue
from holdfast.web.recovery_pages import REQUESTS_PER_ADDRESS, REQUESTS_PER_ORG
from holdfast.web.session import COOKIE_CHARS_MAX, RECOVERIES_MAX, new_session, read_cookie, write_cookie
from tests.support.browser import chromium
from tests.support.browser_buyer import PHONE, browser_buyer
from tests.support.engine_harness import async_test
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    publish_event,
    query,
    running_server,
    wait_until,
)
from tests.support.html_client import (
    HTML,
    Page,
    get_page,
    hold_on_page,
    new_visitor,
    parse_page,
    redirect_target,
    same_origin_headers,
    submit_form,
)
from tests.support.http_assertions import expect_ok
from tests.support.local_pages import local_pages
from tests.support.log_capture import CapturedLog, find_leaks, redirect_output
from tests.support.mail_server import Mailbox, mail_server
from tests.web.test_accessibility import find_violations

STANDING: Final = {"quantity__1__0": "2"}
WAIT_SECONDS: Final = 30
SUBJECTS: Final = ("Your bookings with", "Tus reservas con")
# Takes six characters in the cookie.
LETTER: Final = "\u00e9"
FREE: Final[list[dict[str, Any]]] = [{"code": "places", "capacity": 9, "tariffs": [{"code": "full", "price": 0}]}]


class Shop(Struct, frozen=True):
    """A server with a worker and a mail server."""

    server: Server
    mailbox: Mailbox
    org: Org
    admin: httpx.Client
    event: str

    def new_browser(self, language: str = "en") -> AbstractContextManager[httpx.Client]:
        """A browser without cookies, on an address of its own."""
        return self.browser_at(f"198.51.{secrets.randbelow(250)}.{secrets.randbelow(250)}", language)

    def browser_at(self, address: str, language: str = "en") -> AbstractContextManager[httpx.Client]:
        return new_visitor(self.server, language, **{"X-Forwarded-For": address})

    def book(self, browser: httpx.Client, email: str, event: str | None = None) -> str:
        """Book as a guest, confirm as staff, and return the path of the booking."""
        path = hold_on_page(browser, event or self.event, **STANDING, email=email)
        expect_ok(self.admin.post(f"/v1/bookings/{path.removeprefix('/b/')}/confirm"))
        return path

    def path(self, rest: str = "recover") -> str:
        return f"/o/{self.org.slug}/{rest}"

    def ask(self, browser: httpx.Client, email: str) -> httpx.Response:
        return submit_form(browser, get_page(browser, self.path()).form("/request"), email=email)

    def emails_to(self, email: str) -> list[EmailMessage]:
        messages = [each for each in self.mailbox.messages if str(each["To"]) == email]
        return [message for message in messages if str(message["Subject"]).startswith(SUBJECTS)]

    def get_link(self, browser: httpx.Client, email: str) -> str:
        """Ask for a link, and return its path from the email."""
        before = len(self.emails_to(email))
        redirect_target(self.ask(browser, email))
        wait_until(lambda: len(self.emails_to(email)) > before, WAIT_SECONDS)
        return link_in(self.emails_to(email)[-1])

    def recover(self, browser: httpx.Client, email: str) -> Page:
        """Recover the bookings of this address, and return the list of bookings."""
        page = get_page(browser, self.get_link(browser, email))
        return get_page(browser, redirect_target(submit_form(browser, page.form("/link"))))

    def wait_until_idle(self) -> None:
        waiting = "SELECT count(*) FROM recovery_request"
        wait_until(lambda: query(self.server.database_url, waiting)[0][0] == 0, WAIT_SECONDS)


def new_address() -> str:
    return f"ada.{secrets.token_hex(4)}@example.org"


def link_in(message: EmailMessage) -> str:
    body = message.get_body(("plain",))
    assert body is not None
    (link,) = re.findall(r"https?://\S+", body.get_content())
    parts = urlsplit(link)
    return f"{parts.path}?{parts.query}"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> CapturedLog:
    return CapturedLog(tmp_path_factory.mktemp("recovery") / "log")


@pytest.fixture(scope="module")
def shop(postgres: str, log: CapturedLog) -> Iterator[Shop]:
    mailbox = Mailbox()
    with mail_server(mailbox) as address, fresh_database(postgres) as url:
        with redirect_output(log.path):
            running = running_server(
                url, workers=1, worker=True, HOLDFAST_SMTP_URL=f"smtp://{address}", HOLDFAST_PROXIES="1"
            )
            server = running.__enter__()
        try:
            org = Org(url)
            with server.client(org.headers()) as admin:
                yield Shop(server, mailbox, org, admin, publish_event(admin, example_event()))
        finally:
            running.__exit__(None, None, None)


@pytest.fixture
def browser(shop: Shop) -> Iterator[httpx.Client]:
    with shop.new_browser() as client:
        yield client


@pytest.fixture
def other(shop: Shop) -> Iterator[httpx.Client]:
    with shop.new_browser() as client:
        yield client


def test_a_guest_opens_all_their_bookings_and_tickets_in_another_browser(shop: Shop, other: httpx.Client) -> None:
    email = new_address()
    paths = []
    for spelling in (email, email.upper()):
        with shop.new_browser() as browser:
            paths.append(shop.book(browser, spelling))
    assert shop.path() in get_page(other, shop.path("bookings")).links()
    for path in paths:
        get_page(other, path, 404)
    bookings = shop.recover(other, email.upper())
    assert set(bookings.links("/b/")) == set(paths)
    assert bookings.text.count("Confirmed") == 2
    for path in paths:
        page = get_page(other, path)
        assert "Here are your 2 tickets" in page.text
        assert "€35.70" in page.text, "the buyer sees what they paid"
        for link in [*page.links("ticket.pdf"), page.links("calendar.ics")[0]]:
            assert other.get(link).status_code == 200
        qr = [attributes["src"] for tag, attributes in page.tags if tag == "img" and "qr.svg" in str(attributes)]
        assert other.get(qr[0] or "").headers["content-type"] == "image/svg+xml"
        assert other.get(f"{path}/state").json()["status"] == "confirmed"


def test_the_email_is_in_the_language_of_the_page(shop: Shop) -> None:
    email = new_address()
    with shop.new_browser("es") as browser:
        shop.book(browser, email)
        link = shop.get_link(browser, email)
        message = shop.emails_to(email)[-1]
        assert message["Content-Language"] == "es"
        assert str(message["Subject"]).startswith("Tus reservas")
        assert "vence en 30 minutos" in message.get_body(("html",)).get_content()  # type: ignore[union-attr]
        assert "Ver mis reservas" in get_page(browser, link).text


def test_the_form_answers_alike_whoever_has_bookings(shop: Shop, browser: httpx.Client, other: httpx.Client) -> None:
    known, unknown = new_address(), new_address()
    shop.book(browser, known)
    answers = []
    for email in (known, unknown, known, known, known, known, known):
        answer = shop.ask(other, email)
        page = get_page(other, redirect_target(answer))
        masked = re.sub(r'(?<=name="form_token" value=")\w+', "", page.response.text)
        headers = {name: value for name, value in answer.headers.items() if name not in ("date", "x-request-id")}
        answers.append((answer.status_code, answer.content, headers, masked))
    assert all(answer == answers[0] for answer in answers)
    shop.wait_until_idle()
    assert shop.emails_to(unknown) == []
    assert len(shop.emails_to(known)) == 3, "and a mailbox gets few emails"


@pytest.mark.parametrize(
    "email", ["", "ada", "ada@", "a b@example.org", "a@b\r\nBcc: c@example.org", "a\0@example.org", f"{'a' * 250}@b.cd"]
)
def test_only_an_address_is_accepted(shop: Shop, browser: httpx.Client, email: str) -> None:
    page = parse_page(shop.ask(browser, email), 422)
    assert "doesn't look like an email address" in page.text
    assert page.has_form("/request")
    assert query(shop.server.database_url, "SELECT count(*) FROM recovery_request")[0][0] == 0


def test_a_mail_scanner_does_not_use_a_link_up(shop: Shop, browser: httpx.Client, other: httpx.Client) -> None:
    email = new_address()
    path = shop.book(browser, email)
    link = shop.get_link(other, email)
    with shop.new_browser() as scanner:
        for _ in range(3):
            assert scanner.get(link).status_code == scanner.head(link).status_code == 200
    page = get_page(other, link)
    assert email in page.text, "the guest sees whose bookings these are"
    assert page.response.headers["cache-control"] == "no-store"
    assert page.response.headers["referrer-policy"] == "same-origin"
    assert not [href for href in page.links() if "token" in href]
    assert get_page(other, shop.path("bookings")).links("/b/") == [], "a look recovers nothing"
    list_ = get_page(other, redirect_target(submit_form(other, page.form("/link"))))
    assert list_.links("/b/") == [path]


def test_a_link_works_once(shop: Shop, browser: httpx.Client, other: httpx.Client) -> None:
    email = new_address()
    shop.book(browser, email)
    link = shop.get_link(other, email)

    forms = [(client, get_page(client, link).form("/link")) for client in (browser, other)]
    with ThreadPoolExecutor(8) as threads:
        codes = list(threads.map(lambda form: submit_form(*form).status_code, forms * 4))
    assert sorted(codes) == [303] + [410] * 7
    for client in (browser, other):
        page = get_page(client, link, 410)
        assert "This link no longer works" in page.text
        assert shop.path() in page.links()
        assert email not in page.response.text


def test_links_that_expired_or_belong_to_another_org_or_never_existed_are_alike(
    shop: Shop, browser: httpx.Client, other: httpx.Client
) -> None:
    email = new_address()
    shop.book(browser, email)
    link = shop.get_link(other, email)
    form = get_page(other, link).form("/link")
    elsewhere = Org(shop.server.database_url)
    stolen = link.replace(shop.org.slug, elsewhere.slug)
    get_page(other, stolen, 410)
    form.action = form.action.replace(shop.org.slug, elsewhere.slug)
    parse_page(submit_form(other, form), 410)
    assert get_page(other, f"/o/{elsewhere.slug}/bookings").links("/b/") == []
    form.action = form.action.replace(elsewhere.slug, shop.org.slug)
    for wrong in ("", "x", form.fields["token"][:-1], form.fields["token"] + "A", "\udcff", "x" * 5000, "%00"):
        parse_page(submit_form(other, form, token=wrong.encode(errors="replace").decode()), 410)
    get_page(other, shop.path("recover/link"), 410)
    query(shop.server.database_url, "UPDATE recovery_link SET expires_at = now() WHERE email = $1", email)
    dead = get_page(other, link, 410).text
    assert parse_page(submit_form(other, form), 410).text == dead
    assert get_page(other, shop.path("bookings")).links("/b/") == []


def test_only_a_form_of_this_browser_requests_or_uses_a_link(
    shop: Shop, browser: httpx.Client, other: httpx.Client
) -> None:
    email = new_address()
    shop.book(browser, email)
    link = shop.get_link(other, email)
    forms = [get_page(other, shop.path()).form("/request"), get_page(other, link).form("/link")]
    for form in forms:
        assert submit_form(other, form, form_token="", email=email).status_code == 403
        assert submit_form(other, form, {"Origin": "https://evil.example"}, email=email).status_code == 403
        assert submit_form(browser, form, email=email).status_code == 403, "the form of another browser"
        with shop.new_browser() as new:
            assert new.post(form.action, data=form.fields, headers=same_origin_headers(new)).status_code == 403
    assert redirect_target(submit_form(other, forms[1])) == shop.path("bookings")


def test_a_recovery_opens_no_other_booking_of_the_same_guest(
    shop: Shop, browser: httpx.Client, other: httpx.Client
) -> None:
    """Two people may share a browser, and each of them only has their own mailbox."""
    email, their_email = new_address(), new_address()
    mine, theirs = shop.book(browser, email), shop.book(browser, their_email)
    without_address = hold_on_page(browser, shop.event, **STANDING)
    tickets = {path: get_page(browser, path).links("ticket.pdf")[0] for path in (mine, theirs)}
    assert shop.recover(other, email).links("/b/") == [mine]
    for path in (theirs, without_address):
        get_page(other, path, 404)
        assert other.get(f"{path}/state").status_code == 404
        assert other.get(f"{path}/calendar.ics").status_code == 404
    assert other.get(tickets[mine]).status_code == 200
    assert other.get(tickets[theirs]).status_code == 404
    assert other.get(tickets[theirs].replace(theirs, mine)).status_code == 404, "a ticket under another booking"


def test_a_browser_sees_only_what_was_booked_before_it_recovered(
    shop: Shop, browser: httpx.Client, other: httpx.Client
) -> None:
    email = new_address()
    shop.book(browser, email)
    before = shop.recover(other, email).links("/b/")
    later = shop.book(browser, email)
    event, booking = ids.parse_booking_id(later.removeprefix("/b/")) or (b"", b"")
    # The browser remembers whole seconds.
    move = "UPDATE booking SET created_at = created_at + $3 * interval '2 s' WHERE event_id = $1 AND id = $2"
    query(shop.server.database_url, move, event, booking, 1)
    assert get_page(other, shop.path("bookings")).links("/b/") == before
    get_page(other, later, 404)
    query(shop.server.database_url, move, event, booking, -1)
    assert set(shop.recover(other, email).links("/b/")) == {later, *before}


def test_what_a_recovered_browser_books_belongs_to_itself(
    shop: Shop, browser: httpx.Client, other: httpx.Client
) -> None:
    """Anybody can book with somebody else's address. They must not see what the owner of the address books later."""
    email = new_address()
    theirs = shop.book(browser, email)
    shop.recover(other, email)
    mine = hold_on_page(other, shop.event, **STANDING)
    get_page(browser, mine, 404)
    users = [expect_ok(shop.admin.get(f"/v1/bookings/{path.removeprefix('/b/')}"))["user"] for path in (theirs, mine)]
    assert users[0] != users[1]
    assert get_page(other, shop.path("bookings")).links("/b/") == [mine, theirs]


def test_a_booking_that_was_transferred_away_is_gone(shop: Shop, browser: httpx.Client, other: httpx.Client) -> None:
    email = new_address()
    path = shop.book(browser, email)
    assert shop.recover(other, email).links("/b/") == [path]
    body = {"user": "ben", "email": "ben@example.org"}
    expect_ok(shop.admin.post(f"/v1/bookings/{path.removeprefix('/b/')}/transfer", json=body))
    get_page(other, path, 404)
    assert get_page(other, shop.path("bookings")).links("/b/") == []


def test_a_guest_cancels_a_recovered_booking(shop: Shop, browser: httpx.Client, other: httpx.Client) -> None:
    event = publish_event(shop.admin, example_event(preset="registration", pools=FREE))
    email = new_address()
    path = hold_on_page(browser, event, quantity__0__0="1", email=email)
    shop.recover(other, email)
    redirect_target(submit_form(other, get_page(other, path).form("/cancel")))
    assert "Booking cancelled" in get_page(other, path).text
    assert "Booking cancelled" in get_page(browser, path).text


def test_a_browser_can_forget_what_it_recovered(shop: Shop, browser: httpx.Client, other: httpx.Client) -> None:
    email = new_address()
    path = shop.book(browser, email)
    own = hold_on_page(other, shop.event, **STANDING)
    page = shop.recover(other, email)
    assert email in page.text
    page = get_page(other, redirect_target(submit_form(other, page.form("/forget"))))
    assert page.links("/b/") == [own]
    assert not page.has_form("/forget")
    get_page(other, path, 404)
    assert redirect_target(other.get(shop.path("bookings/forget"))) == shop.path("bookings")


def test_the_cookie_stays_small_with_many_long_addresses() -> None:
    secret = SecretValue(1, bytes(32), signs=True)
    session, now = new_session(), datetime.now(UTC)
    domain = ".".join(letter * 60 for letter in "bcd")
    for number in range(20):
        org, email = ids.new_id(), f"{LETTER * 60}{number}@{domain}"
        session = session.sign_in(org, "u" * 200).recover(org, email, now)
        text = write_cookie(session, secret)
        assert len(text) <= COOKIE_CHARS_MAX
        cookie = read_cookie(text, Keyring((secret,)))
        assert cookie is not None
        assert [recovery.email for recovery in cookie.session.recoveries_in(org)] == [email], "the newest one stays"
        assert len(session.recoveries) == min(number + 1, RECOVERIES_MAX)


def test_one_address_cannot_send_many_requests_and_stops_nobody_else(shop: Shop) -> None:
    org = Org(shop.server.database_url)
    path = f"/o/{org.slug}/recover"
    with shop.browser_at("192.0.2.1") as flooder, shop.browser_at("192.0.2.2") as honest:
        form = get_page(flooder, path).form("/request")
        answers = [submit_form(flooder, form, email=new_address()) for _ in range(REQUESTS_PER_ADDRESS + 5)]
        assert [answer.status_code for answer in answers] == [303] * REQUESTS_PER_ADDRESS + [429] * 5
        refused = parse_page(answers[-1], 429)
        assert "try again in an hour" in refused.text
        assert refused.response.headers["retry-after"] == "3600"
        assert submit_form(honest, get_page(honest, path).form("/request"), email=new_address()).status_code == 303
        full = "UPDATE recovery_count SET count = $1 WHERE kind = 'org_hour' AND key = $2"
        query(shop.server.database_url, full, REQUESTS_PER_ORG, org.id)
        assert submit_form(honest, get_page(honest, path).form("/request"), email=new_address()).status_code == 429


def test_a_buyer_finds_their_bookings_on_a_phone(shop: Shop, browser: httpx.Client) -> None:
    email = new_address()
    shop.book(browser, email)
    with chromium() as phone, browser_buyer(phone, shop.server, **PHONE) as buyer:
        page = buyer.page
        violations = []
        page.goto(shop.server.url + shop.path("bookings"))
        page.get_by_role("link", name="Find my bookings").click()
        violations += find_violations(page)
        page.get_by_label("Email").fill(email.upper())
        page.get_by_role("button", name="Email me a link").click()
        buyer.expect_text("Check your inbox")
        wait_until(lambda: bool(shop.emails_to(email)), WAIT_SECONDS)
        page.goto(shop.server.url + link_in(shop.emails_to(email)[0]))
        violations += find_violations(page)
        page.get_by_role("button", name="Show my bookings").click()
        page.wait_for_url("**/bookings")
        violations += find_violations(page)
        page.get_by_role("link", name="Friday night").click()
        buyer.expect_text("Here are your 2 tickets")
    assert violations == []


@async_test
async def test_without_a_mail_server_there_is_no_recovery(database: str) -> None:
    async with local_pages(database) as pages, local_pages(database, smtp_url="smtp://127.0.0.1:9") as with_mail:
        assert await create_org(Database(pages.pool), "acme")
        for path in ("", "/sent", "/link?token=x"):
            statuses = [
                (await each.client.get(f"/o/acme/recover{path}", headers={"accept": HTML})).status_code
                for each in (pages, with_mail)
            ]
            assert statuses == [404, 410 if "token" in path else 200]
        assert (await pages.client.post("/o/acme/recover/request")).status_code in (404, 405)
        assert "/o/acme/recover" in await with_mail.get("/o/acme/bookings")
        assert "/o/acme/recover" not in await pages.get("/o/acme/bookings")


def test_the_log_of_these_tests_has_no_errors_and_no_addresses(shop: Shop, log: CapturedLog) -> None:
    """This test is the last in the file, so that the log covers all the others."""
    emails = [message for message in shop.mailbox.messages if str(message["Subject"]).startswith(SUBJECTS)]
    tokens = [link_in(message).partition("token=")[2] for message in emails]
    assert len(tokens) > 10
    assert find_leaks(log.text, {f"token {token[:4]}": token for token in tokens}) == []
    for event in ("page_failed", "queue_row_failed", "job_failed"):
        assert not log.has_entry(event)
    assert "Traceback" not in log.text
