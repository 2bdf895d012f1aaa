"""The worker process: builds every background job, and runs them until it is asked to stop."""

import asyncio
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import structlog

from holdfast.core.notification_rules import EMAIL, PUSH, SMS, WEBHOOK
from holdfast.engine import auditor
from holdfast.engine.batch import CommitListener, notify_all
from holdfast.engine.engine import Engine
from holdfast.engine.engine_logs import EngineLogs
from holdfast.notifications.bus_registry import configured_buses, make_buses, registered_buses
from holdfast.notifications.bus_relay import BusRelay
from holdfast.notifications.channel import Channel
from holdfast.notifications.delivery_cleanup import DeliveryCleanup
from holdfast.notifications.email_channel import EmailChannel
from holdfast.notifications.hold_warnings import warn_of_ending_holds
from holdfast.notifications.push_services import PushServices
from holdfast.notifications.recovery_mailer import RecoveryMailer, delete_expired
from holdfast.notifications.relay import Relay
from holdfast.notifications.reminders import Reminders
from holdfast.notifications.sms_channel import SmsChannel
from holdfast.notifications.sms_countries import SmsCountries
from holdfast.notifications.smtp import Smtp
from holdfast.notifications.twilio import Twilio
from holdfast.notifications.webhook_channel import WebhookChannel
from holdfast.payments.inbox import Inbox
from holdfast.payments.reconciler import Reconciler
from holdfast.payments.refunds import Refunder
from holdfast.payments.registry import make_providers
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime import db, metrics
from holdfast.runtime.db import Row
from holdfast.runtime.exporter import FLUSH_SECONDS, Exporter
from holdfast.runtime.fair_queue import FairQueue
from holdfast.runtime.loop_lag import LoopLag
from holdfast.runtime.metrics_server import MetricsAddress, open_exporter
from holdfast.runtime.process_lifetime import end_with_parent
from holdfast.runtime.settings import Settings
from holdfast.runtime.tracing import close_tracing
from holdfast.worker.completer import Completer
from holdfast.worker.figures import Figures
from holdfast.worker.job import Job, JobDiedError, JobLoop
from holdfast.worker.reaper import Reaper
from holdfast.worker.series_jobs import SeriesJobs

log = structlog.get_logger()

REAPER_SECONDS: Final = 1.0
COMPLETER_SECONDS: Final = 5.0
AUDITOR_SECONDS: Final = 15.0
RELAY_SECONDS: Final = 0.25
QUEUES_SECONDS: Final = 0.5
CLEANUP_SECONDS: Final = 60.0
DELIVERY_CLEANUP_SECONDS: Final = 5.0
FIGURES_SECONDS: Final = 10.0
# The comparison reads all entries in Redis.
GATE_SECONDS: Final = 300.0
REMINDERS_SECONDS: Final = 30.0
HOLD_WARNINGS_SECONDS: Final = 1.0
SANDBOX_SECONDS: Final = 0.25
# The audit of a very large event takes minutes.
AUDIT_SECONDS: Final = 600.0

CONNECTIONS: Final = 10
BUS_CONNECTIONS: Final = 4
LANES: Final = 4


async def run_worker(settings: Settings, metrics_address: MetricsAddress | None = None, *, child: bool = False) -> None:
    """Work until asked to stop. A `child` also stops when its parent is gone. Exits with status 1 if a job dies."""
    assert settings.database_url is not None
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if child:
        end_with_parent()
    async with AsyncExitStack() as resources:
        resources.push_async_callback(close_tracing)
        loop_lag = LoopLag()
        loop_lag.start()
        resources.callback(loop_lag.stop)
        exporter = open_exporter("worker", settings, metrics_address, resources)
        jobs = await _make_jobs(settings, settings.database_url, resources)
        loop = JobLoop([*jobs, _make_metrics_job(exporter)] if exporter is not None else jobs)
        try:
            await loop.run(stopping)
        except JobDiedError:
            raise SystemExit(1) from None


