"""Every query on the page for operators runs on a read-only connection, and finds what it is for."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
import typer
from msgspec import Struct

import holdfast
from holdfast.engine import auditor
from holdfast.runtime import db, ids
from holdfast.runtime.cli import app
from tests.support import resources
from tests.support.engine_harness import is_waiting_for_lock, poll_until
from tests.support.harness import (
    Org,
    connection_to,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    query,
    run_with_connection,
    running_server,
)
from tests.support.http_assertions import expect_ok

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "docs" / "operating.md").read_text()
SEAT: Final = "A-5"
VARIABLE: Final = re.compile(r":'(\w+)'")


def find_queries() -> dict[str, str]:
    """The queries by their section, numbered."""
    found: dict[str, str] = {}
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for number, text in enumerate(re.findall(r"^```sql\n(.*?)^```", section, re.DOTALL | re.MULTILINE), 1):
            found[f"{title} {number}"] = text
    return found


QUERIES: Final = find_queries()


class Trouble(Struct, frozen=True):
    """A database in which everything that the page is about has gone wrong."""

    url: str
    event: str


@pytest.fixture(scope="module")
def trouble(postgres: str) -> Iterator[Trouble]:
    with fresh_database(postgres) as url:
        org = Org(url)
        with running_server(url, workers=1) as server, server.client(org.headers()) as admin:
            event = make_trouble(url, admin)
        run_with_connection(lambda connection: auditor.run_once(db.Database(connection)), url)
        query(url, "UPDATE audit SET version = version - 1 WHERE event_id = (SELECT event_id FROM audit LIMIT 1)")
        yield Trouble(url, event)


def make_trouble(url: str, admin: httpx.Client) -> str:
    """Returns an event with a hold on a seat that nobody has expired."""
    resources.create_endpoint(admin)
    event = publish_event(admin, example_event())
    for user, seat, left in (("u-2", "A-1", "2 minutes"), ("u-1", SEAT, "-1 hours")):
        expect_ok(post_hold(admin, event, user=user, items=[{"seat": seat}]), 201)
        query(url, f"UPDATE booking SET expires_at = holdfast_now() + interval '{left}' WHERE user_id = '{user}'")
    resources.create_submitted_booking(admin)
    publish_event(
        admin, example_event(pools=[{"code": "few", "capacity": 3, "tariffs": [{"code": "full", "price": 1}]}])
    )
    resources.create_payment_in_review(admin)
    resources.start_payment(admin)
    refund_a_paid_booking(admin)
    end_without_a_worker(url, admin, "cancelled")
    overdue = publish_event(admin, example_event())
    query(
        url,
        "UPDATE event SET ends_at = holdfast_now() - interval '25 hours' WHERE id = $1",
        ids.parse_event_id(overdue),
    )
    broken = publish_event(admin, example_event())
    query(url, "UPDATE pool SET sold = 1 WHERE event_id = $1 AND number = 1", ids.parse_event_id(broken))
    query(url, "INSERT INTO payment_notice (provider, id, body, due_at) VALUES ('stripe', 'evt_1', '', holdfast_now())")
    query(url, "UPDATE delivery SET status = 'failed', done_at = holdfast_now() WHERE kind = 'booking.confirmed'")
    resources.create_endpoint(admin)
    query(url, "UPDATE webhook_endpoint SET enabled = false WHERE id = (SELECT id FROM webhook_endpoint LIMIT 1)")
    query(
        url,
        "INSERT INTO recovery_request (id, org_id, email, language, created_at, due_at)"
        " SELECT gen_random_uuid(), id, 'ada@example.org', 'en', holdfast_now(), holdfast_now() FROM org LIMIT 1",
    )
    return event


def refund_a_paid_booking(admin: httpx.Client) -> None:
    payment = resources.start_payment(admin)
    expect_ok(resources.post_notice(admin, payment))
    expect_ok(admin.post(f"/v1/bookings/{payment['booking']}/refund"))


def end_without_a_worker(url: str, admin: httpx.Client, status: str) -> None:
    """End an event as if the process had died before it ended the bookings."""
    event = publish_event(admin, example_event())
    expect_ok(post_hold(admin, event, items=[{"seat": SEAT}]), 201)
    query(url, "UPDATE event SET status = $2 WHERE id = $1", ids.parse_event_id(event), status)


def test_the_page_has_queries() -> None:
    assert len(QUERIES) >= 15


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_finds_what_it_is_for(trouble: Trouble, name: str) -> None:
    values = {"event": trouble.event, "seat": SEAT}
    text = VARIABLE.sub(lambda match: f"'{values[match[1]]}'", QUERIES[name])

    async def run() -> list[db.Record]:
        async with locked_event(trouble), connection_to(trouble.url) as connection:
            await connection.execute("SET default_transaction_read_only = on")
            return await connection.fetch(text)

    assert asyncio.run(run()) != []


@asynccontextmanager
async def locked_event(trouble: Trouble) -> AsyncIterator[None]:
    """One session keeps the event locked, and another waits for it."""
    lock = "SELECT FROM event WHERE id = $1 FOR UPDATE"
    event = ids.parse_event_id(trouble.event)
    async with connection_to(trouble.url) as first, connection_to(trouble.url) as second:
        async with first.transaction():
            await first.fetch(lock, event)
            waiting = asyncio.create_task(second.fetch(lock, event))
            await poll_until(lambda: is_waiting_for_lock(first, second.get_server_pid()))
            yield
        await waiting


def test_queries_use_only_variables_that_the_page_sets() -> None:
    used = {name for text in QUERIES.values() for name in VARIABLE.findall(text)}
    assert used == set(re.findall(r"^\\set (\w+) ", TEXT, re.MULTILINE))


def test_the_commands_on_the_page_exist() -> None:
    known = typer.main.get_command(app)
    named = re.findall(r"holdfast ([a-z]+)((?: --[a-z-]+)*)", TEXT)
    assert {name for name, _ in named} >= {"audit", "reap", "serve", "worker"}
    for name, options in named:
        command = known.commands[name]  # type: ignore[attr-defined]
        assert set(options.split()) <= {option for parameter in command.params for option in parameter.opts}


def test_the_log_events_on_the_page_exist() -> None:
    named = set(re.findall(r"(?:look for|logs) `(\w+)`", TEXT))
    source = "".join(path.read_text() for path in Path(holdfast.__file__).parent.rglob("*.py"))
    assert len(named) > 2
    assert {name for name in named if f'"{name}"' not in source} == set()


@pytest.mark.parametrize("page", ["operating.md", "logs.md", "tracing.md"])
def test_the_links_on_the_page_lead_somewhere(page: str) -> None:
    own_text = (ROOT / "docs" / page).read_text()
    for file, anchor in re.findall(r"\]\(([\w.]*)(?:#([\w-]+))?\)", own_text):
        text = (ROOT / "docs" / file).read_text() if file else own_text
        titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
        assert not anchor or anchor in anchors, anchor
