"""The worker process: runs each job again and again, and goes on when one of them fails."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from typing import Final

import structlog

from holdfast.core.notifications import MAIL, WEBHOOK
from holdfast.engine import auditor
from holdfast.engine.engine import Engine
from holdfast.notifications.channel import Channel
from holdfast.notifications.email_channel import EmailChannel
from holdfast.notifications.relay import Relay
from holdfast.notifications.smtp import Smtp
from holdfast.notifications.webhook_channel import WebhookChannel
from holdfast.payments.inbox import Inbox
from holdfast.payments.reconciler import Reconciler
from holdfast.payments.refunds import Refunds
from holdfast.payments.registry import make_providers
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime import db
from holdfast.runtime.process_lifetime import end_with_parent
from holdfast.runtime.settings import Settings
from holdfast.worker import completer
from holdfast.worker.reaper import Reaper

log = structlog.get_logger()

REAP_SECONDS: Final = 1.0
MONEY_SECONDS: Final = 0.5
SANDBOX_SECONDS: Final = 0.25
COMPLETE_SECONDS: Final = 5.0
AUDIT_SECONDS: Final = 15.0

CONNECTIONS: Final = 10
LANES: Final = 1
SANDBOX_NOTICES_MAX: Final = 50

Job = Callable[[], Awaitable[object]]
ConnectedJob = Callable[[db.Connection], Awaitable[object]]
Connect = Callable[[str], Awaitable[db.Connection]]


async def run_worker(settings: Settings, *, child: bool = False) -> None:
    """Work until asked to stop. A `child` also stops when its parent is gone."""
    assert settings.database_url is not None
    url = settings.database_url
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if child:
        end_with_parent()
    pool = await db.create_pool(url, CONNECTIONS)
    engine = Engine(url, LANES)
    engine.start()
    webhooks = WebhookChannel(pool, allow_private=settings.webhooks_to_private_addresses)
    try:
        await asyncio.gather(
            _repeat_connected(url, Reaper().run_once, REAP_SECONDS, stopping),
            _repeat_connected(url, completer.run_once, COMPLETE_SECONDS, stopping, db.connect),
            _repeat_connected(url, _audit, AUDIT_SECONDS, stopping, db.connect),
            Relay(pool, _channels(settings, pool, engine, webhooks)).run(stopping),
            *_money(settings, pool, engine, stopping),
        )
    finally:
        await webhooks.close()
        await engine.close()
        await pool.close()


def _channels(settings: Settings, pool: db.Pool, engine: Engine, webhooks: WebhookChannel) -> Mapping[str, Channel]:
    channels: dict[str, Channel] = {WEBHOOK: webhooks}
    if settings.smtp_url:
        channels[MAIL] = EmailChannel(pool, engine, Smtp(settings.smtp_url), settings.mail_from)
    return channels


def _money(
    settings: Settings, pool: db.Pool, engine: Engine, stopping: asyncio.Event
) -> list[Coroutine[None, None, None]]:
    providers = make_providers(settings, pool)
    jobs = [job(pool, engine, providers) for job in (Inbox, Refunds, Reconciler)]
    running = [_repeat(job.run_once, MONEY_SECONDS, stopping) for job in jobs]
    sandbox = providers.get("sandbox")
    if isinstance(sandbox, Sandbox):
        running.append(_repeat(lambda: sandbox.send_due(SANDBOX_NOTICES_MAX), SANDBOX_SECONDS, stopping))
    return running


async def _audit(connection: db.Connection) -> None:
    """What is found is in the log and the database; it is no reason not to rest."""
    await auditor.run_once(connection)


async def _repeat(job: Job, seconds: float, stopping: asyncio.Event) -> None:
    """Run the job, then rest; where there was something to do there may be more, so then do not rest."""
    while not stopping.is_set():
        found: object = None
        try:
            found = await job()
        except Exception as error:
            log.error("job_failed", job=job.__qualname__, error=type(error).__name__)
        if not found:
            await _rest(seconds, stopping)


async def _repeat_connected(
    url: str, job: ConnectedJob, seconds: float, stopping: asyncio.Event, connect: Connect = db.connect_lane
) -> None:
    """The same for a job that has a connection to itself, and gets another when that one is lost."""
    connection: db.Connection | None = None

    @wraps(job)
    async def on_a_connection() -> object:
        nonlocal connection
        connection = connection or await connect(url)
        try:
            return await job(connection)
        except Exception:
            connection.terminate()
            connection = None
            raise

    await _repeat(on_a_connection, seconds, stopping)
    if connection is not None:
        await connection.close()


async def _rest(seconds: float, stopping: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return
