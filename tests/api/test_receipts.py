"""Receipts are stored unchanged, only reviewers can read them, and no browser runs anything in them."""

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from holdfast.runtime import db, ids
from tests.support.concurrent_requests import request, send_all_at_once
from tests.support.harness import (
    Org,
    Server,
    post_hold,
    publish_event,
    query,
    run_with_connection,
    running_server,
    shared_data_folder,
)
from tests.support.html_client import hold_on_page, new_visitor
from tests.support.http_assertions import expect_error, expect_ok, expect_problem
from tests.support.raw_http import request_head, send_bytes
from tests.support.resources import TINY_PNG, create_held_booking, reviewed_event, upload_receipt
from tests.support.sample_files import MIB, SAMPLES, image_file, jpeg_of_size, zip_file

RECEIPTS_MAX = 20


@pytest.fixture(scope="module")
def other_org(server: Server) -> Org:
    return Org(server.database_url)


@pytest.fixture
def stranger(server: Server, other_org: Org) -> Iterator[httpx.Client]:
    with server.client(other_org.headers()) as client:
        yield client


def _upload(
    client: httpx.Client, booking: str, file: bytes, name: str = "r", kind: str = "image/png"
) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking}/receipt", files={"file": (name, file, kind)})


def _receipts(client: httpx.Client, booking: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = expect_ok(client.get(f"/v1/bookings/{booking}/receipts"))["items"]
    return items


def _stored_files(org: Org) -> set[str]:
    """The names of an org's files in the storage."""
    folder = shared_data_folder() / "receipts" / org.id.hex()
    return {file.name for file in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_file_of_each_type_comes_back_unchanged(admin: httpx.Client, org: Org, kind: str) -> None:
    booking, file = create_held_booking(admin), SAMPLES[kind]
    assert expect_ok(_upload(admin, booking, file, "page.html", "text/html"))["status"] == "payment_submitted"
    (receipt,) = _receipts(admin, booking)
    assert (receipt["content_type"], receipt["size"]) == (kind, len(file))
    assert (receipt["file_ref"], receipt["message_ref"], receipt["also_on"]) == (None, None, receipt["also_on"])
    answer = admin.get(receipt["file_url"])
    assert (answer.status_code, answer.content) == (200, file)
    assert hashlib.sha256(file).hexdigest() in _stored_files(org)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_file_is_served_with_its_own_type_and_runs_no_script(admin: httpx.Client, kind: str) -> None:
    booking = create_held_booking(admin)
    expect_ok(_upload(admin, booking, SAMPLES[kind], "page.html", "text/html"))
    headers = admin.get(_receipts(admin, booking)[0]["file_url"]).headers
    assert headers["content-type"] == kind
    assert headers["x-content-type-options"] == "nosniff"
    policy = [part.strip() for part in headers["content-security-policy"].split(";")]
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert "no-store" in headers["cache-control"]


def test_a_reference_is_stored_unchanged_and_has_no_file(admin: httpx.Client) -> None:
    booking = create_held_booking(admin)
    ref = {"file_ref": "AgACAgQAAx/photo:1", "message_ref": "chat 7, message 12"}
    expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json=ref))
    (receipt,) = _receipts(admin, booking)
    assert {name: receipt[name] for name in ref} == ref
    assert (receipt["content_type"], receipt["size"], receipt["file_url"]) == (None, None, None)
    expect_error(admin.get(f"/v1/receipts/{receipt['id']}"), 404, "not_found")


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b'{"file_ref": ""}', b'{"file_ref": 1}', b'{"file_ref": "x", "name": "y"}', b"file", b"\xff"],
)
def test_a_body_that_is_neither_a_file_nor_a_reference_is_refused(admin: httpx.Client, body: bytes) -> None:
    booking = create_held_booking(admin)
    headers = {"content-type": "application/json"}
    expect_error(admin.post(f"/v1/bookings/{booking}/receipt", content=body, headers=headers), 422, "invalid_request")
    assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["status"] == "held"


