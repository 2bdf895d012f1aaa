"""Every metric of Holdfast. Names and labels are an interface: docs/metrics.md describes them, and a test compares it
with this module.

Labels have few values. No label names an org, an event, a booking or a person: those figures belong to the live
dashboard.
"""

from typing import Final, Protocol

from holdfast.core.notification_rules import BUSES, EMAIL, PUSH, RECOVERY, SMS, WEBHOOK
from holdfast.core.payment import PaymentStatus
from holdfast.core.states import Status
from holdfast.runtime.instruments import MINUTES, POWERS_OF_TWO, CountedHistogram, Counter, Gauge, Histogram, Instrument

# How a hold reached its decision: Redis was asked; there is no Redis, or no need to ask it; Redis could not answer.
REDIS: Final = "redis"
POSTGRES: Final = "postgres"
FALLBACK: Final = "fallback"

# Units that were sold without a hold.
CONFIRMED_AT_ONCE: Final = "confirmed_at_once"

# Requests
HTTP_REQUESTS: Final = Counter("holdfast_http_requests", "Requests by operation and status.", "operation", "status")
HTTP_REQUEST_SECONDS: Final = CountedHistogram(
    "holdfast_http_request_seconds",
    "Time from a request to its response, by operation.",
    "operation",
    counter=HTTP_REQUESTS,
)
RATE_LIMITED: Final = Counter(
    "holdfast_rate_limited_requests",
    "Requests that a rate limit refused, by what it limits.",
    "limit",
    initial=[("key",), ("user",), ("address",), ("refused",)],
)
LIVE_SOCKETS: Final = Gauge("holdfast_live_sockets", "Open WebSockets of the live feed.", combination="livesum")

# Holds and other commands
HOLD_ATTEMPTS: Final = Counter(
    "holdfast_hold_attempts",
    "Holds that buyers asked for, by outcome and by the path that decided them.",
    "outcome",
    "path",
    initial=[
        ("placed", POSTGRES),
        ("placed", FALLBACK),
        ("sold_out", POSTGRES),
        ("seat_taken", POSTGRES),
        *((outcome, path) for outcome in ("busy", "internal") for path in (REDIS, POSTGRES, FALLBACK)),
    ],
)
HOLD_EXTENSIONS: Final = Counter(
    "holdfast_hold_extensions",
    "Holds that were extended, and extensions that were refused, by outcome.",
    "outcome",
    initial=[("extended",), ("expired_before_checkout",), ("refused",), ("failed",)],
)
COMMAND_SECONDS: Final = Histogram(
    "holdfast_command_seconds", "Time from a command to its outcome: queue, lock, decision and commit.", "command"
)
LANE_WAIT_SECONDS: Final = Histogram(
    "holdfast_lane_wait_seconds", "How long the oldest command of each batch waited in its lane."
)
LANE_QUEUE_DEPTH: Final = Gauge("holdfast_lane_queue_depth", "Commands that wait in the lanes.", combination="livesum")
BATCH_COMMANDS: Final = Histogram("holdfast_batch_commands", "Commands per batch.", bounds=POWERS_OF_TWO)
COMMIT_SECONDS: Final = Histogram("holdfast_commit_seconds", "Time that PostgreSQL takes to commit changes.")
LOCK_TIMEOUTS: Final = Counter("holdfast_lock_timeouts", "Commands refused because their event stayed locked.")
BATCH_FAILURES: Final = Counter(
    "holdfast_batch_failures",
    "Batches that did not commit at the first attempt, by reason.",
    "reason",
    initial=[("connection_lost",), ("conflict",), ("error",), ("exhausted",)],
)
INVARIANT_VIOLATIONS: Final = Counter(
    "holdfast_invariant_violations",
    "Transactions that a constraint or a check has kept from breaking a promise. Must be 0.",
)

# What was committed
TRANSITIONS: Final = Counter(
    "holdfast_booking_transitions",
    "Bookings that came into a status.",
    "status",
    initial=[(status.value,) for status in Status],
)
TRANSFERS: Final = Counter("holdfast_booking_transfers", "Bookings that staff transferred to another person.")
PAYMENTS: Final = Counter(
    "holdfast_payments",
    "Payments that came into a status.",
    "status",
    initial=[(status.value,) for status in PaymentStatus],
)
UNITS: Final = Counter(
    "holdfast_units",
    "Units that were held, and units that were sold.",
    "status",
    initial=[("held",), ("confirmed",), (CONFIRMED_AT_ONCE,)],
)
TIME_TO_PAYMENT: Final = Histogram(
    "holdfast_time_to_payment_seconds", "Time from a hold to its payment or receipt.", bounds=MINUTES
)
TIME_TO_REVIEW: Final = Histogram(
    "holdfast_time_to_review_seconds", "Time from a receipt to its approval or rejection.", bounds=MINUTES
)