async def _make_jobs(settings: Settings, url: str, resources: AsyncExitStack) -> list[Job]:
    """All jobs of this installation. `resources` closes what they use, the last opened first."""
    pool = await db.create_pool(url, CONNECTIONS)
    resources.push_async_callback(db.close_pool, pool)
    database = db.Database(pool)
    on_commit = await _listen_to_commits(settings, database, resources)
    engine = Engine(url, LANES, on_commit=on_commit)
    engine.start()
    resources.push_async_callback(engine.close)
    metrics.LANE_QUEUE_DEPTH.follow(lambda: engine.waiting)
    metrics.follow_pool("worker", pool)
    channels = _make_channels(settings, database, engine, resources)
    relay = Relay(database, channels, buses=await _make_bus_relays(settings, url, database, resources))
    resources.push_async_callback(relay.close)
    return [
        *await _make_event_jobs(settings, url, database, on_commit, resources),
        # A pass only starts deliveries, so repeating it at once would find the same targets.
        Job(name="relay", run=relay.run_once, interval_seconds=RELAY_SECONDS, drains=False),
        *_make_payment_jobs(settings, database, engine, resources),
        *_make_recovery_jobs(settings, database, resources),
        Job(name="figures", run=Figures(database, channels).run_once, interval_seconds=FIGURES_SECONDS),
        *_make_gate_jobs(settings, database),
        *_make_buyer_jobs(settings, database, frozenset(channels)),
    ]


def _make_gate_jobs(settings: Settings, database: db.Database) -> list[Job]:
    if settings.redis_url is None:
        return []
    # Its package is optional.
    from holdfast.worker.gate_check import GateCheck

    return [Job(name="gate_check", run=GateCheck(settings.redis_url, database).run_once, interval_seconds=GATE_SECONDS)]


def _make_metrics_job(exporter: Exporter) -> Job:
    async def flush() -> int:
        exporter.flush()
        return 0

    return Job(name="metrics", run=flush, interval_seconds=FLUSH_SECONDS)


async def _listen_to_commits(settings: Settings, database: db.Database, resources: AsyncExitStack) -> CommitListener:
    """Logs what the worker changes, and tells Redis, if there is one."""
    logs = EngineLogs(settings, database)
    await logs.start()
    resources.push_async_callback(logs.close)
    if settings.redis_url is None:
        return notify_all(logs.on_commit)
    # Its package is optional.
    from holdfast.gate.redis_layer import RedisLayer

    redis = RedisLayer(settings.redis_url, database)
    redis.start_writer()
    resources.push_async_callback(redis.close)
    return notify_all(redis.writer.add_batch, logs.on_commit)


def _make_channels(
    settings: Settings, database: db.Database, engine: Engine, resources: AsyncExitStack
) -> Mapping[str, Channel]:
    webhooks = WebhookChannel(database, allow_private=settings.webhooks_to_private_addresses)
    resources.push_async_callback(webhooks.close)
    channels: dict[str, Channel] = {WEBHOOK: webhooks}
    if settings.smtp_url:
        channels[EMAIL] = EmailChannel(database, engine, Smtp(settings.smtp_url), settings.email_from)
    if settings.sms_url:
        twilio = Twilio(settings.sms_url)
        resources.push_async_callback(twilio.close)
        channels[SMS] = SmsChannel(
            database,
            engine,
            twilio,
            settings.public_url,
            per_org=settings.sms_per_org,
            countries=SmsCountries(settings.sms_countries),
        )
    if settings.web_push:
        channels[PUSH] = _make_push_channel(settings, database, resources)
    return channels


async def _make_bus_relays(
    settings: Settings, url: str, database: db.Database, resources: AsyncExitStack
) -> Mapping[str, BusRelay]:
    """The relays of the buses that this worker can reach."""
    missing = set(await registered_buses(database)) - set(configured_buses(settings))
    for name in sorted(missing):
        log.warning("bus_not_configured", bus=name)
    buses = make_buses(settings)
    if not buses:
        return {}
    pool = await db.create_pool(url, BUS_CONNECTIONS, looks_up=True)
    resources.push_async_callback(db.close_pool, pool)
    metrics.follow_pool("bus", pool)
    for bus in buses.values():
        resources.push_async_callback(bus.close)
    return {name: BusRelay(db.Database(pool), name, bus, settings.public_url) for name, bus in buses.items()}


