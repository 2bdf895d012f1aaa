"""A staffing agency in Telegram: the real bot process, a local Bot API server, staff, a channel and workers."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from holdfast.core.commands import Accepted, ActOnBooking
from holdfast.core.event_schemas import EventChange, EventNew
from holdfast.core.quotas import Quotas
from holdfast.core.states import EventStatus, Verb
from holdfast.engine import event_editor
from holdfast.runtime import db, ids
from tests.support.engine_harness import lane_connection, run_commands
from tests.support.harness import (
    Org,
    application_url,
    free_port,
    query,
    run_with_connection,
    shared_data_folder,
    wait_until,
)
from tests.support.sample_files import image_file
from tests.support.telegram_server import Call, CallbackQuery, Message, TelegramServer, User, running_telegram_server

T = TypeVar("T")
BOT_ID = 4242
ADMIN = 11
# Only keeps a test from hanging.
PATIENCE_SECONDS = 90.0
FORM = {
    "What's the order number": "1204",
    "Which day is the shift": "",
    "From when to when": "08:00-17:00",
    "Where is it": "Dock 4, Harbour Road",
    "What do workers earn": "15 an hour",
    "How much does a place cost": "7.50",
    "How many workers": "3",
    "Is there food": "Lunch",
    "Which buses": "12, 48",
    "What else": "Bring gloves",
    "How do workers pay": "Card 4000 1234",
}


class Agency:
    """An org with a bot, an admin chat and a channel. Several of them can share a server, a database and a process;
    `number` tells them apart."""

    def __init__(self, server: TelegramServer, database_url: str, number: int = 0) -> None:
        self.server = server
        self.database_url = database_url
        self.org = Org(database_url)
        self.number = number
        self.bot_id = BOT_ID + number
        self.token = f"{self.bot_id}:AAF-token-of-tests"
        self.account = server.add_bot(self.token, f"agency_{self.bot_id}_bot")
        self.admin = self._user(ADMIN, "Olga", "Petrova")
        self.staff = server.group(-1_000_001 - 2 * number, "Agency staff")
        self.staff.add_user(self.admin)
        self.channel = server.channel(-1_000_002 - 2 * number, "Agency shifts")
        for chat in (self.staff, self.channel):
            chat.add_bot(self.account)

    def _user(self, id_: int, first_name: str, last_name: str | None = None, **names: str) -> User:
        return self.server.user(self.number * 1_000_000 + id_, first_name, last_name, **names)

    def add_colleague(self, id_: int, first_name: str) -> User:
        """Another member of the admin chat."""
        colleague = self._user(id_, first_name)
        self.staff.add_user(colleague)
        return colleague

    @property
    def environment(self) -> dict[str, str]:
        return environment_of(self.server, self.database_url)

    def run_command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            env={**self.environment, "HOLDFAST_TELEGRAM_TOKEN": self.token},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def connect(self) -> None:
        """Store the bot and its chats, as the linking dialogue does."""
        query(
            self.database_url,
            "INSERT INTO telegram_bot (org_id, bot_id, token, username, webhook_secret, language, currency, timezone, "
            "admin_chat_id, channel_id) VALUES ($1, $2, $3, $4, 'secret', 'en', 'EUR', 'UTC', $5, $6)",
            self.org.id,
            self.bot_id,
            self.token,
            self.account.username,
            self.staff.id,
            self.channel.id,
        )

    def disconnect(self) -> None:
        query(self.database_url, "DELETE FROM telegram_bot WHERE org_id = $1", self.org.id)

    def wait_until_polled(self) -> None:
        self.server.wait_until(lambda: bool(self.calls_of("getUpdates")), PATIENCE_SECONDS, "the bot does not poll")

    def calls_of(self, method: str) -> list[Call]:
        """The calls of this agency's bot."""
        return [call for call in self.server.calls_of(method) if call.bot == self.account.username]

    @contextmanager
    def running_bot(
        self, *, webhook: str | None = None, port: int | None = None
    ) -> Iterator["subprocess.Popen[bytes]"]:
        environment = self.environment
        if webhook is not None:
            environment["HOLDFAST_TELEGRAM_WEBHOOK_URL"] = webhook
        with running("bot", "--port", str(port or free_port()), env=environment) as process:
            yield process

    @contextmanager
    def running_worker(self) -> Iterator["subprocess.Popen[bytes]"]:
        with running("worker", env=self.environment) as process:
            yield process

    def add_shift(
        self,
        *,
        workers: int = 3,
        number: str = "77",
        fee: int = 750,
        policy: dict[str, Any] | None = None,
        **event: Any,
    ) -> str:
        """A published shift that somebody made with the API. Returns its id."""
        starts_at = datetime.now(UTC) + timedelta(days=2)
        new = {
            "title": f"Shift {number}",
            "preset": "shift",
            "starts_at": starts_at.isoformat(),
            "currency": "EUR",
            "pools": [{"code": "places", "capacity": workers}],
            "shift": {"order_number": number, "service_fee": fee, "address": "Dock 4", "work_time": "08:00-17:00"},
            "payment_instructions": "Card 4000 1234",
            "policy": policy or {},
            **event,
        }
        event_new = msgspec.json.decode(msgspec.json.encode(new), type=EventNew)

        async def create(connection: db.Connection) -> bytes:
            database = db.Database(connection)
            event = await event_editor.create_event(
                database, self.org.id, event_new, "test", Quotas(events=1000, seats=1000)
            )
            await event_editor.set_status(database, self.org.id, event, EventStatus.ACTIVE, "test")
            return event

        return ids.format_event_id(run_with_connection(create, self.database_url))

    def change_shift(self, event: str, **change: Any) -> None:
        """Change it as somebody does with the API."""
        id_ = ids.parse_event_id(event)
        assert id_ is not None
        decoded = msgspec.json.decode(msgspec.json.encode(change), type=EventChange)

        async def apply(connection: db.Connection) -> None:
            database = db.Database(connection)
            await event_editor.change_event(
                database, self.org.id, id_, decoded, "test", Quotas(events=1000, seats=1000)
            )

        run_with_connection(apply, self.database_url)

    def end_shift(self, event: str) -> None:
        """Complete the shift, as the API or the completer does."""
        id_ = ids.parse_event_id(event)
        assert id_ is not None

        async def complete(connection: db.Connection) -> None:
            database = db.Database(connection)
            await event_editor.set_status(database, self.org.id, id_, EventStatus.COMPLETED, "test")

        run_with_connection(complete, self.database_url)

    def approve_elsewhere(self) -> None:
        """Approve the only receipt with a key of the API."""
        row = query(self.database_url, "SELECT event_id, id FROM booking WHERE org_id = $1", self.org.id)[0]
        approve = ActOnBooking(
            event=row["event_id"], org=self.org.id, booking=row["id"], verb=Verb.APPROVE, actor="key:test"
        )

        async def run() -> None:
            async with lane_connection(self.database_url) as connection:
                (outcome,) = await run_commands(connection, [approve])
                assert isinstance(outcome, Accepted)

        asyncio.run(run())

    def wait_until_followed(self, event: str) -> None:
        """The bot finds an event that somebody made elsewhere."""
        statement = "SELECT true FROM telegram_event WHERE event_id = $1"
        wait_until(lambda: bool(query(self.database_url, statement, ids.parse_event_id(event))), PATIENCE_SECONDS)

    def follow(self, event: str) -> None:
        """Let the bot follow an event that somebody made elsewhere, before it finds the event."""
        query(
            self.database_url,
            "INSERT INTO telegram_event (event_id, org_id, version) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING",
            ids.parse_event_id(event),
            self.org.id,
        )

    def new_worker(self, id_: int, first_name: str = "Ivan", **names: str) -> User:
        return self._user(id_, first_name, **names)

    def add_worker(self, id_: int, first_name: str = "Ivan") -> User:
        """A worker who has registered before."""
        worker = self.new_worker(id_, first_name)
        self.server.open_private_chat(worker, self.account)
        query(
            self.database_url,
            "INSERT INTO telegram_person (org_id, person_id, name, phone, language, registered_at) "
            "VALUES ($1, $2, $3, $4, 'en', now())",
            self.org.id,
            worker.id,
            f"{first_name} {id_}",
            f"+34600{id_:06}",
        )
        return worker

    def wait_for(self, chat: Any, text: str, buttons: int | None = None, after: Message | None = None) -> Message:
        """The last message of the bot in this chat that says so."""

        def find() -> Message | None:
            found = [
                message
                for message in chat.visible
                if text in f"{message.text or ''}{message.caption or ''}"
                and not isinstance(message.sender, User)
                and (after is None or message.id > after.id)
                and (buttons is None or len(message.buttons) == buttons)
            ]
            return found[-1] if found else None

        message = self.server.wait_until(find, PATIENCE_SECONDS, f"no message says {text!r}")
        assert message is not None
        return message

    def wait(self, condition: Callable[[], T]) -> T:
        """The condition's result, once it is true."""
        return self.server.wait_until(condition, PATIENCE_SECONDS)

    def answer_to(self, pressed: CallbackQuery) -> str | None:
        """What the bot says about a button, once it does."""
        self.server.wait_until(lambda: pressed.answered, PATIENCE_SECONDS, "the button got no answer")
        return pressed.answer_text

    def chat_of(self, worker: User) -> Any:
        return worker.chat(self.account)

    def take_place(self, worker: User, event: str) -> Message:
        """Open the shift, and tap the button. Returns the card."""
        opened = worker.start(self.account, event)
        offer = self.wait_for(self.chat_of(worker), "places left", after=opened)
        worker.press(offer, "Take a place")
        return self.wait_for(self.chat_of(worker), "A place is yours for", after=offer)

    def send_receipt(self, worker: User, file: bytes | None = None) -> Message:
        """Returns the review in the admin chat."""
        before = self.staff.visible[-1] if self.staff.visible else None
        worker.send_photo(self.account, file or image_file("JPEG"))
        return self.wait_for(self.staff, "Receipt for", after=before)

    def settle(self) -> None:
        """Wait until the bot has nothing left to handle or to send, and has written down what it sent."""
        statement = """
            SELECT 1 FROM telegram_update WHERE org_id = $1 AND due_at IS NOT NULL
            UNION ALL SELECT 1 FROM telegram_message
                WHERE org_id = $1 AND (due_at <= now() OR leased_until IS NOT NULL)
            UNION ALL SELECT 1 FROM telegram_event AS known JOIN event ON event.id = known.event_id
                WHERE known.org_id = $1 AND event.version > known.version
        """
        wait_until(lambda: not query(self.database_url, statement, self.org.id), PATIENCE_SECONDS)

    def statuses(self) -> list[str]:
        rows = query(self.database_url, "SELECT status FROM booking WHERE org_id = $1 ORDER BY id", self.org.id)
        return [row["status"] for row in rows]

    def expire_holds(self, seconds: float = 1.0) -> None:
        """Move the deadline of all holds into the past."""
        deadline = "expires_at = clock_timestamp() - make_interval(secs => $2)"
        query(self.database_url, f"UPDATE booking SET {deadline} WHERE org_id = $1", self.org.id, seconds)

    def messages_to(self, worker: User, text: str) -> list[Message]:
        return [
            message
            for message in self.chat_of(worker).visible
            if message.sender is self.account and text in f"{message.text or ''}{message.caption or ''}"
        ]


