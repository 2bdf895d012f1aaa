"""The bot process: runs the bots of all orgs, and notices when one is connected or disconnected."""

import asyncio
import signal
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

import structlog

from holdfast import sql
from holdfast.api.app import make_services, open_redis
from holdfast.api.endpoint import Limits
from holdfast.api.in_process import InProcessApi
from holdfast.api.operations import OPERATIONS
from holdfast.bot import webhook
from holdfast.bot.bot_runner import BotRunner
from holdfast.bot.handlers import make_dispatcher
from holdfast.bot.leadership import Leadership
from holdfast.bot.org_api import OrgApi
from holdfast.bot.telegram_bot import TelegramBot
from holdfast.engine.batch import notify_all
from holdfast.engine.engine import Engine
from holdfast.engine.engine_logs import EngineLogs
from holdfast.runtime import db, metrics
from holdfast.runtime.metrics_server import MetricsAddress, open_exporter
from holdfast.runtime.process_lifetime import end_with_parent
from holdfast.runtime.settings import Settings
from holdfast.runtime.supervision import TaskHealth, keep_running
from holdfast.runtime.tracing import close_tracing

log = structlog.get_logger()

CONNECTIONS: Final = 10
LANES: Final = 2
RELOAD_SECONDS: Final = 1.0
CLEANUP_SECONDS: Final = 600.0
# Telegram repeats an update for a day.
UPDATES_KEPT: Final = timedelta(days=3)
MESSAGES_KEPT: Final = timedelta(days=30)
DELETED_MAX: Final = 5_000


async def run_bots(
    settings: Settings, host: str, port: int, metrics_address: MetricsAddress | None = None, *, child: bool = False
) -> None:
    """Run until asked to stop. With a webhook URL in the settings, Telegram delivers to this host and port."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if child:
        end_with_parent()
    async with AsyncExitStack() as resources:
        resources.push_async_callback(close_tracing)
        exporter = open_exporter("bot", settings, metrics_address, resources)
        health = TaskHealth()
        bots = await _open_bots(settings, health, resources)
        if exporter is not None:
            exporting = asyncio.create_task(keep_running("metrics", exporter.run, health, lambda: None))
            resources.callback(exporting.cancel)
        metrics.TELEGRAM_BOTS.follow(lambda: bots.count)
        metrics.TELEGRAM_BOTS_LED.follow(lambda: bots.led)
        await bots.reload()
        if settings.telegram_webhook_url is not None:
            server = await webhook.serve(webhook.make_app(bots.find, lambda: bots.is_healthy), host, port)
            resources.push_async_callback(server.cleanup)
        log.info("telegram_bots_running", bots=bots.count)
        await bots.run(stopping)


async def _open_bots(settings: Settings, health: TaskHealth, resources: AsyncExitStack) -> "Bots":
    url = settings.database_url
    assert url is not None
    pool = await db.create_pool(url, CONNECTIONS)
    resources.push_async_callback(db.close_pool, pool)
    database = db.Database(pool)
    redis = open_redis(settings, database)
    logs = EngineLogs(settings, database)
    await logs.start()
    resources.push_async_callback(logs.close)
    on_commit = notify_all(redis.writer.add_batch if redis is not None else None, logs.on_commit)
    engine = Engine(url, LANES, health, on_commit)
    engine.start()
    metrics.LANE_QUEUE_DEPTH.follow(lambda: engine.waiting)
    metrics.follow_pool("bot", pool)
    services = make_services(settings, pool, engine, health, redis=redis)
    limits = Limits(services)
    if redis is not None:
        redis.start(limits.shared)
        resources.push_async_callback(redis.close)
    for provider in services.providers.values():
        resources.push_async_callback(provider.aclose)
    resources.push_async_callback(engine.close)
    leadership = Leadership(url)
    resources.push_async_callback(leadership.close)
    bots = Bots(settings, database, InProcessApi(OPERATIONS, services, limits), leadership)
    resources.push_async_callback(bots.close)
    return bots


class Bots:
    """The bots of this process by their id."""

    def __init__(self, settings: Settings, database: db.Database, api: InProcessApi, leadership: Leadership) -> None:
        self._settings = settings
        self._database = database
        self._api = api
        self._leadership = leadership
        self._dispatcher = make_dispatcher()
        self._runners: dict[int, BotRunner] = {}

    @property
    def count(self) -> int:
        return len(self._runners)

    @property
    def led(self) -> int:
        """How many of them this process leads."""
        return sum(self._leadership.leads(bot) for bot in self._runners)

    @property
    def is_healthy(self) -> bool:
        """Whether no task of any bot has just died."""
        return all(runner.is_healthy for runner in self._runners.values())

    def find(self, bot: int) -> BotRunner | None:
        return self._runners.get(bot)

    async def run(self, stopping: asyncio.Event) -> None:
        cleanup = 0.0
        while not stopping.is_set():
            try:
                await self.reload()
                if cleanup <= 0:
                    await self._delete_old_rows()
                    cleanup = CLEANUP_SECONDS
            except Exception as error:
                is_outage = isinstance(error, (*db.LOST_ERRORS, *db.BLOCKED_ERRORS))
                log.error(
                    "telegram_bots_not_reloaded", error=type(error).__name__, exc_info=None if is_outage else error
                )
            cleanup -= RELOAD_SECONDS
            try:
                async with asyncio.timeout(RELOAD_SECONDS):
                    await stopping.wait()
            except TimeoutError:
                continue

    async def reload(self) -> None:
        """Start bots that are new, and stop those that are gone or have another token."""
        found = {bot.bot_id: bot for bot in await self._database.shared.rows(TelegramBot, sql.telegram.bots)}
        for bot_id, runner in list(self._runners.items()):
            if bot_id not in found or found[bot_id].token != runner.bot.token:
                await self._runners.pop(bot_id).close()
        for bot_id in found.keys() - self._runners.keys():
            self._runners[bot_id] = self._start(found[bot_id])

    def _start(self, bot: TelegramBot) -> BotRunner:
        runner = BotRunner(
            bot,
            self._database,
            OrgApi(self._api, bot.org_id),
            self._dispatcher,
            self._leadership,
            telegram_api=self._settings.telegram_api,
            webhook_url=self._settings.telegram_webhook_url,
        )
        runner.start()
        return runner

    async def _delete_old_rows(self) -> None:
        scope = self._database.shared
        updates_seconds, messages_seconds = UPDATES_KEPT.total_seconds(), MESSAGES_KEPT.total_seconds()
        await scope.execute(*sql.telegram.delete_old_updates(seconds=updates_seconds, rows_max=DELETED_MAX))
        await scope.execute(*sql.telegram.delete_old_messages(seconds=messages_seconds, rows_max=DELETED_MAX))

    async def close(self) -> None:
        await asyncio.gather(*(runner.close() for runner in self._runners.values()))
