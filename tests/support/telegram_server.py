"""Telegram's Bot API on loopback, with people whom a test plays. `python -m tests.support.telegram_server` serves it
with a chat page, on which you play them by hand."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from aiohttp import web

from tests.support.telegram.chats import Channel, Chat, Group, PrivateChat
from tests.support.telegram.errors import OTHER_POLLER, WEBHOOK_ACTIVE, ApiError, conflict, not_found, unauthorized
from tests.support.telegram.faults import Fault, Faults, FloodLimits, Hold
from tests.support.telegram.messages import Button, CallbackQuery, Contact, Message
from tests.support.telegram.methods import METHODS, set_allowed_kinds
from tests.support.telegram.parameters import Parameters, read_parameters
from tests.support.telegram.people import BotAccount, User
from tests.support.telegram.simulator import Simulator
from tests.support.telegram.update_queue import Poll
from tests.support.telegram.webhook_delivery import WebhookDelivery
from tests.support.telegram.world import Call, World

__all__ = [
    "BotAccount",
    "Button",
    "Call",
    "CallbackQuery",
    "Channel",
    "Chat",
    "Contact",
    "FloodLimits",
    "Group",
    "Hold",
    "Message",
    "PrivateChat",
    "TelegramServer",
    "User",
    "running_telegram_server",
]

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_UPDATES = 100
MAX_POLL_SECONDS = 50
NAME_OF_METHOD = {name.lower(): name for name in (*METHODS, "getUpdates")}


class TelegramServer(World):
    """Enter it to start serving at `url`."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        self.url = ""
        self._port = port
        self._faults = Faults()
        self._webhooks = WebhookDelivery(self, self._call)
        self._simulator = Simulator(self)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: web.AppRunner | None = None
        self._is_closing = False
        self._changed: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._webhooks.open()
        self._runner = web.AppRunner(self._make_app(), access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._faults.release_all()
        self._announce_change()
        await self._webhooks.close()
        assert self._runner is not None
        await self._runner.cleanup()
        self._loop = None

    @property
    def webhook_targets(self) -> list[str]:
        """The URLs that take turns instead of the webhook's own: several instances of the bot behind one address."""
        return self._webhooks.targets

    @webhook_targets.setter
    def webhook_targets(self, urls: list[str]) -> None:
        self._webhooks.targets = urls

    @property
    def flood_limits(self) -> FloodLimits | None:
        """None, as at first, switches them off."""
        return self._faults.flood_limits

    @flood_limits.setter
    def flood_limits(self, limits: FloodLimits | None) -> None:
        self._faults.flood_limits = limits

    @property
    def file_path_seconds(self) -> float | None:
        """How long a path from getFile stays valid. None means forever, and 0 that it has expired already."""
        return self.files.path_seconds

    @file_path_seconds.setter
    def file_path_seconds(self, seconds: float | None) -> None:
        self.files.path_seconds = seconds

    def fail_next(
        self,
        method: str,
        error_code: int,
        description: str,
        times: int = 1,
        retry_after: int | None = None,
        chat: Chat | int | None = None,
    ) -> None:
        """Answer the next calls with this error. The method `*` means any."""
        error = ApiError(error_code, description, retry_after)
        self._faults.add(Fault(method, error, times, chat.id if isinstance(chat, Chat) else chat))

    def drop_next(self, method: str, times: int = 1, chat: Chat | int | None = None) -> None:
        """Do what the next calls ask for, but close the connection instead of answering."""
        self._faults.add(Fault(method, None, times, chat.id if isinstance(chat, Chat) else chat))

    def delay(self, method: str, seconds: float) -> None:
        """Wait before every call of the method, until another delay replaces this one."""
        self._faults.delay(method, seconds)

    def hold(self, method: str, after: bool = False) -> Hold:
        """Let calls wait until the `with` block ends. With `after`, they take effect and only their answers wait."""
        return self._faults.hold(method, after)

    def calls_of(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    def note_change(self) -> None:
        super().note_change()
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop of a server that just stopped is closed.
                self._loop.call_soon_threadsafe(self._announce_change)

    def _announce_change(self) -> None:
        """Wake everyone who waits for updates, and start deliveries."""
        if self._changed is not None:
            self._changed.set()
            self._changed = asyncio.Event()
        if not self._is_closing:
            for bot in list(self.bots.values()):
                self._webhooks.start(bot)

    async def wait_for_change(self, seconds: float) -> None:
        if self._is_closing or self._changed is None:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _make_app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/bot{token:[^/]+}/{method}", self._handle_call)
        app.router.add_get("/file/bot{token:[^/]+}/{path:.+}", self._handle_download)
        self._simulator.add_routes(app)
        return app

    async def _handle_call(self, request: web.Request) -> web.StreamResponse:
        try:
            bot = self._authenticate(request)
            parameters = await read_parameters(request)
        except ApiError as error:
            return web.json_response(error.to_wire(), status=error.error_code)
        answer = await self._call(bot, request.match_info["method"], parameters)
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return answer

    async def _call(self, bot: BotAccount, method: str, parameters: Parameters) -> web.Response | None:
        """Return the answer, or None to close the connection without one."""
        method = NAME_OF_METHOD.get(method.lower(), method)
        call = Call(method, parameters.values, time.time(), bot.username)
        self.calls.append(call)
        chat_id = parameters.chat_id()
        try:
            await self._faults.before(method, bot.id, chat_id)
            body = {"ok": True, "result": await self._run(bot, method, parameters)}
            call.status = 200
        except ApiError as error:
            body, call.status, call.description = error.to_wire(), error.error_code, error.description
        if await self._faults.after(method, chat_id):
            return None
        return web.json_response(body, status=call.status)

    async def _run(self, bot: BotAccount, method: str, parameters: Parameters) -> Any:
        if method == "getUpdates":
            return await self._get_updates(bot, parameters)
        if method not in METHODS:
            raise not_found("method not found")
        result = METHODS[method](self, bot, parameters)
        if method == "setWebhook":
            self.note_change()
        return result

    async def _get_updates(self, bot: BotAccount, parameters: Parameters) -> Any:
        if bot.webhook is not None:
            raise conflict(WEBHOOK_ACTIVE)
        set_allowed_kinds(bot, parameters)
        bot.queue.confirm(parameters.number("offset"))
        if bot.poll is not None:
            bot.poll.error = conflict(OTHER_POLLER)
            self._announce_change()
        bot.poll = poll = Poll()
        limit = min(max(parameters.number("limit", MAX_UPDATES), 1), MAX_UPDATES)
        give_up_at = time.monotonic() + min(parameters.number("timeout"), MAX_POLL_SECONDS)
        try:
            while True:
                if poll.error is not None:
                    raise poll.error
                batch = bot.queue.take(limit)
                left_seconds = give_up_at - time.monotonic()
                if batch or left_seconds <= 0 or self._is_closing:
                    return [update.to_wire() for update in batch]
                await self.wait_for_change(left_seconds)
        finally:
            if bot.poll is poll:
                bot.poll = None

    async def _handle_download(self, request: web.Request) -> web.Response:
        try:
            self._authenticate(request)
            file = self.files.download(request.match_info["path"])
        except ApiError as error:
            return web.json_response(error.to_wire(), status=error.error_code)
        return web.Response(body=file.data, content_type="application/octet-stream")

    def _authenticate(self, request: web.Request) -> BotAccount:
        bot = self.bots.get(request.match_info["token"])
        if bot is None:
            raise unauthorized()
        return bot


@contextmanager
def running_telegram_server(port: int = 0) -> Iterator[TelegramServer]:
    """The server in a thread of its own, for a test without an event loop."""
    server = TelegramServer(port)
    started, stop = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        async with server:
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as failure:
            failures.append(failure)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="telegram-server")
    thread.start()
    started.wait()
    try:
        if failures:
            raise failures[0]
        yield server
    finally:
        stop.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.telegram_server", description=__doc__)
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--bot", action="append", metavar="TOKEN=USERNAME", help="default: 42:TEST=holdfast_bot")
    parser.add_argument("--user", action="append", metavar="ID=NAME", help="default: 1001=Ana, 1002=Boris")
    parser.add_argument("--group", action="append", default=[], metavar="ID=TITLE")
    parser.add_argument("--channel", action="append", default=[], metavar="ID=TITLE")
    options = parser.parse_args()
    server = TelegramServer(options.port)
    _fill(server, options)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(server))


def _fill(server: TelegramServer, options: argparse.Namespace) -> None:
    for token, _, username in (value.partition("=") for value in options.bot or ["42:TEST=holdfast_bot"]):
        server.add_bot(token, username)
    for id_, _, name in (value.partition("=") for value in options.user or ["1001=Ana", "1002=Boris"]):
        first_name, _, last_name = name.partition(" ")
        server.user(int(id_), first_name, last_name or None)
    for id_, _, title in (value.partition("=") for value in options.group):
        server.group(int(id_), title)
    for id_, _, title in (value.partition("=") for value in options.channel):
        server.channel(int(id_), title)
    for chat in server.chats.values():
        for bot in server.bots.values():
            chat.add_bot(bot)


async def _serve_forever(server: TelegramServer) -> None:
    async with server:
        print(f"Chat page and Bot API: {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
