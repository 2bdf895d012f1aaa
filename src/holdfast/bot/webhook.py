"""Receives updates over HTTP, for any number of processes. Telegram proves itself with the bot's secret."""

import secrets
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import web

from holdfast.bot.bot_runner import BotRunner
from holdfast.bot.inbox import UPDATE_BYTES_MAX, InvalidUpdateError
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS

log = structlog.get_logger()

SECRET_HEADER: Final = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 (the name of a header)
PATH: Final = "/telegram/{bot}"

FindRunner = Callable[[int], BotRunner | None]


def make_app(find_runner: FindRunner, is_healthy: Callable[[], bool]) -> web.Application:
    async def receive(request: web.Request) -> web.Response:
        """Store the update, then accept it. Telegram repeats what nobody accepts."""
        name = request.match_info["bot"]
        runner = find_runner(int(name)) if name.isascii() and name.isdecimal() and len(name) < 19 else None
        given = request.headers.get(SECRET_HEADER, "").encode(errors="replace")
        expected = runner.bot.webhook_secret.encode() if runner is not None else secrets.token_bytes(32)
        if not secrets.compare_digest(given, expected) or runner is None:
            return web.Response(status=401)
        try:
            await runner.receive(await request.read())
        except InvalidUpdateError:
            return web.Response(status=400)
        except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
            log.error("telegram_update_not_stored", error=type(error).__name__)
            return web.Response(status=503)
        return web.Response()

    async def report_health(_: web.Request) -> web.Response:
        if is_healthy():
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "failing"}, status=503)

    app = web.Application(client_max_size=UPDATE_BYTES_MAX)
    app.router.add_post(PATH, receive)
    app.router.add_get("/healthz", report_health)
    return app


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
