"""The worker process: builds every background job, and runs them until it is asked to stop."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from holdfast.core.notification_rules import EMAIL, WEBHOOK
from holdfast.engine import auditor
from holdfast.engine.engine import Engine
from holdfast.notifications.channel import Channel
from holdfast.notifications.email_channel import EmailChannel
from holdfast.notifications.relay import Relay
from holdfast.notifications.smtp import Smtp
from holdfast.notifications.webhook_channel import WebhookChannel
from holdfast.payments.inbox import Inbox
from holdfast.payments.reconciler import Reconciler
from holdfast.payments.refunds import Refunder
from holdfast.payments.registry import make_providers
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime import db
from holdfast.runtime.process_lifetime import end_with_parent
from holdfast.runtime.settings import Settings
from holdfast.worker import completer
from holdfast.worker.job import Job, JobDiedError, JobLoop
from holdfast.worker.reaper import Reaper

REAPER_SECONDS: Final = 1.0
COMPLETER_SECONDS: Final = 5.0
AUDITOR_SECONDS: Final = 15.0
RELAY_SECONDS: Final = 0.25
PAYMENTS_SECONDS: Final = 0.5
SANDBOX_SECONDS: Final = 0.25

CONNECTIONS: Final = 10
LANES: Final = 1


async def run_worker(settings: Settings, *, child: bool = False) -> None:
    """Work until asked to stop. A `child` also stops when its parent is gone. Exits with status 1 if a job dies."""
    assert settings.database_url is not None
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if child:
        end_with_parent()
    async with AsyncExitStack() as resources:
        loop = JobLoop(await _make_jobs(settings, settings.database_url, resources))
        try:
            await loop.run(stopping)
        except JobDiedError:
            raise SystemExit(1) from None


async def _make_jobs(settings: Settings, url: str, resources: AsyncExitStack) -> list[Job]:
    """All jobs of this installation. `resources` closes what they use, the last opened first."""
    pool = await db.create_pool(url, CONNECTIONS)
    resources.push_async_callback(db.close_pool, pool)
    database = db.Database(pool)
    engine = Engine(url, LANES)
    engine.start()
    resources.push_async_callback(engine.close)
    relay = Relay(database, _make_channels(settings, database, engine, resources))
    resources.push_async_callback(relay.close)
    return [
        *_make_connected_jobs(url, resources),
        # A pass only starts deliveries, so repeating it at once would find the same targets.
        Job(name="relay", run=relay.run_once, interval_seconds=RELAY_SECONDS, drains=False),
        *_make_payment_jobs(settings, database, engine, resources),
    ]


def _make_channels(
    settings: Settings, database: db.Database, engine: Engine, resources: AsyncExitStack
) -> Mapping[str, Channel]:
    webhooks = WebhookChannel(database, allow_private=settings.webhooks_to_private_addresses)
    resources.push_async_callback(webhooks.close)
    channels: dict[str, Channel] = {WEBHOOK: webhooks}
    if settings.smtp_url:
        channels[EMAIL] = EmailChannel(database, engine, Smtp(settings.smtp_url), settings.email_from)
    return channels


def _make_connected_jobs(url: str, resources: AsyncExitStack) -> list[Job]:
    lane, plain = partial(db.connect_lane, url), partial(db.connect, url)
    reap = ConnectedRun(lane, Reaper().run_once)
    complete = ConnectedRun(plain, lambda connection: completer.run_once(db.Database(connection)))
    audit = ConnectedRun(plain, _audit)
    for run in (reap, complete, audit):
        resources.push_async_callback(run.close)
    return [
        Job(name="reaper", run=reap, interval_seconds=REAPER_SECONDS),
        Job(name="completer", run=complete, interval_seconds=COMPLETER_SECONDS),
        # Its items are findings, which another run would not put right.
        Job(name="auditor", run=audit, interval_seconds=AUDITOR_SECONDS, drains=False),
    ]


def _make_payment_jobs(
    settings: Settings, database: db.Database, engine: Engine, resources: AsyncExitStack
) -> list[Job]:
    providers = make_providers(settings, database)
    for provider in providers.values():
        resources.push_async_callback(provider.aclose)
    runs = {
        "inbox": Inbox(database, engine, providers).run_once,
        "refunds": Refunder(database, engine, providers).run_once,
        "reconciler": Reconciler(database, engine, providers).run_once,
    }
    jobs = [Job(name=name, run=run, interval_seconds=PAYMENTS_SECONDS) for name, run in runs.items()]
    sandbox = providers.get("sandbox")
    if isinstance(sandbox, Sandbox):
        jobs.append(Job(name="sandbox_notices", run=sandbox.send_due, interval_seconds=SANDBOX_SECONDS))
    return jobs


class ConnectedRun:
    """Runs a job on a connection of its own, and on a new one after an error."""

    def __init__(
        self, connect: Callable[[], Awaitable[db.Connection]], run: Callable[[db.Connection], Awaitable[int]]
    ) -> None:
        self._connect = connect
        self._run = run
        self._connection: db.Connection | None = None

    async def __call__(self) -> int:
        self._connection = self._connection or await self._connect()
        try:
            return await self._run(self._connection)
        except BaseException:
            # The connection may be in the middle of something.
            self._connection.terminate()
            self._connection = None
            raise

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


async def _audit(connection: db.Connection) -> int:
    return len(await auditor.run_once(db.Database(connection)))