INVALID_FILES = {
    "html": b"<!doctype html><script>alert(1)</script>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "zip": zip_file(),
    "gif": image_file("GIF"),
    "empty": b"",
    "text": b"I have paid.",
    "half a picture": SAMPLES["image/png"][: len(SAMPLES["image/png"]) // 2],
}


@pytest.mark.parametrize("kind", INVALID_FILES)
def test_an_invalid_file_is_refused_and_not_stored_whatever_its_name(admin: httpx.Client, org: Org, kind: str) -> None:
    booking, before = create_held_booking(admin), _stored_files(org)
    document = expect_error(
        _upload(admin, booking, INVALID_FILES[kind], "receipt.png", "image/png"), 422, "invalid_request"
    )
    assert [error["field"] for error in document["errors"]] == ["file"]
    assert _stored_files(org) == before
    assert _receipts(admin, booking) == []
    found = expect_ok(admin.get(f"/v1/bookings/{booking}"))
    assert (found["status"], found["payments"]) == ("held", [])


def test_a_file_of_ten_mebibytes_is_accepted(admin: httpx.Client) -> None:
    booking, file = create_held_booking(admin), jpeg_of_size(10 * MIB)
    expect_ok(_upload(admin, booking, file))
    (receipt,) = _receipts(admin, booking)
    assert receipt["size"] == 10 * MIB
    assert admin.get(receipt["file_url"]).content == file


@pytest.mark.parametrize("size", [10 * MIB + 1, 10 * MIB + 64 * 1024, 12 * MIB])
def test_a_larger_file_is_refused_and_not_stored(server: Server, admin: httpx.Client, org: Org, size: int) -> None:
    """The upload has a connection of its own, because the server may close it."""
    booking, before = create_held_booking(admin), _stored_files(org)
    with server.client(org.headers()) as client:
        expect_error(_upload(client, booking, jpeg_of_size(size)), 413, "payload_too_large")
    assert _stored_files(org) == before
    assert _receipts(admin, booking) == []


def test_a_large_body_without_a_content_length_is_refused(server: Server, org: Org, admin: httpx.Client) -> None:
    booking = create_held_booking(admin)

    def parts() -> Iterator[bytes]:
        yield b'--limit\r\ncontent-disposition: form-data; name="file"; filename="r.png"\r\n\r\n'
        for _ in range(12):
            yield b"\0" * MIB

    headers = {"content-type": "multipart/form-data; boundary=limit"}
    with server.client(org.headers()) as client:
        answer = client.post(f"/v1/bookings/{booking}/receipt", content=parts(), headers=headers)
    expect_error(answer, 413, "payload_too_large")


@pytest.mark.parametrize(
    "files",
    [
        [("file", ("a.png", TINY_PNG)), ("file", ("b.png", TINY_PNG))],
        [("file", ("a.png", TINY_PNG)), ("note", (None, b"paid"))],
        [("note", (None, b"paid")), ("file", ("a.png", TINY_PNG))],
        [("receipt", ("a.png", TINY_PNG))],
    ],
    ids=["two files", "a field behind", "a field before", "another name"],
)
def test_an_upload_must_be_exactly_one_file(admin: httpx.Client, files: Any) -> None:
    booking = create_held_booking(admin)
    expect_error(admin.post(f"/v1/bookings/{booking}/receipt", files=files), 422, "invalid_request")
    assert _receipts(admin, booking) == []


@pytest.mark.parametrize(
    "header",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=other",
        "multipart/mixed; boundary=limit",
        "image/png",
        "",
    ],
)
def test_an_unreadable_upload_is_refused(admin: httpx.Client, header: str) -> None:
    body = b'--limit\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + TINY_PNG + b"\r\n--limit--\r\n"
    answer = admin.post(
        f"/v1/bookings/{create_held_booking(admin)}/receipt", content=body, headers={"content-type": header}
    )
    assert expect_problem(answer)["code"] == "invalid_request"


