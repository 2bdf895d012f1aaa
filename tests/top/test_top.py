"""`holdfast top` shows what is being sold, from a real server and its database."""

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import httpx
import pytest

from holdfast.runtime import db
from holdfast.top.database_sample import DatabaseSample, DatabaseSampler
from tests.support.command_line import call_holdfast
from tests.support.harness import Org, Server, connection_to, example_event, post_hold, publish_event, query
from tests.support.http_assertions import expect_ok

SCREEN = (24, 80)


@pytest.fixture
def event(admin: httpx.Client) -> str:
    return publish_event(admin, example_event(title="Opening night"))


def buy(client: httpx.Client, event: str, holds: int, confirmations: int) -> None:
    for number in range(holds):
        items = [{"pool": "standing", "tariff": "full", "quantity": 2}]
        booking = expect_ok(post_hold(client, event, user=f"u-{number}", items=items), 201)
        if number < confirmations:
            expect_ok(client.post(f"/v1/bookings/{booking['id']}/confirm"))


def test_rates_count_what_was_really_sold(server: Server, admin: httpx.Client, event: str) -> None:
    quiet = publish_event(admin, example_event(title="Quiet night"))

    async def sample() -> tuple[DatabaseSample, DatabaseSample]:
        async with connection_to(server.database_url, db.connect_watcher) as connection:
            sampler = DatabaseSampler(db.Database(connection))
            first = await sampler.sample()
            await asyncio.to_thread(buy, admin, event, 12, 5)
            return first, await sampler.sample()

    first, second = asyncio.run(sample())
    assert first.events == []
    (found,) = [each for each in second.events if each.stock.title == "Opening night"]
    assert (found.kinds["held"], found.kinds["confirmed"], found.changes) == (12, 5, 17)
    assert (found.stock.held, found.stock.sold, found.stock.capacity) == (2 * 7, 2 * 5, 540)
    assert "Quiet night" not in {each.stock.title for each in second.events}, quiet
    assert second.watched >= 2


def test_holds_that_expire_soon_or_are_overdue_are_counted(server: Server, admin: httpx.Client, event: str) -> None:
    async def sample() -> DatabaseSample:
        async with connection_to(server.database_url, db.connect_watcher) as connection:
            sampler = DatabaseSampler(db.Database(connection))
            await sampler.sample()
            await asyncio.to_thread(buy, admin, event, 6, 0)
            for left, users in (("30 seconds", ["u-0", "u-1"]), ("-1 seconds", ["u-2"])):
                await asyncio.to_thread(
                    query,
                    server.database_url,
                    f"UPDATE booking SET expires_at = holdfast_now() + interval '{left}' "
                    "WHERE user_id = ANY ($1) AND event_id = $2",
                    users,
                    bytes.fromhex(event[3:]),
                )
            return await sampler.sample()

    (found,) = [each for each in asyncio.run(sample()).events if each.stock.title == "Opening night"]
    assert (found.stock.expiring_soon, found.stock.overdue) == (2, 1)


@contextmanager
def buying(server: Server, org: Org, event: str) -> Iterator[None]:
    """A buyer who holds one unit after another."""
    stop = threading.Event()

    def run() -> None:
        with server.client(org.headers()) as client:
            number = 0
            while not stop.is_set():
                number += 1
                post_hold(client, event, user=f"b-{number}", items=[{"pool": "standing", "tariff": "full"}])
                time.sleep(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_the_command_prints_figures_as_json(server: Server, org: Org, event: str) -> None:
    before = query(server.database_url, "SELECT count(*) FROM journal WHERE kind = 'held'")[0][0]
    with buying(server, org, event):
        done = call_holdfast(server.database_url, "top", "--once", "--json", "--interval", "1")
    after = query(server.database_url, "SELECT count(*) FROM journal WHERE kind = 'held'")[0][0]
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    (found,) = [each for each in figures["events"] if each["event"] == event]
    assert 0 < found["rates"]["holds"] * figures["seconds"] <= after - before
    assert found["changes"] == round(found["rates"]["holds"] * figures["seconds"])
    assert figures["rates"]["holds"] >= found["rates"]["holds"]
    assert figures["lanes"] > 0
    assert figures["servers"] is None
    assert "--url" in figures["missing"][0]


def test_without_a_terminal_or_a_database_the_command_says_what_to_do(database: str) -> None:
    assert "--once" in call_holdfast(database, "top").stderr
    assert "--once" in call_holdfast(database, "top", "--json").stderr
    down = call_holdfast("postgresql://postgres:hunter2@127.0.0.1:1/none", "top", "--once")
    assert down.returncode == 2
    assert "holdfast doctor" in down.stderr
    assert "hunter2" not in down.stderr
    query(database, "DROP TABLE journal, event CASCADE")
    old = call_holdfast(database, "top", "--once")
    assert old.returncode == 2
    assert "holdfast doctor" in old.stderr
    assert "Traceback" not in old.stderr


def test_looking_changes_nothing(database: str) -> None:
    async def write() -> None:
        async with connection_to(database, db.connect_watcher) as connection:
            await connection.execute("DELETE FROM event")

    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        asyncio.run(write())


class Terminal:
    """A process in a terminal of its own."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.descriptor, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", *SCREEN, 0, 0))
        self._inside = inside
        self.modes = termios.tcgetattr(inside)
        self.process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            # Narrow and short, whatever terminal the tests run in.
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(SCREEN[1]), "LINES": str(SCREEN[0]), **environment},
            start_new_session=True,
        )
        self.output = ""

    def read_until(self, text: str, seconds: float = 60) -> None:
        give_up_at = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < give_up_at, self.output
            assert self._read(1) or self.process.poll() is None, self.output

    def end(self, seconds: float = 60) -> int:
        """Wait for the process, and read what it still has to say. A full terminal would block it."""
        give_up_at = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < give_up_at, self.output
            self._read(0.1)
        while self._read(0):
            pass
        return self.process.returncode

    def modes_now(self) -> object:
        return termios.tcgetattr(self._inside)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.descriptor)
        os.close(self._inside)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return False
        self.output += os.read(self.descriptor, 65_536).decode(errors="replace")
        return True


@contextmanager
def top_in_a_terminal(server: Server) -> Iterator[Terminal]:
    terminal = Terminal(
        sys.executable, "-m", "holdfast", "top", "--interval", "0.5", HOLDFAST_DATABASE_URL=server.database_url
    )
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("quits_with", ["q", "SIGINT"])
def test_the_screen_shows_the_sale_until_somebody_quits(server: Server, org: Org, event: str, quits_with: str) -> None:
    with buying(server, org, event), top_in_a_terminal(server) as terminal:
        terminal.read_until("Opening night")
        terminal.read_until("holds/s")
        terminal.read_until("--url")
        assert terminal.modes_now() != terminal.modes
        if quits_with == "q":
            os.write(terminal.descriptor, b"xq")
        else:
            terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0, terminal.output
        assert terminal.modes_now() == terminal.modes
        for what, on, off in (("hidden cursor", "?25l", "?25h"), ("other screen", "?1049h", "?1049l")):
            assert -1 < terminal.output.rfind(f"\x1b[{on}") < terminal.output.rfind(f"\x1b[{off}"), what
        assert "Traceback" not in terminal.output