# Whoever ends an update waits for a lock.
WAIT_AT_THE_END = """
    CREATE FUNCTION wait_at_the_end() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock(77); RETURN new; END
    $$;
    CREATE TRIGGER wait_at_the_end BEFORE UPDATE ON telegram_update
        FOR EACH ROW WHEN (new.due_at IS NULL) EXECUTE FUNCTION wait_at_the_end();
"""


@contextmanager
def no_update_ends(database_url: str) -> Iterator[None]:
    """Bots do what updates ask for, but fail to end them."""
    with asyncio.Runner() as runner:
        connection = runner.run(db.connect(database_url))
        runner.run(connection.execute(WAIT_AT_THE_END))
        runner.run(connection.execute("SELECT pg_advisory_lock(77)"))
        try:
            yield
        finally:
            runner.run(connection.execute("SELECT pg_advisory_unlock(77)"))
            runner.run(connection.execute("DROP FUNCTION wait_at_the_end CASCADE"))
            runner.run(connection.close())


def environment_of(server: TelegramServer, database_url: str) -> dict[str, str]:
    return {
        **os.environ,
        "HOLDFAST_DATABASE_URL": application_url(database_url),
        "HOLDFAST_DATA_DIR": str(shared_data_folder()),
        "HOLDFAST_TELEGRAM_API": server.url,
    }


@contextmanager
def running(*arguments: str, env: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *arguments], env=env)
    try:
        yield process
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(10)


@contextmanager
def agency(database_url: str, *, connected: bool = True) -> Iterator[Agency]:
    with ExitStack() as stack:
        server = stack.enter_context(running_telegram_server())
        found = Agency(server, database_url)
        if connected:
            found.connect()
        yield found


class Agencies:
    """Agencies that share a bot process, as the orgs of one installation do."""

    def __init__(self, server: TelegramServer, database_url: str) -> None:
        self._server = server
        self._database_url = database_url
        self._count = 0
        self._next = self._add()

    @contextmanager
    def open(self) -> Iterator[Agency]:
        """One more agency, once its bot answers. The process takes a moment to start a bot, so the next agency's bot
        starts during the test of this one."""
        found, self._next = self._next, self._add()
        found.wait_until_polled()
        try:
            yield found
        finally:
            found.disconnect()

    def _add(self) -> Agency:
        self._count += 1
        found = Agency(self._server, self._database_url, self._count)
        found.connect()
        return found


@contextmanager
def running_agencies(database_url: str) -> Iterator[Agencies]:
    with running_telegram_server() as server, running("bot", env=environment_of(server, database_url)):
        yield Agencies(server, database_url)