def test_the_same_receipt_on_two_bookings_is_flagged_on_both(admin: httpx.Client) -> None:
    first, second, third = create_held_booking(admin), create_held_booking(admin), create_held_booking(admin)
    file = image_file("PNG")
    expect_ok(_upload(admin, first, file))
    assert _receipts(admin, first)[0]["also_on"] == []
    expect_ok(_upload(admin, second, file))
    expect_ok(_upload(admin, third, image_file("PNG")))
    assert _receipts(admin, first)[0]["also_on"] == [second]
    assert _receipts(admin, second)[0]["also_on"] == [first]
    assert _receipts(admin, third)[0]["also_on"] == []


def test_the_same_reference_on_two_bookings_is_flagged_on_both(admin: httpx.Client) -> None:
    first, second = create_held_booking(admin), create_held_booking(admin)
    for booking in (first, second):
        expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "the same file"}))
    assert _receipts(admin, first)[0]["also_on"] == [second]
    assert _receipts(admin, second)[0]["also_on"] == [first]


def test_the_same_receipt_in_another_org_is_not_flagged(admin: httpx.Client, stranger: httpx.Client) -> None:
    ours, theirs, file = create_held_booking(admin), create_held_booking(stranger), image_file("PNG")
    for client, booking in ((admin, ours), (stranger, theirs)):
        expect_ok(_upload(client, booking, file))
    assert _receipts(admin, ours)[0]["also_on"] == []
    assert _receipts(stranger, theirs)[0]["also_on"] == []
    assert stranger.get(_receipts(stranger, theirs)[0]["file_url"]).content == file


def test_only_reviewers_of_the_org_can_read_a_receipt(
    server: Server, org: Org, other_org: Org, admin: httpx.Client
) -> None:
    booking = create_held_booking(admin, "u-1")
    expect_ok(upload_receipt(admin, booking))
    url = _receipts(admin, booking)[0]["file_url"]
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": "u-1"}), 201)["token"]
    callers = {
        "admin": org.headers("admin"),
        "review": org.headers("review"),
        "sales": org.headers("sales"),
        "door": org.headers("door"),
        "buyer": {"Authorization": f"Bearer {token}"},
        "nobody": {},
        "other admin": other_org.headers("admin"),
        "other review": other_org.headers("review"),
    }
    codes = {}
    for caller, headers in callers.items():
        with server.client(headers) as client:
            codes[caller] = {client.get(path).status_code for path in (url, f"/v1/bookings/{booking}/receipts")}
    assert codes == {
        "admin": {200},
        "review": {200},
        "sales": {403},
        "door": {403},
        "buyer": {403},
        "nobody": {401},
        "other admin": {404},
        "other review": {404},
    }


def test_a_customer_can_only_submit_receipts_for_their_own_booking(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    own, foreign, before = create_held_booking(admin, "u-1"), create_held_booking(admin, "u-2"), _stored_files(org)
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": "u-1"}), 201)["token"]
    file = image_file("PNG")
    with server.client({"Authorization": f"Bearer {token}"}) as customer:
        expect_error(_upload(customer, foreign, file), 404, "not_found")
        assert _stored_files(org) == before
        assert expect_ok(_upload(customer, own, file))["status"] == "payment_submitted"


def test_a_receipt_submitted_twice_for_one_booking_is_stored_once(admin: httpx.Client) -> None:
    booking, file = create_held_booking(admin), image_file("PNG")
    first = expect_ok(_upload(admin, booking, file, "a.png"))
    repeated = expect_ok(_upload(admin, booking, file, "b.jpeg", "image/jpeg"))
    assert (repeated["version"], repeated["expires_at"]) == (first["version"], first["expires_at"])
    assert len(repeated["payments"]) == 1
    (receipt,) = _receipts(admin, booking)
    assert receipt["also_on"] == []


def test_many_simultaneous_copies_of_a_receipt_are_stored_once(admin: httpx.Client) -> None:
    booking, file = create_held_booking(admin), image_file("PNG")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: _upload(admin, booking, file), range(16)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(_receipts(admin, booking)) == 1
    assert len(expect_ok(admin.get(f"/v1/bookings/{booking}"))["payments"]) == 1


def test_a_booking_accepts_twenty_receipts_and_no_more(admin: httpx.Client) -> None:
    booking = create_held_booking(admin)
    for number in range(RECEIPTS_MAX):
        expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": f"f-{number}"}))
    expect_error(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "one more"}), 409, "limit_reached")
    expect_error(upload_receipt(admin, booking), 409, "limit_reached")
    assert [receipt["file_ref"] for receipt in _receipts(admin, booking)] == [f"f-{n}" for n in range(RECEIPTS_MAX)]