# Figures that a worker reads from the database
LIVE_HOLDS: Final = Gauge("holdfast_live_holds", "Holds that have not expired.")
REAPER_LAG: Final = Gauge(
    "holdfast_reaper_lag_seconds", "How long the oldest expired hold has waited for a worker to record it."
)
RECEIPTS_WAITING: Final = Gauge("holdfast_receipts_waiting", "Receipts that wait for review.")
RECEIPTS_OLDEST: Final = Gauge("holdfast_receipts_oldest_seconds", "Age of the oldest receipt that waits for review.")
REFUNDS_DUE: Final = Gauge("holdfast_refunds_due", "Refunds that the provider has not made yet.")
REFUNDS_OLDEST: Final = Gauge("holdfast_refunds_oldest_seconds", "Age of the oldest refund that is due.")
PAYMENTS_IN_REVIEW: Final = Gauge("holdfast_payments_in_review", "Payments that wait for a person.")
NOTICES_WAITING: Final = Gauge(
    "holdfast_payment_notices_waiting", "Webhook events of payment providers that have not taken effect."
)
NOTICES_OLDEST: Final = Gauge(
    "holdfast_payment_notices_oldest_seconds",
    "Age of the oldest webhook event of a payment provider that has not taken effect.",
)
DELIVERIES_WAITING: Final = Gauge(
    "holdfast_deliveries_waiting", "Notifications that wait, by channel, each counted up to 100,000.", "channel"
)
DELIVERIES_OLDEST: Final = Gauge(
    "holdfast_deliveries_oldest_seconds",
    "How long a notification that nobody has tried to send has been due, by channel.",
    "channel",
)
EVENTS_OVERDUE: Final = Gauge(
    "holdfast_events_overdue",
    "Events still on sale a day after their end, or for a week after their start if they have no end.",
)
AUDIT_FINDINGS: Final = Gauge(
    "holdfast_audit_findings", "Violations of an invariant that the auditor has found. Must be 0."
)
AUDIT_OLDEST: Final = Gauge(
    "holdfast_audit_oldest_seconds", "How long the oldest change of an event has waited for its audit."
)
TELEGRAM_MESSAGES_WAITING: Final = Gauge(
    "holdfast_telegram_messages_waiting", "Telegram messages and edits that are due."
)
TELEGRAM_MESSAGES_OLDEST: Final = Gauge(
    "holdfast_telegram_messages_oldest_seconds", "Age of the oldest message that the bot has not sent yet."
)

# Notifications
DELIVERIES: Final = Counter(
    "holdfast_deliveries",
    "Attempts to deliver a notification, by channel and result.",
    "channel",
    "result",
    initial=[
        (channel, result)
        for channel in (EMAIL, RECOVERY, SMS, PUSH, WEBHOOK, *BUSES)
        for result in ("delivered", "postponed", "failed")
    ],
)

# Redis
BREAKER_OPEN: Final = Gauge(
    "holdfast_redis_breaker_open", "Processes whose circuit breaker for Redis is not closed.", combination="livesum"
)
BREAKER_OPENED: Final = Counter("holdfast_redis_breaker_opened", "How often a circuit breaker has opened.")
GATE_DIFFERENCES: Final = Gauge(
    "holdfast_gate_differences", "Entries in Redis that disagree with PostgreSQL, by kind.", "kind"
)

# Processes
POOL_CONNECTIONS: Final = Gauge(
    "holdfast_database_pool_connections",
    "Connections of the pools to PostgreSQL, by pool and state.",
    "pool",
    "state",
    combination="livesum",
)
POOLS_EXHAUSTED: Final = Gauge(
    "holdfast_database_pools_exhausted",
    "Processes that use every connection of a pool, by pool.",
    "pool",
    combination="livesum",
)
LOOP_LAG_SECONDS: Final = Histogram(
    "holdfast_event_loop_lag_seconds", "How late the event loop runs a timer, fifty times a second."
)
TASK_FAILURES: Final = Counter("holdfast_task_failures", "Long-lived tasks that died and were restarted.", "task")
# Prometheus has a label `job` of its own.
JOB_RUNS: Final = Counter("holdfast_job_runs", "Runs of background jobs, by result.", "job_name", "result")
JOB_ITEMS: Final = Counter("holdfast_job_items", "Items that background jobs worked on.", "job_name")
JOB_LAST_SUCCESS: Final = Gauge(
    "holdfast_job_last_success_timestamp_seconds",
    "When a background job last succeeded, or when its worker started, in seconds since 1970.",
    "job_name",
)
PROCESSES: Final = Gauge(
    "holdfast_processes", "Running processes, by kind and version.", "kind", "version", combination="livesum"
)
PROCESS_STARTED: Final = Gauge(
    "holdfast_process_start_timestamp_seconds",
    "When the newest process of this kind started, in seconds since 1970.",
    "kind",
)

# Telegram
TELEGRAM_UPDATES: Final = Counter(
    "holdfast_telegram_updates",
    "Telegram updates, by result.",
    "result",
    initial=[("handled",), ("failed",), ("given_up",)],
)
TELEGRAM_MESSAGES: Final = Counter(
    "holdfast_telegram_messages",
    "Messages that the bot sent or edited, by result.",
    "result",
    initial=[("sent",), ("refused",), ("postponed",), ("failed",)],
)
TELEGRAM_FLOOD_WAITS: Final = Counter("holdfast_telegram_flood_waits", "How often Telegram asked the bot to slow down.")
TELEGRAM_BOTS: Final = Gauge("holdfast_telegram_bots", "Bots that are connected.")
TELEGRAM_BOTS_LED: Final = Gauge("holdfast_telegram_bots_led", "Bots that this process leads.", combination="livesum")


class ConnectionPool(Protocol):
    def get_size(self) -> int: ...
    def get_idle_size(self) -> int: ...
    def get_max_size(self) -> int: ...


def follow_pool(name: str, pool: ConnectionPool) -> None:
    """Let the gauges follow a pool of connections."""

    def count_used() -> int:
        return pool.get_size() - pool.get_idle_size()

    POOL_CONNECTIONS.follow(count_used, name, "used")
    POOL_CONNECTIONS.follow(pool.get_idle_size, name, "idle")
    POOLS_EXHAUSTED.follow(lambda: count_used() >= pool.get_max_size(), name)


ALL: Final[list[Instrument]] = [value for value in list(globals().values()) if isinstance(value, Instrument)]
