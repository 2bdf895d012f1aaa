"""A staffing agency on a simulated Telegram, for you to play with in a browser. `make bot-demo` runs this."""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from tests.support.harness import temporary_folder
from tests.support.postgres_process import stop_postgres
from tests.support.telegram_server import Chat, Message, TelegramServer, User, running_telegram_server

from holdfast.api import branding
from holdfast.api.requests import OrgChange
from holdfast.bot.shift_form import ShiftForm, new_event
from holdfast.core.states import EventStatus
from holdfast.engine import event_editor
from holdfast.runtime import db, embedded
from holdfast.runtime.cli_orgs import find_org
from holdfast.runtime.credentials import create_org

PORT: Final = 8090
TOKEN: Final = "8090:AAF-token-of-the-demo"
ORG: Final = "harbour"
ORG_NAME: Final = "Harbour Staffing"
PAYMENT_INSTRUCTIONS: Final = "Card 4000 1234 5678 9010, Harbour Staffing"
GROUP_ID, CHANNEL_ID = -1001, -1002
# How long to wait for an answer before giving up, and for a process before killing it.
ANSWER_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
LOG_LINES: Final = 20


class DemoError(RuntimeError):
    """The demo cannot go on. The message is for the person who runs it."""


class Child:
    """A Holdfast command that runs beside the demo. It ends when the demo does, even if the demo is killed."""

    def __init__(self, command: str, environment: dict[str, str], log: Path) -> None:
        self.command = command
        self._log = log
        with log.open("wb") as file:
            # Ctrl-C is for the demo alone, which then stops its children.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", command, "--child"],
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def check(self) -> None:
        if self._process.poll() is not None:
            log = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise DemoError(f"`holdfast {self.command}` has stopped. Its log ends with:\n{log}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Demo:
    """Olga runs the agency. Ivan and Dilnoza look for work."""

    def __init__(self, server: TelegramServer, folder: Path, database_url: str, timezone: str) -> None:
        self.server = server
        self.timezone = timezone
        self.account = server.add_bot(TOKEN, "harbour_bot")
        self.olga = server.user(11, "Olga", "Petrova", "olga")
        self.ivan = server.user(21, "Ivan", "Sidorov", "ivan")
        self.dilnoza = server.user(22, "Dilnoza", "Karimova", "dilnoza", language_code="uz")
        self.staff = server.group(GROUP_ID, "Harbour staff")
        self.channel = server.channel(CHANNEL_ID, "Harbour shifts")
        for chat in (self.staff, self.channel):
            chat.add_user(self.olga, "creator")
            chat.add_bot(self.account)
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "HOLDFAST_DATABASE_URL": database_url,
            "HOLDFAST_DATA_DIR": str(folder),
            "HOLDFAST_TELEGRAM_API": server.url,
        }
        self._children: list[Child] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Connect the bot, and run it together with a worker, which expires holds."""
        link = self._connect_bot()
        with ExitStack() as stack:
            for command in ("bot", "worker"):
                child = Child(command, self._environment, self._folder / f"{command}.log")
                stack.callback(child.stop)
                self._children.append(child)
            self._link_chats(link)
            yield

    def check(self) -> None:
        """Raise a DemoError if a process has ended."""
        for child in self._children:
            child.check()

    def wait_for(self, chat: Chat, text: str, after: Message | None = None) -> Message:
        """The bot's latest message in this chat that contains the text."""

        def find() -> Message | None:
            self.check()
            new = [message for message in chat.visible if message.author and (not after or message.id > after.id)]
            return next((message for message in reversed(new) if text in message.body.text), None)

        try:
            found = self.server.wait_until(find, ANSWER_SECONDS)
        except AssertionError:
            raise DemoError(f"The bot did not write “{text}” in {chat.title}.") from None
        assert found is not None
        return found

    def post_shift(self) -> None:
        """Put a shift into the channel. The form would use up the messages that a group may get in a minute."""
        asyncio.run(create_shift(self._environment["HOLDFAST_DATABASE_URL"], self.timezone))
        asked = self.olga.say(self.staff, "/shifts")
        listed = self.wait_for(self.staff, "Upcoming shifts", after=asked)
        self.olga.press(listed, listed.buttons[0])
        shift = self.wait_for(self.staff, "places taken", after=listed)
        self.olga.press(shift, "Post to the channel")
        self.wait_for(self.channel, "places left")

    def chat_of(self, user: User) -> Chat:
        return user.chat(self.account)

    def _connect_bot(self) -> str:
        """Returns the message that links the admin chat."""
        done = subprocess.run(
            [
                *(sys.executable, "-m", "holdfast", "bot", "connect"),
                *("--org", ORG, "--currency", "EUR", "--timezone", self.timezone),
            ],
            env={**self._environment, "HOLDFAST_TELEGRAM_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoError(f"`holdfast bot connect` failed:\n{done.stderr.strip()}")
        return done.stdout.strip()

    def _link_chats(self, link: str) -> None:
        self.olga.say(self.staff, link)
        linked = self.wait_for(self.staff, "now belongs to the staff")
        self.olga.say(self.staff, "/channel")
        how = self.wait_for(self.staff, "Then post this in the channel", after=linked)
        self.channel.post(how.body.text.splitlines()[-1])
        self.wait_for(self.staff, "Shifts will be posted in", after=how)


@contextmanager
def running_demo(port: int = 0, timezone: str = "UTC") -> Iterator[Demo]:
    """The agency with its chats linked. Everything is gone afterwards."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_telegram_server(port))
        except OSError:
            raise DemoError(f"Port {port} is already in use. Choose another one with --port.") from None
        folder = stack.enter_context(temporary_folder())
        stack.callback(stop_postgres, folder)
        url = embedded.start(folder)
        asyncio.run(create_agency(url))
        demo = Demo(server, folder, url, timezone)
        stack.enter_context(demo.running())
        yield demo


async def create_agency(url: str) -> None:
    await db.migrate(url)
    connection = await db.connect(url)
    try:
        database = db.Database(connection)
        org = await create_org(database, ORG, ORG_NAME)
        assert org is not None
        await branding.change_org(database.org(org), org, OrgChange(payment_instructions=PAYMENT_INSTRUCTIONS))
    finally:
        await connection.close()


async def create_shift(url: str, timezone: str) -> None:
    tomorrow = datetime.now(ZoneInfo(timezone)).date() + timedelta(days=1)
    form = ShiftForm(
        order_number="1204",
        date=tomorrow.isoformat(),
        work_time="08:00-17:00",
        address="Dock 4, Harbour Road",
        salary="15 € an hour",
        service_fee="750",
        workers="3",
        food="Free lunch",
        buses="12, 48",
        additional_info="Bring gloves and warm clothes.",
    )
    new = new_event(form, "Shift 1204, Dock 4, Harbour Road", "EUR", timezone)
    connection = await db.connect(url)
    try:
        database = db.Database(connection)
        org = await find_org(database, ORG)
        event = await event_editor.create_event(database, org, new, "demo")
        await event_editor.set_status(database, org, event, EventStatus.ACTIVE, "demo")
    finally:
        await connection.close()


def local_timezone() -> str:
    """The zone of this machine, so that the bot's times agree with those on the chat page."""
    _, _, name = str(Path("/etc/localtime").resolve()).partition("zoneinfo/")
    return next((zone for zone in (os.environ.get("TZ"), name) if zone in available_timezones()), "UTC")


def interrupt(*_: object) -> None:
    """Stop once. Another signal must not disturb the clean-up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def play(port: int) -> None:
    print("Starting a simulated Telegram, a database and the bot. This takes a few seconds.", flush=True)
    with running_demo(port, local_timezone()) as demo:
        demo.post_shift()
        print(
            f"\nOpen {demo.server.url} and choose who you are at the top left.\n\n"
            "  As Ivan or Dilnoza, open “Harbour shifts”, take a place, and send a receipt with the receipt icon.\n"
            "  As Olga, approve or reject the receipt in “Harbour staff”, or send /new to publish another shift.\n\n"
            "Press Ctrl-C to stop. The demo deletes everything it created.",
            flush=True,
        )
        while True:
            demo.check()
            time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bot_demo", description=__doc__)
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the chat page (default: {PORT})")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        play(options.port)
    except KeyboardInterrupt:
        print("\nStopped. Everything is cleaned up.", flush=True)
    except (DemoError, embedded.EmbeddedError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