def test_a_booking_accepts_exactly_twenty_of_many_simultaneous_receipts(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    booking = create_held_booking(admin)
    path = f"/v1/bookings/{booking}/receipt"
    send_all_at_once(server.port, [request("POST", path, org.keys["admin"], {"file_ref": f"f-{n}"}) for n in range(60)])
    assert len(_receipts(admin, booking)) == RECEIPTS_MAX


def test_parallel_uploads_store_no_more_files_than_a_booking_may_have_receipts(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    """While the event is locked, no upload gets a row. So the rows do not limit the files."""
    booking, before, too_many = create_held_booking(admin), _stored_files(org), 10
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None

    async def upload_while_locked(connection: db.Connection) -> None:
        with ThreadPoolExecutor(RECEIPTS_MAX + too_many) as threads:
            async with connection.transaction():
                await connection.execute("SELECT FROM event WHERE id = $1 FOR UPDATE", parsed[0])
                uploads = [
                    threads.submit(_upload, admin, booking, image_file("PNG")) for _ in range(RECEIPTS_MAX + too_many)
                ]
                while sum(upload.done() for upload in uploads) < too_many:
                    await asyncio.sleep(0.05)

    run_with_connection(upload_while_locked, server.database_url)
    assert len(_stored_files(org) - before) == RECEIPTS_MAX


def test_files_whose_receipts_were_never_recorded_count_too(server: Server, org: Org, admin: httpx.Client) -> None:
    """The process was killed after it had stored the file."""
    booking, before = create_held_booking(admin), _stored_files(org)
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    files = [image_file("PNG") for _ in range(RECEIPTS_MAX)]
    for file in files:
        insert = "INSERT INTO receipt_file (event_id, booking_id, hash) VALUES ($1, $2, $3)"
        query(server.database_url, insert, *parsed, hashlib.sha256(file).digest())
    expect_error(_upload(admin, booking, image_file("PNG")), 409, "limit_reached")
    assert _stored_files(org) == before
    assert expect_ok(_upload(admin, booking, files[7]))["status"] == "payment_submitted"


def _send_start_of_upload(server: Server, path: str, *headers: bytes) -> httpx.Response:
    """The answer to an upload of ten megabytes that stops after a few bytes."""
    kind = b"Content-Type: multipart/form-data; boundary=b"
    head = request_head("POST", path.encode(), [kind, b"Content-Length: 10000000", *headers])
    answer = send_bytes(server.port, head, b"--b\r\n")
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("policy", "verb", "user", "status", "code"),
    [
        ("manual", "extend", "u-2", 404, "not_found"),
        ("none", "extend", "u-1", 409, "review_not_offered"),
        ("manual", "confirm", "u-1", 409, "already_confirmed"),
        ("manual", "cancel", "u-1", 409, "already_cancelled"),
    ],
)
def test_a_file_is_not_read_before_it_is_welcome(
    server: Server, admin: httpx.Client, policy: str, verb: str, user: str, status: int, code: str
) -> None:
    event = publish_event(admin, reviewed_event(policy={"review": policy}))
    booking = expect_ok(post_hold(admin, event, user="u-1", items=[{"seat": "A-1"}]), 201)["id"]
    expect_ok(admin.post(f"/v1/bookings/{booking}/{verb}"))
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    path = f"/v1/bookings/{booking}/receipt"
    answer = _send_start_of_upload(server, path, f"Authorization: Bearer {token}".encode())
    expect_error(answer, status, code)
    assert answer.headers["connection"] == "close"


def test_a_receipt_for_a_cancelled_event_is_not_read(server: Server, org: Org, admin: httpx.Client) -> None:
    booking = create_held_booking(admin)
    event = expect_ok(admin.get(f"/v1/bookings/{booking}"))["event"]
    expect_ok(admin.post(f"/v1/events/{event}/cancel"))
    key = f"Authorization: Bearer {org.keys['sales']}".encode()
    expect_error(_send_start_of_upload(server, f"/v1/bookings/{booking}/receipt", key), 409, "already_cancelled")


def test_a_page_does_not_read_the_file_of_another_browser(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, reviewed_event())
    with new_visitor(server) as buyer, new_visitor(server) as stranger:
        booking = hold_on_page(buyer, event, quantity__1__0="1")
        stranger.get(f"/e/{event}")
        cookies = {name: client.cookies["holdfast"] for name, client in {"own": buyer, "other": stranger}.items()}
    path, accept = f"{booking}/receipt", b"Accept: text/html"
    answer = _send_start_of_upload(server, path, accept, f"Cookie: holdfast={cookies['other']}".encode())
    assert (answer.status_code, answer.headers["connection"]) == (404, "close")
    expect_ok(admin.post(f"/v1/bookings/{booking.removeprefix('/b/')}/cancel"))
    answer = _send_start_of_upload(server, path, accept, f"Cookie: holdfast={cookies['own']}".encode())
    assert (answer.status_code, answer.headers["connection"]) == (409, "close")


def test_repeating_the_last_receipt_returns_the_same_answer(admin: httpx.Client) -> None:
    """The first answer may have been lost."""
    booking = create_held_booking(admin)
    path = f"/v1/bookings/{booking}/receipt"
    for number in range(RECEIPTS_MAX):
        last = expect_ok(admin.post(path, json={"file_ref": f"f-{number}"}))
    repeated = expect_ok(admin.post(path, json={"file_ref": f"f-{RECEIPTS_MAX - 1}"}))
    assert repeated["version"] == last["version"]


@pytest.mark.parametrize(
    ("review", "verb", "code"),
    [
        ("none", "extend", "review_not_offered"),
        ("manual", "confirm", "already_confirmed"),
        ("manual", "cancel", "already_cancelled"),
    ],
)
def test_a_refused_file_is_not_stored(admin: httpx.Client, org: Org, review: str, verb: str, code: str) -> None:
    """Otherwise a single booking could fill the storage, because refused receipts do not count."""
    event = publish_event(admin, reviewed_event(policy={"review": review}))
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    expect_ok(admin.post(f"/v1/bookings/{booking}/{verb}"))
    before = _stored_files(org)
    expect_error(_upload(admin, booking, image_file("PNG")), 409, code)
    assert _stored_files(org) == before


def test_receipts_survive_a_restart(database: str) -> None:
    org, file = Org(database), SAMPLES["application/pdf"]
    with running_server(database, workers=1) as server, server.client(org.headers()) as admin:
        booking = create_held_booking(admin)
        expect_ok(_upload(admin, booking, file))
        before = _receipts(admin, booking)
    with running_server(database, workers=1) as server, server.client(org.headers("review")) as reviewer:
        after = _receipts(reviewer, booking)
        assert after == before
        assert reviewer.get(after[0]["file_url"]).content == file


def test_a_file_missing_from_storage_is_reported_as_missing(server: Server, org: Org, admin: httpx.Client) -> None:
    booking, file = create_held_booking(admin), image_file("PNG")
    expect_ok(_upload(admin, booking, file))
    (shared_data_folder() / "receipts" / org.id.hex() / hashlib.sha256(file).hexdigest()).unlink()
    (receipt,) = _receipts(admin, booking)
    expect_error(admin.get(receipt["file_url"]), 404, "not_found")
    rows = query(server.database_url, "SELECT count(*) FROM receipt WHERE hash = $1", hashlib.sha256(file).digest())
    assert rows[0]["count"] == 1
