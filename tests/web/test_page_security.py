"""Pages reveal nothing to strangers, run no foreign code, and accept forms only from their own browser session."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import jwt
import pytest

from holdfast.i18n.languages import LANGUAGES
from holdfast.runtime import ids
from holdfast.runtime.credentials import hash_key
from holdfast.runtime.settings import Settings
from holdfast.web.routes import page_routes
from holdfast.web.session import COOKIE_CHARS_MAX
from holdfast.web.site import Site
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    query,
    running_server,
)
from tests.support.html_client import (
    HTML,
    IFRAME_HEADERS,
    Page,
    get_as_new_visitor,
    get_page,
    hold_on_page,
    new_visitor,
    parse_page,
    redirect_target,
    same_origin_headers,
    submit_file,
    submit_form,
)
from tests.support.http_assertions import expect_ok
from tests.support.log_capture import CapturedLog, find_leaks, redirect_output
from tests.support.push_service import SubscribedBrowser
from tests.support.resources import TINY_PNG, reviewed_event

STANDING: Final = {"quantity__1__0": "2"}
NASTY: Final = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"
LABEL: Final = "<b onclick=a>\"'&"
PUBLIC_URL: Final = "https://tickets.example"
# Without a worker, nothing connects to it.
SMTP_URL: Final = "smtp://127.0.0.1:9"
# The largest cookie that browsers keep, with its name and attributes.
COOKIE_BYTES_MAX: Final = 4096
TLS_COOKIE: Final = "__Host-holdfast"
SECRETS: dict[str, str] = {}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> CapturedLog:
    return CapturedLog(tmp_path_factory.mktemp("pages") / "log")


@pytest.fixture(scope="module")
def server(postgres: str, log: CapturedLog) -> Iterator[Server]:
    """Two processes whose log the last test reads."""
    with fresh_database(postgres) as url:
        with redirect_output(log.path):
            running = running_server(url, workers=2, HOLDFAST_SMTP_URL=SMTP_URL)
            server = running.__enter__()
        try:
            yield server
        finally:
            running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def tls(server: Server, log: CapturedLog) -> Iterator[Server]:
    """The same database, served under a public URL with TLS and with the demo."""
    with redirect_output(log.path):
        running = running_server(
            server.database_url,
            workers=1,
            HOLDFAST_PUBLIC_URL=f"{PUBLIC_URL}/",
            HOLDFAST_DEMO="true",
            HOLDFAST_SMTP_URL=SMTP_URL,
            HOLDFAST_WEB_PUSH="true",
        )
        demo = running.__enter__()
    try:
        yield demo
    finally:
        running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    """An org with a known slug, for the URLs of its pages. All tests of this file hold units from one address."""
    org = Org(server.database_url, "acme")
    query(server.database_url, "UPDATE org SET max_unpaid_units_per_address = NULL WHERE id = $1", org.id)
    return org


@pytest.fixture
def buyer(server: Server) -> Iterator[httpx.Client]:
    with new_visitor(server) as client:
        yield client
        SECRETS.update({f"cookie {value[-8:]}": value for value in client.cookies.values()})


def _seat_pools(name: str) -> list[dict[str, Any]]:
    seat = {"label": LABEL, "row": name[:32], "number": 1, "x": 0, "y": 0}
    tariff = {"code": "full", "price": 3000, "name": name}
    return [
        {"code": "stalls", "name": name, "tariffs": [tariff], "seats": [seat]},
        {"code": "standing", "name": name, "capacity": 500, "tariffs": [tariff, {**tariff, "code": "child"}]},
    ]


def _id(booking: str) -> str:
    return booking.removeprefix("/b/").partition("?")[0]


def _pages_of_rules(clerk: httpx.Client, buyer: httpx.Client) -> dict[str, Page]:
    """The pages of events with slots, questions, a shift and a sales window, with markup in every text."""
    unit = {"code": "guest", "label": NASTY, "per": "unit", "required": True}
    choice = {"code": "size", "label": NASTY, "kind": "choice", "choices": [NASTY], "required": True}
    texts = dict.fromkeys(("salary", "food", "work_time", "address", "buses", "additional_info"), NASTY)
    slots = [
        {"code": f"s{n}", "name": NASTY, "capacity": 9, "starts_at": f"2027-03-0{n}T10:00:00Z"} for n in range(1, 5)
    ]
    event = example_event(
        title=NASTY, pools=slots, questions=[choice, unit], shift=texts, contact={"phone": "required"}
    )
    id_ = publish_event(clerk, event)
    found = {"slots": get_page(buyer, f"/e/{id_}?day=2027-03-02&slot=s2")}
    form = found["slots"].form("/hold")
    form.fields |= {"quantity.1.0": "1", "answer.size": NASTY, "phone": NASTY}
    found["details"] = parse_page(submit_form(buyer, form))
    found["wrong details"] = parse_page(submit_form(buyer, found["details"].form("/hold")), 422)
    later = example_event(title=NASTY, pools=_seat_pools(NASTY), sales_open_at="2027-03-01T10:00:00Z")
    found["waiting"] = get_page(buyer, f"/e/{publish_event(clerk, later)}")
    return found


@pytest.fixture(scope="module")
def pages(server: Server, tls: Server, org: Org, admin: httpx.Client) -> dict[str, Page]:
    """Every page, of an org whose names all contain markup."""
    found: dict[str, Page] = {}
    nasty = Org(server.database_url, "nasty")
    event = {"title": NASTY, "details": {NASTY: NASTY, "address": NASTY}, "pools": _seat_pools(NASTY)}
    with server.client(nasty.headers()) as clerk, new_visitor(server) as buyer, new_visitor(tls) as tls_visitor:
        expect_ok(clerk.patch("/v1/org", json={"name": NASTY, "colour": "#123456"}))
        logo = "UPDATE org SET logo = $1, logo_type = 'image/png' WHERE slug = 'nasty'"
        query(server.database_url, logo, TINY_PNG)
        id_ = publish_event(clerk, reviewed_event(**event))

        def act(booking: str, verb: str, **body: str) -> None:
            expect_ok(clerk.post(f"/v1/bookings/{_id(booking)}/{verb}", json=body))

        def place_hold() -> str:
            return hold_on_page(buyer, id_, **STANDING)

        found["event"] = get_page(buyer, f"/e/{id_}")
        seat = json.dumps([{"seat": LABEL}])
        found["held"] = get_page(buyer, redirect_target(submit_form(buyer, found["event"].form("/hold"), seats=seat)))
        found["event with a hold"] = get_page(buyer, f"/e/{id_}")
        found["own seat"] = parse_page(
            submit_form(buyer, found["event with a hold"].form("/hold"), seats=seat, quantity__1__0="1"), 409
        )
        with new_visitor(server) as other:
            form = get_page(other, f"/e/{id_}").form("/hold")
            found["taken"] = parse_page(submit_form(other, form, seats=seat), 409)
        found |= _pages_of_rules(clerk, buyer)
        for name, verbs in {
            "confirmed": ["confirm"],
            "cancelled": ["cancel"],
            "refunded": ["confirm", "refund"],
        }.items():
            booking = place_hold()
            for verb in verbs:
                act(booking, verb, **({} if verb == "confirm" else {"reason": NASTY}))
            found[name] = get_page(buyer, booking)
        for name in ("payment_submitted", "rejected"):
            booking = place_hold()
            redirect_target(submit_file(buyer, get_page(buyer, booking).form("/receipt"), TINY_PNG))
            if name == "rejected":
                act(booking, "reject", reason=NASTY)
            found[name] = get_page(buyer, booking)
        expired = place_hold()
        parsed = ids.parse_booking_id(_id(expired))
        assert parsed is not None
        query(server.database_url, "UPDATE booking SET expires_at = now() WHERE event_id = $1 AND id = $2", *parsed)
        found["expired"] = get_page(buyer, expired)
        completed = place_hold()
        act(completed, "confirm")
        found["refused"] = parse_page(submit_file(buyer, found["held"].form("/receipt"), b"x"), 422)
        found["bookings"] = get_page(buyer, "/o/nasty/bookings")
        found["no bookings"] = get_page(tls_visitor, "/o/nasty/bookings")
        found["start"] = get_page(buyer, "/")
        found["demo"] = get_page(tls_visitor, "/")
        found["org"] = get_page(buyer, "/o/nasty")
        found["stampede"] = get_page(tls_visitor, f"/e/{id_}/stampede")
        found["not found"] = get_page(buyer, f"/o/{quote(NASTY.replace('/', ''), safe='')}", 404)
        found["not valid"] = get_page(buyer, f"/enter?token={quote(NASTY)}", 401)
        found["sign in"] = get_page(buyer, f"/enter?token={_token(clerk, NASTY[:40])}")
        used = _token(clerk)
        redirect_target(tls_visitor.get(f"/enter?token={used}"))
        found["used link"] = get_page(buyer, f"/enter?token={used}", 410)
        found["recover"] = get_page(buyer, "/o/nasty/recover")
        found["recovery refused"] = parse_page(submit_form(buyer, found["recover"].form("/request"), email=NASTY), 422)
        found["recovery requested"] = get_page(buyer, "/o/nasty/recover/sent")
        _insert_recovery_link(server, nasty, NASTY, f"{NASTY}@example.org")
        found["recovery link"] = get_page(buyer, f"/o/nasty/recover/link?token={quote(NASTY)}")
        redirect_target(submit_form(buyer, found["recovery link"].form("/link")))
        found["recovered bookings"] = get_page(buyer, "/o/nasty/bookings")
        found["dead recovery link"] = get_page(buyer, f"/o/nasty/recover/link?token={quote(NASTY)}", 410)
        found["not ours"] = parse_page(buyer.post(f"/e/{id_}/hold", data={"x": NASTY}), 403)
        found["too large"] = parse_page(submit_form(buyer, found["event"].form("/hold"), email="x" * 70_000), 413)
        expect_ok(clerk.post(f"/v1/events/{id_}/complete"))
        found["completed"] = get_page(buyer, completed)
        found["ended event"] = get_page(buyer, f"/e/{id_}")
    return found


def test_every_page_has_a_strict_policy_and_is_never_cached(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        headers = page.response.headers
        rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert rules["default-src"] == "'none'", name
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'", name
        assert rules["img-src"] == "'self' blob: data:", name
        assert rules["base-uri"] == rules["frame-ancestors"] == "'none'", name
        assert "unsafe" not in headers["content-security-policy"], name
        assert headers["x-content-type-options"] == "nosniff", name
        assert headers["cache-control"] == "no-store", name
        assert headers["referrer-policy"] == "same-origin", name


def test_no_page_has_an_inline_script_or_style(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for attributes, text in page.scripts:
            if attributes.get("type") == "application/json":
                json.loads(text)
            else:
                assert re.fullmatch(r"/static/\w+/\w+\.js", attributes["src"] or ""), name
                assert not text.strip(), name
        for tag, attributes in page.tags:
            assert tag not in ("style", "base", "iframe", "object", "embed", "frame"), name
            assert not [each for each in attributes if each == "style" or each.startswith("on")], (name, attributes)


def test_no_page_links_to_or_loads_from_another_site(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for tag, attributes in page.tags:
            for kind in ("src", "href", "action", "formaction", "poster"):
                address = attributes.get(kind)
                if address is not None:
                    assert re.match(r"/(?![/\\])|#\w", address), (name, tag, address)


def test_every_name_is_shown_as_plain_text(pages: dict[str, Page]) -> None:
    with_names = set(pages) - {"start", "demo", "not found", "not valid", "not ours", "too large"}
    shown = " ".join(NASTY.split())
    for name, page in pages.items():
        assert "alert(1)</script>" not in page.response.text, name
        assert "49" not in page.text.replace("2049", "") or "{{7*7}}" in page.text, name
        assert not [1 for tag, attributes in page.tags if tag == "img" and attributes.get("src") == "x"], name
        if name in with_names:
            assert shown in page.text, name
    pools = pages["event"].data["pools"]
    assert [pool["name"] for pool in pools] == [NASTY, NASTY]
    assert pages["event with a hold"].data["mine"] == [LABEL]
    assert LABEL in pages["held"].text
    assert LABEL in pages["taken"].text


def test_forms_carry_the_token_of_their_browser(pages: dict[str, Page]) -> None:
    """A search changes nothing, so its form needs no token."""
    tokens = {
        name: {form.fields.get("form_token") for form in page.forms if form.method == "post"}
        for name, page in pages.items()
    }
    sent = [token for found in tokens.values() for token in found]
    assert None not in sent
    assert len(sent) > 3
    assert len(set(sent)) == len(sent), "the sizes of compressed pages would reveal a repeated token"


def _cookie(response: httpx.Response, expected_name: str = "holdfast") -> tuple[str, dict[str, str | None]]:
    """The value of the only cookie that is set, and its attributes in lower case."""
    (header,) = response.headers.get_list("set-cookie")
    first, *rest = header.split("; ")
    attributes = {name.lower(): value or None for name, _, value in (each.partition("=") for each in rest)}
    name, _, value = first.partition("=")
    assert name == expected_name
    return value, attributes


def test_the_cookie_is_hidden_from_scripts_and_other_sites(server: Server, tls: Server) -> None:
    plain = {"httponly": None, "samesite": "lax", "path": "/", "max-age": str(30 * 86_400)}
    assert _cookie(get_as_new_visitor(server.url))[1] == plain
    # Browsers accept this prefix only with `Secure`, the path `/` and no domain.
    assert _cookie(get_as_new_visitor(tls.url), TLS_COOKIE)[1] == {**plain, "secure": None}
    in_frame = {**plain, "samesite": "none", "secure": None, "partitioned": None}
    for site, name in ((server, "holdfast"), (tls, TLS_COOKIE)):
        assert _cookie(get_as_new_visitor(site.url, headers=IFRAME_HEADERS), name)[1] == in_frame
    assert "strict-transport-security" in get_as_new_visitor(tls.url).headers
    assert "strict-transport-security" not in get_as_new_visitor(server.url).headers


def test_each_browser_gets_one_cookie_and_keeps_it(server: Server, buyer: httpx.Client) -> None:
    value, _ = _cookie(buyer.get("/"))
    assert "set-cookie" not in buyer.get("/").headers
    assert _cookie(get_as_new_visitor(server.url))[0] != value
    assert _cookie(buyer.get("/?lang=es"))[0] != value
    assert "set-cookie" not in buyer.get("/?lang=es").headers


def test_a_cookie_that_another_host_of_the_domain_could_set_is_ignored_over_tls(
    tls: Server, admin: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    with new_visitor(tls) as buyer:
        value = _cookie(buyer.get("/"), TLS_COOKIE)[0]
        buyer.cookies.set(TLS_COOKIE, value)
        booking = hold_on_page(buyer, event, **STANDING)
    assert get_as_new_visitor(tls.url + booking, headers={"cookie": f"{TLS_COOKIE}={value}"}).status_code == 200
    assert get_as_new_visitor(tls.url + booking, headers={"cookie": f"holdfast={value}"}).status_code == 404


def _forged_cookies(value: str, secret: bytes) -> dict[str, str]:
    claims = jwt.decode(value, options={"verify_signature": False})
    head, body, signature = value.split(".")
    kid = {"kid": jwt.get_unverified_header(value)["kid"]}

    def sign(**changes: Any) -> str:
        """A valid cookie except for the given claims. A claim of None is left out."""
        changed = {name: claim for name, claim in {**claims, **changes}.items() if claim is not None}
        return jwt.encode(changed, secret, headers=kid)

    assert jwt.decode(sign(), secret, algorithms=["HS256"], audience="session") == claims
    other = {**claims, "session": {**claims["session"], "guest": "0" * 32}}
    return {
        "empty": "",
        "garbage": "x" * 100,
        "dots": "..",
        "not ASCII": quote("ä.ö.ü"),
        "unsigned": jwt.encode(claims, "", algorithm="none", headers=kid),
        "signed with another secret": jwt.encode(claims, b"x" * 32, algorithm="HS256", headers=kid),
        "signed with an unknown secret": jwt.encode(claims, secret, headers={"kid": "2"}),
        "signed with no secret's number": jwt.encode(claims, secret),
        "other claims": f"{head}.{jwt.encode(other, b'x' * 32).split('.')[1]}.{signature}",
        "truncated": value[:-2],
        "another audience": sign(aud="holdfast"),
        "no audience": sign(aud=None),
        "another structure": sign(session={"id": claims["session"]["guest"]}),
        "no session": sign(session=None),
        "a wrong type": sign(session={"guest": 7}),
        "expired": sign(exp=claims["iat"] - 1),
        "without an end": sign(exp=None),
        "one part too many": f"{value}.{body}",
    }


def test_a_forged_cookie_is_ignored(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    value = buyer.cookies["holdfast"]
    secret = query(server.database_url, "SELECT value FROM secret WHERE name = 'sessions'")[0]["value"]
    assert get_as_new_visitor(server.url + booking, headers={"cookie": f"holdfast={value}"}).status_code == 200
    for name, forged in _forged_cookies(value, secret).items():
        answer = get_as_new_visitor(server.url + booking, headers={"cookie": f"holdfast={forged}"})
        assert answer.status_code == 404, name
        assert _cookie(answer)[0] != forged, name


UNUSED: Any = None
ROUTES: Final = page_routes(Site(Settings(demo=True, smtp_url=SMTP_URL), UNUSED, UNUSED, ()), (), None)
POSTS: Final = [route.path for route in ROUTES if "POST" in (route.methods or ())]
GETS: Final = [route.path for route in ROUTES if "GET" in (route.methods or ())]

Attack = Callable[[httpx.Client, str, dict[str, str], Any], httpx.Response]


def _with_headers(**headers: str) -> Attack:
    sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def attack(client: httpx.Client, path: str, fields: dict[str, str], files: Any) -> httpx.Response:
        return client.post(path, data=fields, files=files, headers=sent_headers)

    return attack


def _with_token(token: str | None) -> Attack:
    def attack(client: httpx.Client, path: str, fields: dict[str, str], files: Any) -> httpx.Response:
        others = {name: value for name, value in fields.items() if name != "form_token"}
        sent = others if token is None else {**others, "form_token": token}
        return client.post(path, data=sent, files=files, headers=same_origin_headers(client))

    return attack


def _from_another_browser(client: httpx.Client, path: str, fields: dict[str, str], files: Any) -> httpx.Response:
    """Send the token of a page without its cookie, and then with the cookie of another browser."""
    with httpx.Client(base_url=client.base_url, verify=False, timeout=30) as other:
        assert other.post(path, data=fields, files=files).status_code == 403
        return other.post(path, data=fields, files=files)


def _with_token_of_another_browser(
    client: httpx.Client, path: str, fields: dict[str, str], files: Any
) -> httpx.Response:
    event = re.search(r"/e/ev_\w+", path)
    with httpx.Client(base_url=client.base_url, verify=False, timeout=30) as other:
        event_id = fields["event"] if event is None else event[0].removeprefix("/e/")
        token = get_page(other, f"/e/{event_id}").form("/hold").fields["form_token"]
    return client.post(path, data={**fields, "form_token": token}, files=files)


ATTACKS: Final[dict[str, Attack]] = {
    "no token": _with_token(None),
    "an empty token": _with_token(""),
    "a wrong token": _with_token("0" * 32),
    "a token in other characters": _with_token("ä" * 32),
    "the token of another browser": _with_token_of_another_browser,
    "another browser": _from_another_browser,
    "another origin": _with_headers(Origin="https://evil.example"),
    "an origin that begins like ours": _with_headers(Origin="http://127.0.0.1"),
    "a null origin": _with_headers(Origin="null"),
    "an invalid origin": _with_headers(Origin="http://["),
    "another site": _with_headers(Sec_Fetch_Site="cross-site"),
    "a sibling site": _with_headers(Sec_Fetch_Site="same-site"),
}


def test_only_a_form_refused_before_it_is_read_closes_its_connection(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with new_visitor(server) as client:
        form = get_page(client, f"/e/{event}").form("/hold")
        for headers, token, connection in (
            ({"Origin": "https://evil.example"}, form.fields["form_token"], "close"),
            (same_origin_headers(client), "a wrong token", None),
        ):
            answer = client.post(form.action, data={**form.fields, "form_token": token}, headers=headers)
            assert (answer.status_code, answer.headers.get("connection")) == (403, connection)


def _insert_recovery_link(server: Server, org: Org, token: str, email: str) -> None:
    query(
        server.database_url,
        "INSERT INTO recovery_link VALUES ($1, $2, $3, $4, now() + interval '1 h')",
        hash_key(token),
        ids.new_id(),
        org.id,
        email,
    )


# One function checks every form, so one form gets every attack, and every other form gets three.
@pytest.mark.parametrize(
    ("path", "attacks"),
    [
        (path, [*ATTACKS] if path == "/e/{event}/hold" else ["no token", "a wrong token", "another origin"])
        for path in POSTS
    ],
    ids=POSTS,
)
def test_a_forged_form_has_no_effect(tls: Server, org: Org, admin: httpx.Client, path: str, attacks: list[str]) -> None:
    event = publish_event(admin, reviewed_event(policy={"review": "manual", "hold_seconds": 60}))
    with new_visitor(tls) as client:
        client.cookies.set(TLS_COOKIE, _cookie(client.get("/"), TLS_COOKIE)[0])
        booking = hold_on_page(client, event, **STANDING)
        fields = {**get_page(client, booking).form("/pay").fields, "quantity.1.0": "1", "event": event}
        fields |= {"buyers": "x", "seconds": "x", "token": _token(admin), "email": "ada@private.example"}
        fields |= {**SubscribedBrowser("https://fcm.googleapis.com/1", "").form(), "key_number": "1"}
        _insert_recovery_link(tls, org, fields["token"], fields["email"])
        files = {"file": ("r.png", TINY_PNG)} if path.endswith("/receipt") else None
        address = path.format(event=event, booking=_id(booking), slug=org.slug)

        def state() -> Any:
            tables = ("stampede", "used_token", "recovery_request", "recovery_link", "push_subscription")
            counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
            (rows,) = query(tls.database_url, f"SELECT {counts}")
            return tuple(rows), expect_ok(admin.get(f"/v1/events/{event}"))["version"]

        before = state()
        for name in attacks:
            answer = ATTACKS[name](client, address, fields, files)
            assert answer.status_code == 403, name
            assert "This form has expired" in parse_page(answer, 403).text, name
            assert state() == before, name
        genuine = client.post(address, data=fields, files=files, headers=same_origin_headers(client))
        assert genuine.status_code in (200, 303, 409)
        assert path.endswith(("/stampede", "/forget")) or state() != before


def test_a_form_is_accepted_behind_a_proxy_that_changes_the_host(tls: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with new_visitor(tls) as client:
        client.cookies.set(TLS_COOKIE, _cookie(client.get("/"), TLS_COOKIE)[0])
        form = get_page(client, f"/e/{event}").form("/hold")
        assert submit_form(client, form, {"Origin": "https://tickets.example"}, **STANDING).status_code == 303
        assert submit_form(client, form, {"Origin": "http://tickets.example"}, **STANDING).status_code == 403


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/x-www-form-urlencoded", b"x" * 70_000, 413),
        ("application/x-www-form-urlencoded", b"a=1&" * 10_000, 422),
        ("application/x-www-form-urlencoded", b"", 403),
        ("application/x-www-form-urlencoded", b"%ff=%ff&\xff\xfe&=&&%zz", 403),
        ("application/json", b'{"form_token": "x"}', 422),
        ("text/plain", b"form_token=x", 422),
        ("multipart/form-data", b"x", 422),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\n", 422),
        ("multipart/form-data; boundary=b", b"--x", 422),
        ("", b"form_token=x", 422),
    ],
)
def test_an_unreadable_form_gets_an_error_page(
    server: Server, admin: httpx.Client, buyer: httpx.Client, kind: str, body: bytes, status: int
) -> None:
    event = publish_event(admin, reviewed_event())
    hold_on_page(buyer, event, **STANDING)
    answer = buyer.post(f"/e/{event}/hold", content=body, headers={"content-type": kind})
    assert parse_page(answer, status).response.status_code == status


# Another parser reads the form of a receipt, because it carries a file.
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded", b""),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\n"),
        ("multipart/form-data; boundary=b", b"--x"),
    ],
)
def test_an_unreadable_receipt_form_gets_an_error_page(
    server: Server, admin: httpx.Client, buyer: httpx.Client, kind: str, body: bytes
) -> None:
    booking = hold_on_page(buyer, publish_event(admin, reviewed_event()), **STANDING)
    answer = buyer.post(f"{booking}/receipt", content=body, headers={"content-type": kind})
    assert parse_page(answer, answer.status_code).response.status_code in {403, 413, 422}


def test_a_form_without_a_content_length_is_refused(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    fields = get_page(buyer, f"/e/{event}").form("/hold").fields
    body = f"form_token={fields['form_token']}&quantity.1.0=1".encode()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = buyer.post(f"/e/{event}/hold", content=iter([body]), headers=headers)
    assert answer.status_code == 413


def test_a_token_in_an_odd_encoding_is_refused(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    booking = hold_on_page(buyer, publish_event(admin, reviewed_event()), **STANDING)
    body = b'--b\r\ncontent-disposition: form-data; name="form_token"\r\n\r\n\\ud800\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b; charset=unicode_escape"}
    assert buyer.post(f"{booking}/receipt", content=body, headers=headers).status_code == 403


def _token(clerk: httpx.Client, user: str = "ada", **more: int) -> str:
    token: str = expect_ok(clerk.post("/v1/customer-tokens", json={"user": user, **more}), 201)["token"]
    SECRETS[f"token {token[-8:]}"] = token
    return token


def test_a_customer_who_enters_with_a_token_sees_their_own_bookings(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(title="Booked elsewhere"))
    theirs = expect_ok(post_hold(admin, event, user="ada", items=[{"seat": "A-1"}]), 201)["id"]
    guest = hold_on_page(buyer, event, **STANDING)
    assert buyer.get(f"/b/{theirs}").status_code == 404
    token = _token(admin)
    question = parse_page(buyer.get("/enter", params={"token": token, "next": f"/e/{event}"}))
    answer = submit_form(buyer, question.form("/enter"))
    assert redirect_target(answer) == f"/e/{event}"
    assert token not in str(answer.headers)
    assert answer.headers["referrer-policy"] == "same-origin"
    assert get_page(buyer, f"/e/{event}").data["mine"] == ["A-1"]
    assert get_page(buyer, f"/b/{theirs}").data["status"] == "held"
    assert get_page(buyer, "/o/acme/bookings").links("/b/") == [f"/b/{theirs}"]
    booked = hold_on_page(buyer, event, **STANDING)
    assert expect_ok(admin.get(f"/v1/bookings/{_id(booked)}"))["user"] == "ada"
    assert buyer.get(guest).status_code == 404
    with new_visitor(server) as other:
        assert other.get(f"/b/{theirs}").status_code == 404


def test_a_customer_of_one_org_is_a_guest_at_another(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    with server.client(Org(server.database_url, "elsewhere").headers()) as clerk:
        event = publish_event(clerk, example_event())
        booking = expect_ok(post_hold(clerk, event, user="ada", items=[{"seat": "A-1"}]), 201)["id"]
        redirect_target(buyer.get("/enter", params={"token": _token(admin)}))
        assert buyer.get(f"/b/{booking}").status_code == 404
        booked = hold_on_page(buyer, event, **STANDING)
        assert expect_ok(clerk.get(f"/v1/bookings/{_id(booked)}"))["user"].startswith("guest-")
        question = parse_page(buyer.get("/enter", params={"token": _token(clerk)}))
        redirect_target(submit_form(buyer, question.form("/enter")))
        assert buyer.get(f"/b/{booking}").status_code == 200
        assert get_page(buyer, "/o/acme/bookings").response.status_code == 200


def test_an_invalid_token_is_refused(server: Server, org: Org, admin: httpx.Client, buyer: httpx.Client) -> None:
    buyer.get("/")
    before = buyer.cookies["holdfast"]
    good = _token(admin, "eve")
    secret = query(server.database_url, "SELECT token_secret FROM org WHERE slug = 'acme'")[0]["token_secret"]
    claims = jwt.decode(good, options={"verify_signature": False})
    kid = {"kid": ids.format_org_id(org.id)}
    tokens = {
        "expired": jwt.encode({**claims, "exp": 1_000_000_000}, secret, headers=kid),
        "truncated": good[:-3],
        "signed with another secret": jwt.encode(claims, b"x" * 32, headers=kid),
        "unsigned": jwt.encode(claims, "", algorithm="none", headers=kid),
        "a key": org.keys["admin"],
        "empty": "",
        "not ASCII": "ä\0",
        "the cookie": before,
    }
    for name, token in tokens.items():
        answer = buyer.get("/enter", params={"token": token, "next": "/o/acme"})
        page = parse_page(answer, 401)
        assert "This link no longer works" in page.text, name
        assert not token or token not in answer.text, name
        assert "set-cookie" not in answer.headers, name
    assert get_page(buyer, "/enter", 401)
    assert buyer.cookies["holdfast"] == before


@pytest.mark.parametrize(
    "next_",
    [
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "evil.example",
        "",
        "/\t/evil.example",
        "/\n/evil.example",
        "\t//evil.example",
        " //evil.example",
        "/a\r\nset-cookie: a=b",
        "/\0",
        "/ä",
        "/\u202e",
    ],
)
def test_a_customer_is_never_redirected_to_another_site(
    server: Server, admin: httpx.Client, buyer: httpx.Client, next_: str
) -> None:
    answer = buyer.get("/enter", params={"token": _token(admin), "next": next_})
    assert redirect_target(answer) == "/"
    assert set(answer.cookies) <= {"holdfast"}


def test_a_customer_is_redirected_to_any_page_of_this_site(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    for next_ in ("/e/ev_1?lang=es", "/o/acme#events", "/", "/o/acme//x"):
        assert redirect_target(buyer.get("/enter", params={"token": _token(admin), "next": next_})) == next_
    assert redirect_target(buyer.get("/enter", params={"token": _token(admin)})) == "/"


def test_a_cookie_never_exceeds_the_size_that_browsers_keep(server: Server, buyer: httpx.Client) -> None:
    for number in range(12):
        with server.client(Org(server.database_url, f"shop-{number}").headers()) as clerk:
            user = f"{'😀' * 190}-{number}"
            answer = buyer.get("/enter", params={"token": _token(clerk, user)})
            redirect_target(answer)
            header = answer.headers["set-cookie"]
            assert len(header) <= COOKIE_BYTES_MAX
            event = publish_event(clerk, example_event())
            booked = hold_on_page(buyer, event, **STANDING)
            assert expect_ok(clerk.get(f"/v1/bookings/{_id(booked)}"))["user"] == user
    assert len(buyer.cookies["holdfast"]) <= COOKIE_CHARS_MAX


def test_only_sites_that_the_org_allows_can_frame_its_pages(server: Server, buyer: httpx.Client) -> None:
    origins = ["https://theatre.example", "http://localhost:3000"]
    with server.client(Org(server.database_url, "framed").headers()) as clerk:
        expect_ok(clerk.patch("/v1/org", json={"frame_origins": origins}))
        event = publish_event(clerk, example_event())
    booking = hold_on_page(buyer, event, **STANDING)
    parsed = ids.parse_booking_id(_id(booking))
    assert parsed is not None
    absent = f"/b/{ids.format_booking_id(parsed[0], bytes(16))}"
    for path in ("/o/framed", "/o/framed/bookings", f"/e/{event}", booking, absent):
        policy = buyer.get(path).headers["content-security-policy"]
        assert policy.endswith("; frame-ancestors https://theatre.example http://localhost:3000"), path
    for path in ("/", "/o/acme", "/o/nobody", "/enter"):
        assert buyer.get(path).headers["content-security-policy"].endswith("; frame-ancestors 'none'"), path


def test_the_checkout_of_a_framed_page_opens_in_a_new_window(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """A new window would not have the cookie of the frame, so the form itself stays in the frame."""
    booking = hold_on_page(buyer, publish_event(admin, example_event()), **STANDING)
    page = parse_page(buyer.get(booking, headers=IFRAME_HEADERS))
    assert not [attributes for _, attributes in page.tags if "target" in attributes]
    assert redirect_target(submit_form(buyer, page.form("/pay"), IFRAME_HEADERS)) == booking
    (payment,) = expect_ok(admin.get(f"/v1/bookings/{_id(booking)}"))["payments"]
    page = parse_page(buyer.get(booking, headers=IFRAME_HEADERS))
    (link,) = [attributes for _, attributes in page.tags if "target" in attributes]
    shown = {name: link[name] for name in ("href", "target", "rel")}
    assert shown == {"href": payment["checkout_url"], "target": "_blank", "rel": "noopener"}
    back = redirect_target(buyer.post(urlsplit(payment["checkout_url"]).path, data={"action": "pay"}))
    assert urlsplit(back).path == "/paid"
    assert payment["checkout_url"] not in get_page(buyer, booking).response.text


ODD_VALUES: Final = [
    "%00",
    "a%00b",
    "%ff",
    "%ED%A0%80",
    "%F0%9F%98%80",
    "%0d%0aset-cookie:%20a=b",
    "..",
    "%2e%2e%2f",
    "%5c",
    "%3Fx=1%23y",
    "[",
    "%25",
    "%25%30%30",
    "'",
    '"',
    "%7B%7B7*7%7D%7D",
    "x" * 6000,
    "%20",
]


PATHS_WITH_PARAMETERS: Final = [path for path in GETS if re.search(r"{\w+}", path)]
# The first path with each parameter. Each parameter has one parser, which all paths share.
PATH_BY_PARAMETER: Final = {name: path for path in PATHS_WITH_PARAMETERS[::-1] for name in re.findall(r"{(\w+)}", path)}


@pytest.mark.parametrize(
    ("path", "parameter", "values"),
    [
        *(pytest.param(path, name, ODD_VALUES, id=name) for name, path in PATH_BY_PARAMETER.items()),
        *(
            pytest.param(path, re.findall(r"{(\w+)}", path)[-1], ODD_VALUES[:1], id=path)
            for path in PATHS_WITH_PARAMETERS
        ),
    ],
)
def test_no_value_in_a_path_causes_a_server_error(
    server: Server,
    admin: httpx.Client,
    buyer: httpx.Client,
    tls: Server,
    path: str,
    parameter: str,
    values: list[str],
) -> None:
    event = publish_event(admin, example_event())
    booking = hold_on_page(buyer, event, **STANDING)
    site = tls if "stampede" in path else server
    good = {"event": event, "booking": _id(booking), "slug": "acme", "ticket": "tk_1", "file": "qr.svg"}
    good |= {"version": "v", "name": "page.js", "colour": "123456"}
    for odd in values:
        address = path.format(**{**good, parameter: odd})
        answer = buyer.get(site.url + address)
        assert answer.status_code < 500, address
        assert "set-cookie: a=b" not in str(answer.headers), address


@pytest.mark.parametrize("host", ["[", "evil.example", "", "a b", "x" * 500, "ä"])
def test_no_host_header_causes_a_server_error_or_appears_in_the_page(server: Server, host: str) -> None:
    answer = get_as_new_visitor(f"{server.url}/o/nobody", headers={b"host": host.encode()})
    assert answer.status_code in (400, 404)
    assert "evil" not in answer.text


def test_no_odd_header_causes_a_server_error(server: Server, buyer: httpx.Client) -> None:
    names = (b"accept", b"accept-language", b"cookie", b"x-forwarded-for", b"sec-fetch-dest", b"origin")
    values = (b"\xff\xfe", b"x" * 5000, b";,=;", b"\xc3\xa4")
    for name, value in [*((name, values[0]) for name in names), *((b"cookie", value) for value in values[1:])]:
        assert get_as_new_visitor(f"{server.url}/o/nobody", headers={name: value}).status_code == 404
    assert buyer.get("/?lang=es&lang=en&lang=%00").status_code == 200


@pytest.mark.parametrize(("query", "cookie"), [("", "x" * 9_000), ("x" * 9_000, "")])
def test_a_browser_that_sends_too_much_gets_a_page_that_says_what_to_do(
    server: Server, tls: Server, query: str, cookie: str
) -> None:
    too_much = {"cookie": f"merchant={cookie}"}
    for site in (server, tls):
        page = parse_page(get_as_new_visitor(f"{site.url}/?{query}", headers={**too_much, "accept": HTML}), 422)
        assert "Clear this site's cookies" in page.text
        assert all(f'lang="{language}"' in page.response.text for language in LANGUAGES)
        headers = page.response.headers
        policy = "default-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
        assert headers["content-security-policy"] == policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")
        assert headers["cache-control"] == "private, no-store"
        assert ("strict-transport-security" in headers) is (site is tls)
    problem = get_as_new_visitor(f"{server.url}/?{query}", headers=too_much)
    assert (problem.status_code, problem.headers["content-type"]) == (422, "application/problem+json")
    assert problem.json()["detail"] == (
        "The query string and each header may have at most 8,192 bytes. Shorten the URL, or clear this site's cookies."
    )


def _assets(page: Page) -> set[str]:
    found = [attributes.get("src") or attributes.get("href") or "" for _, attributes in page.tags]
    return {address.partition("#")[0] for address in found if address.startswith("/static/")}


def test_the_docs_load_their_style_from_our_own_file(buyer: httpx.Client) -> None:
    page = get_page(buyer, "/docs")
    assert "style" not in {tag for tag, _ in page.tags}
    assert "style-src 'self';" in page.response.headers["content-security-policy"]
    types = {buyer.get(address).headers["content-type"] for address in _assets(page)}
    assert types == {"text/css; charset=utf-8", "image/svg+xml"}


def test_static_files_are_cached_forever_under_their_version(
    server: Server, admin: httpx.Client, pages: dict[str, Page], buyer: httpx.Client
) -> None:
    addresses = set().union(*(_assets(page) for page in pages.values()))
    assert len(addresses) > 5
    for address in addresses:
        zipped = buyer.get(address)
        assert zipped.status_code == 200, address
        headers = zipped.headers
        assert headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (headers["content-encoding"], headers["vary"]) == ("gzip", "accept-encoding")
        assert headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in headers
        plain = buyer.get(address, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == zipped.content
        kind = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
        assert headers["content-type"] == kind[address.rpartition(".")[2]]
        other = buyer.get(re.sub(r"/static/\w+/", "/static/old/", address))
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache")


def test_every_module_that_a_script_imports_is_served(
    server: Server, buyer: httpx.Client, pages: dict[str, Page]
) -> None:
    todo = {address for page in pages.values() for address in _assets(page) if address.endswith(".js")}
    seen: set[str] = set()
    while todo:
        address = todo.pop()
        seen.add(address)
        answer = buyer.get(address)
        assert answer.status_code == 200, address
        names = re.findall(r"(?:from|import|import\()\s*\"(\./[\w.]+)\"", answer.text)
        todo |= {address.rpartition("/")[0] + name[1:] for name in names} - seen
    assert len(seen) > 10


@pytest.mark.parametrize(
    "path",
    ["x/none.js", "x/../site.py", "x/..%2fsite.py", "x/%2e%2e/site.py", "x/__init__.py", "x/", "x/page.js/y", "x"],
)
def test_no_other_file_is_served(server: Server, path: str) -> None:
    answer = get_as_new_visitor(f"{server.url}/static/{path}")
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_a_logo_is_served_as_an_inert_image(
    server: Server, admin: httpx.Client, pages: dict[str, Page], buyer: httpx.Client
) -> None:
    (address,) = {
        attributes["src"]
        for tag, attributes in pages["event"].tags
        if tag == "img" and attributes.get("class") == "logo"
    }
    answer = buyer.get(address or "")
    assert (answer.status_code, answer.content) == (200, TINY_PNG)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert "immutable" in answer.headers["cache-control"]
    for other in ("", "?v=", "?v=000000000000", f"{(address or '').removeprefix('/logo/nasty')}0"):
        assert buyer.get(f"/logo/nasty{other}").headers["cache-control"] == "no-cache", other
    assert buyer.get("/logo/acme").status_code == 404
    assert buyer.get("/logo/nobody").status_code == 404


def test_a_colour_has_a_stylesheet_and_an_invalid_one_is_not_found(server: Server, pages: dict[str, Page]) -> None:
    styles = [attributes["href"] for tag, attributes in pages["event"].tags if tag == "link"]
    assert "/brand/123456.css" in styles
    answer = get_as_new_visitor(f"{server.url}/brand/123456.css")
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text.startswith(":root{--brand:#123456;")
    for colour in ("12345", "red", "1234567", "%23123456", "123456;}body{", "%00", "123456%0a"):
        assert get_as_new_visitor(f"{server.url}/brand/{colour}.css").status_code == 404, colour


def test_the_seat_layout_is_cached_until_it_changes(server: Server, admin: httpx.Client, buyer: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    address = get_page(buyer, f"/e/{event}").data["layout"]
    answer = get_as_new_visitor(server.url + address, headers={"accept-encoding": "identity"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers
    seats = answer.json()["seats"]
    assert len(seats) == 40
    assert seats[0][:4] == ["A-1", 0, "A", 1]
    raw = get_as_new_visitor(server.url + address)
    assert (raw.headers["content-encoding"], raw.json()["seats"]) == ("gzip", seats)
    hold_on_page(buyer, event, **STANDING)
    assert get_page(buyer, f"/e/{event}").data["layout"] == address
    more = {"code": "box", "seats": {"rows": ["C"], "numbers": 1}}
    expect_ok(admin.patch(f"/v1/events/{event}", json={"pools": [more]}))
    later = get_page(buyer, f"/e/{event}").data["layout"]
    assert later != address
    assert len(buyer.get(later).json()["seats"]) == 41
    stale = buyer.get(address)
    assert stale.headers["cache-control"] == "no-cache"
    assert len(stale.json()["seats"]) == 41


@pytest.mark.parametrize("path", GETS)
def test_every_answer_forbids_content_sniffing(server: Server, tls: Server, path: str) -> None:
    """This covers pages that are added later."""
    answer = get_as_new_visitor(tls.url + re.sub(r"{\w+}", "x", path))
    is_found = answer.status_code == 200
    assert not is_found or answer.headers["x-content-type-options"] == "nosniff"
    if answer.headers.get("content-type", "").startswith("text/html"):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"


def test_a_page_reveals_no_token_and_nobody_elses_email(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """No page contains an API token, and no page of another browser contains the buyer's email address."""
    event = publish_event(admin, example_event())
    booking = redirect_target(
        submit_form(buyer, get_page(buyer, f"/e/{event}").form("/hold"), **STANDING, email="ada.l@private.example")
    )
    SECRETS["the address of ada"] = "ada.l@private.example"
    for path in ("/", f"/e/{event}", booking, "/o/acme/bookings"):
        page = get_page(buyer, path)
        assert "eyJ" not in page.response.text
        assert "guest-" not in page.response.text
    with new_visitor(server) as other:
        assert "private.example" not in get_page(other, f"/e/{event}").response.text


def test_the_log_of_these_tests_has_no_errors_and_no_secrets(server: Server, log: CapturedLog) -> None:
    """This test is the last in the file, so that the log covers all the others."""
    assert find_leaks(log.text, SECRETS) == []
    assert not log.has_entry("page_failed")
    assert not log.has_entry("request_failed")
    assert "Traceback" not in log.text
    assert urlsplit(server.url).netloc in log.text
