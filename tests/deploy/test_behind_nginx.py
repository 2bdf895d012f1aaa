"""Two servers behind nginx, with the configuration that Holdfast ships."""

import base64
import hashlib
import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from msgspec import json as msgspec_json
from websockets.sync.client import connect

from holdfast.api.problems import problem
from holdfast.api.receipt_handlers import UPLOAD_BYTES_MAX
from holdfast.core.refusals import Refusal, Refused
from holdfast.runtime.settings import Settings
from tests.support.command_line import run_audit
from tests.support.harness import (
    IS_LONG,
    Org,
    Server,
    example_event,
    free_port,
    fresh_database,
    post_hold,
    publish_event,
    running_server_on,
)
from tests.support.nginx_process import CONFIGURATION, MAIN, Nginx, has_ipv6, running_nginx
from tests.support.raw_http import read_response, request_head
from tests.support.sample_files import jpeg_of_size
from tests.support.shoppers import Shoppers

ROUNDS = 10 if IS_LONG else 1
POOLS = [
    {"code": "stalls", "tariffs": [{"code": "full", "price": 3000}], "seats": {"rows": ["A"], "numbers": 20}},
    {"code": "places", "capacity": 1_000_000, "tariffs": [{"code": "full", "price": 100}]},
]
MIB = 1024 * 1024
# A request counts as one, and a browser behind this address may send twenty before it has to wait.
RATE_PER_ADDRESS = "10"


class Site:
    """Two servers and the nginx in front of them. Each server has its own stack, so that it can restart alone."""

    def __init__(self, database: str, stack: ExitStack) -> None:
        self.database = database
        self._ports = [free_port(), free_port()]
        self._stacks = [stack.enter_context(ExitStack()) for _ in self._ports]
        self.servers = [self._start(number) for number in range(len(self._ports))]
        self.nginx: Nginx = stack.enter_context(running_nginx(self._ports))

    def stop(self, number: int) -> None:
        self._stacks[number].close()

    def restart(self, number: int) -> None:
        self.servers[number] = self._start(number)

    def _start(self, number: int) -> Server:
        settings = {"HOLDFAST_PROXIES": "1", "HOLDFAST_RATE_PER_ADDRESS": RATE_PER_ADDRESS}
        return self._stacks[number].enter_context(
            running_server_on(self._ports[number], self.database, 1, False, settings)
        )


@pytest.fixture(scope="module")
def site(postgres: str) -> Iterator[Site]:
    with fresh_database(postgres) as database, ExitStack() as stack:
        yield Site(database, stack)


@pytest.fixture(scope="module")
def org(site: Site) -> Org:
    return Org(site.database)


@pytest.fixture(scope="module")
def admin(site: Site, org: Org) -> Iterator[httpx.Client]:
    with site.nginx.client(org.headers()) as client:
        yield client


@pytest.fixture(scope="module")
def event(admin: httpx.Client) -> str:
    return publish_event(admin, example_event(pools=POOLS, policy={"review": "manual"}))


def test_the_live_feed_passes(site: Site, admin: httpx.Client, event: str) -> None:
    url = f"wss://127.0.0.1:{site.nginx.port}/v1/events/{event}/live"
    with connect(url, ssl=site.nginx.tls) as feed:
        assert json.loads(feed.recv(30))["type"] == "snapshot"
        assert post_hold(admin, event, items=[{"seat": "A-1"}]).status_code == 201
        change = json.loads(feed.recv(30))
        assert (change["type"], change["seats"]) == ("change", {"A-1": "held"})


def test_a_refused_live_feed_is_explained(site: Site) -> None:
    with site.nginx.client() as client:
        answer = client.get(
            f"/v1/events/ev_{'0' * 32}/live",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
        )
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_client_cannot_choose_its_address(site: Site) -> None:
    """The limit per address stops a client that sends a new X-Forwarded-For with each request."""

    def send(address: str, count: int) -> list[int]:
        transport = httpx.HTTPTransport(verify=site.nginx.tls, local_address=address)
        with httpx.Client(base_url=site.nginx.url, transport=transport, timeout=60) as client:
            headers = [{"X-Forwarded-For": f"203.0.113.{number}"} for number in range(count)]
            return [client.get("/openapi.json", headers=each).status_code for each in headers]

    # Twice the burst of both servers together.
    limit = 4 * int(RATE_PER_ADDRESS)
    assert 429 in send("127.0.0.9", 4 * limit)
    assert send("127.0.0.10", 1) == [200], "another client has a limit of its own"


