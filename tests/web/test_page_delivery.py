"""Every page is compressed, described and protected the same way, in both languages."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

import holdfast.web
from holdfast.i18n.texts import section
from tests.support.harness import Org, Server, example_event, publish_event
from tests.support.html_client import Page, get_page, hold_on_page, submit_form

TEMPLATES = Path(holdfast.web.__file__).parent / "templates"
STANDING = {"quantity__1__0": "2"}


def _description(page: Page) -> str | None:
    found = [attributes["content"] for tag, attributes in page.tags if attributes.get("name") == "description"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("", False), ("identity", False), ("br", False), ("gzip;q=0.0", False)],
)
def test_a_page_is_compressed_for_browsers_that_accept_it(
    server: Server, admin: httpx.Client, accepted: str, is_compressed: bool
) -> None:
    event = publish_event(admin, example_event(title="Compressed"))
    for path in ("/", f"/e/{event}", "/paid", "/docs", "/e/nothing"):
        with httpx.stream(
            "GET",
            server.url + path,
            headers={"accept-encoding": accepted, "accept": "text/html"},
            timeout=30,
            verify=False,
        ) as it:
            body = b"".join(it.iter_raw())
        assert (it.headers.get("content-encoding") == "gzip") is is_compressed, path
        assert it.headers["vary"] == "accept-encoding", path
        assert int(it.headers["content-length"]) == len(body)
        html = gzip.decompress(body) if is_compressed else body
        assert html.lower().startswith(b"<!doctype html>"), path


def test_the_token_of_a_form_differs_in_every_response_and_works(
    server: Server, admin: httpx.Client, buyer: httpx.Client
) -> None:
    """Otherwise the sizes of compressed pages would reveal it byte by byte."""
    event = publish_event(admin, example_event())
    get_page(buyer, f"/e/{event}")
    forms = [get_page(buyer, f"/e/{event}").form("/hold") for _ in range(5)]
    tokens = [form.fields["form_token"] for form in forms]
    assert len(set(tokens)) == 5
    shared = set.intersection(*({token[n : n + 6] for n in range(len(token) - 5)} for token in tokens))
    assert not shared
    assert [submit_form(buyer, form, **STANDING).status_code for form in forms] == [303] * 5
    altered = forms[0].fields["form_token"][:-1] + ("0" if tokens[0][-1] != "0" else "1")
    assert submit_form(buyer, forms[0], form_token=altered, **STANDING).status_code == 403


def test_pages_have_a_description_in_the_readers_language(
    server: Server, org: Org, admin: httpx.Client, buyer: httpx.Client, spanish_buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event(title="Opera", details={"address": "1 Main St"}))
    description = _description(get_page(buyer, f"/e/{event}")) or ""
    for part in ("Opera", "Friday, March 5, 2027", "1 Main St", org.slug):
        assert part in description
    assert "viernes, 5 de marzo de 2027" in (_description(get_page(spanish_buyer, f"/e/{event}")) or "")
    for path in ("/", f"/o/{org.slug}", f"/o/{org.slug}/bookings"):
        english, spanish = (_description(get_page(client, path)) for client in (buyer, spanish_buyer))
        assert english
        assert spanish
        assert english != spanish
    booking = get_page(buyer, hold_on_page(buyer, event, **STANDING))
    assert "Opera" in (_description(booking) or "")
    assert booking.text.startswith("Opera · Your booking · ")


def test_private_pages_tell_search_engines_not_to_index_them(
    server: Server, org: Org, admin: httpx.Client, buyer: httpx.Client
) -> None:
    event = publish_event(admin, example_event())
    private = [hold_on_page(buyer, event, **STANDING), f"/o/{org.slug}/bookings", "/paid"]
    for path, is_private in [("/", False), (f"/e/{event}", False), *((path, True) for path in private)]:
        robots = [attributes for _, attributes in get_page(buyer, path).tags if attributes.get("name") == "robots"]
        assert bool(robots) is is_private, path


def test_the_page_after_a_payment_is_in_the_readers_language(buyer: httpx.Client, spanish_buyer: httpx.Client) -> None:
    assert section("en", "sandbox")["thanks_text"] in get_page(buyer, "/paid").text
    assert section("es", "sandbox")["thanks_text"] in get_page(spanish_buyer, "/paid").text


@pytest.mark.parametrize("name", ["sandbox", "description"])
def test_no_text_of_a_section_is_unused(name: str) -> None:
    sources = [path.read_text() for path in TEMPLATES.rglob("*.html")]
    sources += [path.read_text() for path in TEMPLATES.parent.glob("*.py")]
    source = "\n".join(sources)
    for key in section("en", name):
        stem = re.sub(r"^(?:result|refused)\.|[._](?:text|title|button)$", "", key)
        assert re.search(rf"[\"'.]{stem}[\"']", source), key