def _make_push_channel(settings: Settings, database: db.Database, resources: AsyncExitStack) -> Channel:
    # Its package is optional.
    from holdfast.notifications.push_channel import PushChannel

    push = PushChannel(database, settings.email_from, PushServices(settings.push_services))
    resources.push_async_callback(push.close)
    return push


async def _make_event_jobs(
    settings: Settings, url: str, database: db.Database, on_commit: CommitListener, resources: AsyncExitStack
) -> list[Job]:
    reaper = Reaper(partial(db.connect_lane, url), on_commit)
    resources.push_async_callback(reaper.close)
    audits = await db.create_pool(url, 1, command_seconds=AUDIT_SECONDS)
    resources.push_async_callback(db.close_pool, audits)
    return [
        _make_queue_job("series_jobs", SeriesJobs(database, settings.quotas).queue, resources),
        Job(name="reaper", run=reaper.run_once, interval_seconds=REAPER_SECONDS),
        Job(name="completer", run=Completer(database).run_once, interval_seconds=COMPLETER_SECONDS),
        # Its items are findings, which another run would not put right.
        Job(name="auditor", run=partial(_audit, audits), interval_seconds=AUDITOR_SECONDS, drains=False),
    ]


async def _audit(pool: db.Pool) -> int:
    return len(await auditor.run_once(db.Database(pool)))


def _make_payment_jobs(
    settings: Settings, database: db.Database, engine: Engine, resources: AsyncExitStack
) -> list[Job]:
    providers = make_providers(settings, database)
    for provider in providers.values():
        resources.push_async_callback(provider.aclose)
    jobs = [
        _make_queue_job("inbox", Inbox(database, engine, providers).queue, resources),
        _make_queue_job("refunds", Refunder(database, engine, providers).queue, resources),
        _make_queue_job("reconciler", Reconciler(database, engine, providers).queue, resources),
    ]
    sandbox = providers.get("sandbox")
    if isinstance(sandbox, Sandbox):
        jobs.append(Job(name="sandbox_notices", run=sandbox.send_due, interval_seconds=SANDBOX_SECONDS))
    return jobs


def _make_recovery_jobs(settings: Settings, database: db.Database, resources: AsyncExitStack) -> list[Job]:
    """Without a mail server, there is still something to delete if there used to be one."""
    cleanup = Job(name="recovery_cleanup", run=partial(delete_expired, database), interval_seconds=CLEANUP_SECONDS)
    if settings.smtp_url is None:
        return [cleanup]
    mailer = RecoveryMailer(database, Smtp(settings.smtp_url), settings.email_from, settings.public_url)
    return [_make_queue_job("recovery", mailer.queue, resources), cleanup]


def _make_buyer_jobs(settings: Settings, database: db.Database, channels: frozenset[str]) -> list[Job]:
    cleanup = DeliveryCleanup(database, channels)
    jobs = [
        Job(name="hold_warnings", run=partial(warn_of_ending_holds, database), interval_seconds=HOLD_WARNINGS_SECONDS),
        # After an upgrade, or when a channel is switched off, millions of rows may be too old. They are in no hurry.
        Job(name="delivery_cleanup", run=cleanup.run_once, interval_seconds=DELIVERY_CLEANUP_SECONDS, drains=False),
    ]
    if settings.reminder_hours and channels & {EMAIL, SMS}:
        reminders = Reminders(database, settings.reminder_hours, channels)
        jobs.append(Job(name="reminders", run=reminders.run_once, interval_seconds=REMINDERS_SECONDS))
    return jobs


def _make_queue_job(name: str, queue: FairQueue[Row], resources: AsyncExitStack) -> Job:
    resources.push_async_callback(queue.close)
    # A pass only starts work, so repeating it at once would find the same orgs.
    return Job(name=name, run=queue.run_once, interval_seconds=QUEUES_SECONDS, drains=False)