def test_a_body_above_1_mib_gets_the_problem_of_holdfast(admin: httpx.Client, event: str) -> None:
    own = problem(Refused(Refusal.PAYLOAD_TOO_LARGE)).body
    assert isinstance(own, bytes)
    for size in (MIB + 1, 30 * MIB):
        answer = admin.post(f"/v1/events/{event}/holds", content=b"x" * size, headers={"Idempotency-Key": "large"})
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json() == msgspec_json.decode(own)


def test_a_body_of_1_mib_reaches_holdfast(admin: httpx.Client, event: str) -> None:
    answer = admin.post(f"/v1/events/{event}/holds", content=b" " * MIB, headers={"Idempotency-Key": "full"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_a_receipt_of_10_mib_passes_and_a_larger_one_is_explained(admin: httpx.Client, event: str) -> None:
    booking = post_hold(admin, event, items=[{"seat": "A-3"}]).json()["id"]
    largest = jpeg_of_size(10 * MIB)

    def upload(file: bytes) -> httpx.Response:
        return admin.post(f"/v1/bookings/{booking}/receipt", files={"file": ("receipt.jpg", file, "image/jpeg")})

    for file in (largest + b"x", b"x" * (11 * MIB)):
        refused = upload(file)
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    accepted = upload(largest)
    assert accepted.status_code in (200, 201), accepted.text


def test_the_limit_of_nginx_is_the_limit_of_holdfast() -> None:
    assert f"client_max_body_size {UPLOAD_BYTES_MAX // 1024}k;" in CONFIGURATION.read_text()


def test_a_server_behind_a_proxy_keeps_its_metrics_from_a_program_on_its_machine(site: Site) -> None:
    """It might be a proxy that adds no header."""
    assert httpx.get(f"{site.servers[0].url}/metrics").status_code == 403


@pytest.mark.parametrize("path", ["/metrics", "//metrics", "/%6detrics", "/x/../metrics", "/metrics?x=1"])
def test_metrics_are_not_public(site: Site, path: str) -> None:
    """Send the path as it is: a client would tidy it up."""
    with socket.create_connection(("127.0.0.1", site.nginx.port), 30) as plain:
        with site.nginx.tls.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(request_head("GET", path.encode(), [b"Connection: close"]))
            answer = read_response(connection)
    assert answer is not None
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    # Holdfast sends this header with every response.
    assert "cache-control" not in answer.headers, "nginx must answer, not Holdfast"


def test_http_leads_to_https(site: Site) -> None:
    answer = httpx.get(f"http://127.0.0.1:{site.nginx.plain_port}/e/x?y=1")
    assert (answer.status_code, answer.headers["location"]) == (308, "https://127.0.0.1/e/x?y=1")


def test_a_certificate_authority_finds_its_challenge(site: Site) -> None:
    """Over HTTP and without a redirect, so that a certificate can be renewed even if it has expired."""
    challenge = site.nginx.acme / ".well-known" / "acme-challenge" / "token"
    challenge.parent.mkdir(parents=True)
    challenge.write_text("the answer")
    answer = httpx.get(f"http://127.0.0.1:{site.nginx.plain_port}/.well-known/acme-challenge/token")
    assert (answer.status_code, answer.text) == (200, "the answer")


def test_without_a_server_programs_get_a_problem_and_browsers_a_page_and_no_url_is_logged() -> None:
    own = problem(Refused(Refusal.BUSY))
    assert isinstance(own.body, bytes)
    with running_nginx([free_port(), free_port()]) as nginx, nginx.client() as client:
        answer = client.get("/v1/events?secret=x7Kq")
        assert (answer.status_code, answer.headers["content-type"]) == (own.status, "application/problem+json")
        assert answer.json() == msgspec_json.decode(own.body)
        page = client.get("/b/x7Kq", headers={"Accept": "text/html,application/xhtml+xml"})
        assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
        for response in (answer, page):
            assert "strict-transport-security" in response.headers
            assert int(response.headers["retry-after"]) > 0
        assert "x7Kq" not in nginx.errors.read_text()
        _check_page(page)


@pytest.mark.parametrize(("method", "is_offered"), [("GET", True), ("POST", False)])
def test_without_a_server_the_page_offers_to_load_only_what_is_a_page(method: str, is_offered: bool) -> None:
    """The link after a form would be a GET of a URL that takes only a POST."""
    with running_nginx([free_port(), free_port()]) as nginx, nginx.client({"Accept": "text/html"}) as client:
        page = client.request(method, "/b/x7Kq/pay", data={"provider": "stripe"} if method == "POST" else None)
        assert client.head("/b/x7Kq/pay").status_code == 503
    assert page.status_code == 503
    assert ('<a href="">Try again</a>' in page.text) is is_offered
    assert ("Please go back and try again" in page.text) is not is_offered
    assert page.text.endswith("</main>\n</html>\n")
    _check_page(page)


def _check_page(page: httpx.Response) -> None:
    """It needs no server: it has its own style, which its policy allows, and loads nothing else."""
    (style,) = re.findall(r"<style>(.*)</style>", page.text, re.DOTALL)
    assert "prefers-color-scheme: dark" in style
    assert '<meta name="viewport"' in page.text
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; "), "put this hash into holdfast.conf"
    assert not re.search(r"url\(|@import|src=|<link|<script| style=", page.text)


def test_nginx_holds_more_live_feeds_than_one_client_may_open() -> None:
    """Each takes two connections and two files. Another client can still buy."""
    per_client = int(CONFIGURATION.read_text().partition("limit_conn holdfast_clients ")[2].partition(";")[0])
    main = MAIN.read_text()
    assert int(main.partition("worker_connections ")[2].partition(";")[0]) > 4 * per_client
    assert int(main.partition("worker_rlimit_nofile ")[2].partition(";")[0]) > 4 * per_client


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
def test_nginx_listens_on_ipv6(site: Site) -> None:
    answer = httpx.get(f"http://[::1]:{site.nginx.plain_port}/e/x")
    assert (answer.status_code, answer.headers["location"]) == (308, "https://[::1]/e/x")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_nginx_speaks_every_current_version_of_tls(site: Site, version: ssl.TLSVersion) -> None:
    client = ssl.create_default_context(cadata=site.nginx.certificate)
    client.minimum_version = client.maximum_version = version
    answer = httpx.get(f"{site.nginx.url}/healthz", verify=client)
    assert (answer.status_code, answer.headers["strict-transport-security"]) == (200, "max-age=31536000")


def test_nginx_closes_idle_connections_before_holdfast_does() -> None:
    upstream = CONFIGURATION.read_text().partition("keepalive_timeout ")[2].partition("s;")[0]
    assert int(upstream) < Settings().idle_seconds


def test_a_rolling_restart_fails_no_request_and_misses_no_change(
    site: Site, org: Org, admin: httpx.Client, event: str
) -> None:
    shoppers = Shoppers(site.nginx, org.keys["sales"], event)
    with shoppers.shopping():
        for _ in range(ROUNDS):
            for number in range(len(site.servers)):
                shoppers.wait_for_more(60)
                site.stop(number)
                shoppers.wait_for_more(60)
                site.restart(number)
        shoppers.wait_for_more(60)
    assert not shoppers.failures, site.nginx.errors.read_text()
    assert shoppers.gaps() == []
    assert shoppers.reconnects >= ROUNDS, "the watcher must have lost its server"
    for booking in shoppers.bookings:
        assert admin.get(f"/v1/bookings/{booking}").json()["status"] == "held"
    assert run_audit(database_url=site.database)["ok"]
