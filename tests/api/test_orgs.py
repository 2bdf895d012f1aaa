"""An org sets its branding over HTTP or on the command line, and the API refuses anything a page could not show
safely."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import DecodeError
from msgspec import json as documents

from holdfast import sql as statements
from holdfast.api.branding import LOGO_BYTES_MAX
from holdfast.api.requests import ORIGIN, OrgChange
from holdfast.core.refusals import RefusedError
from tests.support.command_line import call_holdfast
from tests.support.harness import Org, Server, query
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.resources import TINY_PNG
from tests.support.sample_files import SAMPLES

UNSET: Final[dict[str, Any]] = {
    "colour": None,
    "logo_url": None,
    "frame_origins": [],
    "max_unpaid_units_per_address": 120,
    "payment_instructions": None,
}
LOGOS: Final = {kind: SAMPLES[kind] for kind in ("image/png", "image/jpeg", "image/webp")}


@pytest.fixture(scope="module")
def other(server: Server) -> Iterator[httpx.Client]:
    """The admin of another org, which must not change."""
    org = Org(server.database_url)
    with server.client(org.headers()) as client:
        yield client
        assert expect_ok(client.get("/v1/org")) == {"slug": org.slug, "name": org.slug, **UNSET}


def change(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = expect_ok(client.patch("/v1/org", json=fields))
    assert answer == expect_ok(client.get("/v1/org"))
    return answer


def test_a_change_affects_only_the_fields_it_names(admin: httpx.Client, org: Org, other: httpx.Client) -> None:
    changed = change(admin, name="Théâtre Übermut", colour="#1F6FEB", frame_origins=["https://shop.example"])
    assert (changed["slug"], changed["name"], changed["colour"]) == (org.slug, "Théâtre Übermut", "#1f6feb")
    assert changed["frame_origins"] == ["https://shop.example"]
    assert change(admin) == changed
    assert change(admin, name="Acme") == {**changed, "name": "Acme"}
    assert change(admin, colour=None) == {**changed, "name": "Acme", "colour": None}
    assert change(admin, frame_origins=[]) == {**changed, "name": "Acme", "colour": None, "frame_origins": []}


def test_payment_instructions_keep_their_lines_until_null_removes_them(
    admin: httpx.Client, other: httpx.Client
) -> None:
    text = "Banco Acme\nIBAN ES91 2100 0418 4502 0005 1332"
    assert change(admin, payment_instructions=text)["payment_instructions"] == text
    assert change(admin, name="Acme")["payment_instructions"] == text
    assert change(admin, payment_instructions=None)["payment_instructions"] is None


@pytest.mark.parametrize("kind", LOGOS)
def test_a_logo_is_stored_by_its_content_not_its_content_type(
    server: Server, org: Org, admin: httpx.Client, other: httpx.Client, kind: str
) -> None:
    file = LOGOS[kind]
    answer = expect_ok(admin.put("/v1/org/logo", content=file, headers={"Content-Type": "text/html"}))
    digest = hashlib.sha256(file).hexdigest()
    assert answer["logo_url"] == f"{server.url}/logo/{org.slug}?v={digest[:12]}"
    assert answer == expect_ok(admin.get("/v1/org"))
    (row,) = query(server.database_url, statements.credentials.logo, org.slug)
    assert tuple(row) == (file, kind, digest)
    (shown,) = query(server.database_url, statements.pages.org, org.slug)
    assert shown["logo_hash"] == digest
    assert expect_ok(admin.delete("/v1/org/logo"))["logo_url"] is None
    assert expect_ok(admin.delete("/v1/org/logo"))["logo_url"] is None
    assert query(server.database_url, statements.credentials.logo, org.slug) == []


def test_a_logo_of_256_kibibytes_is_accepted_and_one_byte_more_is_refused(admin: httpx.Client) -> None:
    padding = bytes(LOGO_BYTES_MAX - len(TINY_PNG))
    largest = expect_ok(admin.put("/v1/org/logo", content=TINY_PNG + padding))["logo_url"]
    expect_error(admin.put("/v1/org/logo", content=TINY_PNG + padding + b"\0"), 413, "payload_too_large")
    in_chunks = iter([TINY_PNG, padding, b"\0"])
    expect_error(admin.put("/v1/org/logo", content=in_chunks), 413, "payload_too_large")
    assert expect_ok(admin.get("/v1/org"))["logo_url"] == largest


INVALID_LOGOS: Final = {
    "nothing": b"",
    "text": b"a logo",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "html": b"<!doctype html><script>alert(1)</script>",
    "gif": b"GIF89a\x01\x00\x01\x00\x00\x00\x00;",
    "half_a_png": TINY_PNG[:-12],
    "heic": SAMPLES["image/heic"],
    "pdf": SAMPLES["application/pdf"],
}


@pytest.mark.parametrize("file", [pytest.param(file, id=name) for name, file in INVALID_LOGOS.items()])
def test_an_invalid_logo_is_refused_and_the_old_one_stays(admin: httpx.Client, file: bytes) -> None:
    before = expect_ok(admin.put("/v1/org/logo", content=TINY_PNG))
    answer = admin.put("/v1/org/logo", content=file, headers={"Content-Type": "image/png"})
    assert expect_error(answer, 422, "invalid_request")["errors"][0]["field"] == "logo"
    assert expect_ok(admin.get("/v1/org")) == before


MALFORMED_CHANGES: Final[dict[str, Any]] = {
    "name_null": {"name": None},
    "name_empty": {"name": ""},
    "name_of_spaces": {"name": " \u3000"},
    "name_too_long": {"name": "n" * 201},
    "name_of_two_lines": {"name": "a\nb"},
    "name_with_a_newline_at_its_end": {"name": "a\n"},
    "name_with_a_line_separator": {"name": "a\u2028b"},
    "name_with_a_control_character": {"name": "a\x9bb"},
    "colour_word": {"colour": "red"},
    "colour_empty": {"colour": ""},
    "colour_short": {"colour": "#fff"},
    "colour_with_alpha": {"colour": "#1f6feb80"},
    "colour_with_a_newline": {"colour": "#1f6feb\n"},
    "colour_and_a_rule": {"colour": "#1f6feb;}body{display:none}"},
    "colour_number": {"colour": 0x1F6FEB},
    "origins_null": {"frame_origins": None},
    "origins_text": {"frame_origins": "https://shop.example"},
    "origins_too_many": {"frame_origins": [f"https://{n}.example" for n in range(21)]},
    "unpaid_zero": {"max_unpaid_units_per_address": 0},
    "unpaid_text": {"max_unpaid_units_per_address": "40"},
    "instructions_empty": {"payment_instructions": ""},
    "instructions_too_long": {"payment_instructions": "x" * 2001},
    "origins_twice": {"frame_origins": ["https://shop.example"] * 2},
    "slug": {"slug": "other"},
    "logo": {"logo_url": "https://shop.example/logo.png"},
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in MALFORMED_CHANGES.items()])
def test_a_malformed_change_is_refused_and_changes_nothing(admin: httpx.Client, body: dict[str, Any]) -> None:
    before = expect_ok(admin.get("/v1/org"))
    expect_error(admin.patch("/v1/org", json={"name": "Changed", **body}), 422, "invalid_request")
    assert expect_ok(admin.get("/v1/org")) == before


ORIGINS: Final = (
    "https://example.com",
    "https://shop.example.com:8443",
    "https://xn--bcher-kva.example",
    "https://a1.b-2.c3",
    "https://intranet",
    "https://localhost:3000",
    "https://" + ".".join(["a" * 63] * 3 + ["b" * 61]) + ":65535",
    "http://localhost:3000",
    "http://localhost",
    "http://127.0.0.1:5173",
)
INVALID_ORIGINS: Final = (
    "",
    "*",
    "null",
    "'self'",
    "https:",
    "https://",
    "https://*",
    "https://*.example.com",
    "https://example.*",
    "https://example.com/",
    "https://example.com/path",
    "https://example.com?",
    "https://example.com#",
    "https://example.com:*",
    "https://example.com:",
    "https://example.com:0",
    "https://example.com:0443",
    "https://example.com:443",
    "https://example.com:65536",
    "https://example.com:99999",
    "https://example.com:80a",
    "https://example.com.",
    "https://.example.com",
    "https://example..com",
    "https://-example.com",
    "https://example-.com",
    "https://exam_ple.com",
    "https://" + "a" * 64 + ".com",
    "https://" + "a." * 130 + "com",
    "https://Example.com",
    "HTTPS://example.com",
    "https://user@example.com",
    "https://example.com@evil.example",
    "https://example.com;script-src *",
    "https://example.com https://evil.example",
    "https://example.com,https://evil.example",
    "https://example.com\n",
    "https://example.com\r\nSet-Cookie: a=b",
    " https://example.com",
    "https://example.com ",
    "https://b\u00fccher.example",
    "https://example\u3002com",
    "https://\u0661.example",
    "https://192.0.2.1",
    "https://0x7f.1",
    "https://[::1]:3000",
    "http://example.com",
    "http://localhost:80",
    "http://localhost.evil.example:3000",
    "http://127.0.0.1.evil.example",
    "http://127.0.0.2:3000",
    "http://localhost:3000/",
    "//example.com",
    "example.com",
    "data:text/html,",
    "javascript://example.com",
    "chrome-extension://abc",
)


def is_accepted(origin: str) -> bool:
    try:
        documents.decode(documents.encode({"frame_origins": [origin]}), type=OrgChange)
    except (DecodeError, RefusedError):
        return False
    return True


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_valid_origin_is_accepted(origin: str) -> None:
    assert is_accepted(origin)


@pytest.mark.parametrize("origin", INVALID_ORIGINS)
def test_an_invalid_or_ambiguous_origin_is_refused(origin: str) -> None:
    assert not is_accepted(origin)


@given(st.from_regex(ORIGIN) | st.from_regex(r"https?://[a-z0-9.:/*; -]{1,20}") | st.text(max_size=40))
def test_an_accepted_origin_has_only_a_scheme_a_host_and_a_port(origin: str) -> None:
    if is_accepted(origin):
        parts = urlsplit(origin)
        assert re.fullmatch(r"[a-z0-9.:/-]+", origin)
        assert (parts.path, parts.query, parts.fragment, parts.username) == ("", "", "", None)
        assert origin in (f"{parts.scheme}://{parts.hostname}", f"{parts.scheme}://{parts.hostname}:{parts.port}")
        assert parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1")


def test_twenty_origins_of_full_length_are_stored_in_order(admin: httpx.Client) -> None:
    longest = [f"https://{'.'.join(['a' * 63] * 3 + [f'b{n:02}' + 'b' * 58])}:65535" for n in range(20)]
    assert change(admin, frame_origins=longest)["frame_origins"] == longest


def test_a_command_can_set_the_branding(database: str, tmp_path: Path) -> None:
    call_holdfast(database, "orgs", "create", "acme", "--name", "Acme Ltd")
    logo = tmp_path / "logo.png"
    logo.write_bytes(TINY_PNG)
    sites = ("--frame-origin", "https://shop.example", "--frame-origin", "http://localhost:3000")
    done = call_holdfast(database, "orgs", "set", "acme", "--colour", "#1F6FEB", "--logo", str(logo), *sites)
    expected = {
        "slug": "acme",
        "name": "Acme Ltd",
        "colour": "#1f6feb",
        "logo_url": f"https://tickets.example/logo/acme?v={hashlib.sha256(TINY_PNG).hexdigest()[:12]}",
        "frame_origins": ["https://shop.example", "http://localhost:3000"],
        "max_unpaid_units_per_address": 120,
        "payment_instructions": None,
    }
    assert done.returncode == 0, done.stderr
    renamed = call_holdfast(
        database, "orgs", "set", "acme", "--name", "Acme", HOLDFAST_PUBLIC_URL="https://tickets.example/"
    )
    assert json.loads(renamed.stdout) == {**expected, "name": "Acme"}
    emptied = call_holdfast(database, "orgs", "set", "acme", "--colour", "", "--logo", "", "--frame-origin", "")
    assert json.loads(emptied.stdout) == {**UNSET, "slug": "acme", "name": "Acme"}
    for option, stored in (("40", 40), ("", None)):
        limited = call_holdfast(database, "orgs", "set", "acme", "--max-unpaid-per-address", option)
        assert json.loads(limited.stdout)["max_unpaid_units_per_address"] == stored
    for option, kept in (("To Acme\nIBAN ES91", "To Acme\nIBAN ES91"), ("", None)):
        told = call_holdfast(database, "orgs", "set", "acme", "--payment-instructions", option)
        assert json.loads(told.stdout)["payment_instructions"] == kept


def test_a_command_with_one_invalid_option_explains_it_and_changes_nothing(database: str, tmp_path: Path) -> None:
    call_holdfast(database, "orgs", "create", "acme")
    text, empty, large = tmp_path / "logo.png", tmp_path / "empty.png", tmp_path / "large.png"
    text.write_text("a logo")
    empty.touch()
    large.write_bytes(TINY_PNG + bytes(LOGO_BYTES_MAX))
    mistakes = (
        ("must be a PNG, JPEG or WebP image", ("--logo", str(text))),
        ("must be a PNG, JPEG or WebP image", ("--logo", str(empty))),
        ("at most 256 KiB", ("--logo", str(large))),
        ("Cannot read the logo", ("--logo", str(tmp_path / "nothing.png"))),
        ("colour", ("--colour", "red")),
        ("frame_origins", ("--frame-origin", "https://shop.example/")),
        ("not a whole number", ("--max-unpaid-per-address", "-1")),
        ("max_unpaid_units_per_address", ("--max-unpaid-per-address", "0")),
        ("There is no org", ()),
    )
    for message, options in mistakes:
        done = call_holdfast(database, "orgs", "set", "acme" if options else "nobody", "--name", "Changed", *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    (row,) = query(database, "SELECT name, colour, logo, frame_origins FROM org")
    assert tuple(row) == ("acme", None, None, [])
