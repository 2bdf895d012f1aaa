"""What `holdfast top` shows: the differences between two samples, per second."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from holdfast.core.states import Status
from holdfast.runtime import ids
from holdfast.top.database_sample import DatabaseSample, EventActivity
from holdfast.top.metrics_sample import MetricsSample

ATTEMPTS: Final = "holdfast_hold_attempts_total"
BUCKETS: Final = "holdfast_command_seconds_bucket"
PLACE_HOLD: Final = "place_hold"
# Outcomes of holds that are no refusals.
GRANTED: Final = frozenset({"placed", "replayed"})


class Rates(Struct, frozen=True, kw_only=True):
    """Per second."""

    holds: float
    confirmed: float
    expired: float


class EventFigures(Struct, frozen=True, kw_only=True):
    """`expiring_soon` and `overdue` count holds, up to 200 each."""

    event: str
    title: str
    capacity: int
    held: int
    sold: int
    expiring_soon: int
    overdue: int
    changes: int
    rates: Rates


class ServerFigures(Struct, frozen=True, kw_only=True):
    """What API processes report. Latencies are those of holds since the last look, or since the processes started if
    there was none. Fields are None if the processes do not report them."""

    attempts_per_second: float | None
    refusals_per_second: dict[str, float]
    p50_ms: float | None
    p95_ms: float | None
    queue_depth: float | None
    breakers_open: float | None
    live_sockets: float | None
    audit_findings: float | None
    # How long ago each job of the workers succeeded.
    job_ages_seconds: dict[str, float]


class Figures(Struct, frozen=True, kw_only=True):
    """`other_changes` counts what happened in events that are not listed. `servers` is None if there are no metrics,
    and `missing` says why."""

    at: datetime
    seconds: float
    rates: Rates
    events: list[EventFigures]
    events_on_sale: int
    other_changes: int
    deliveries_waiting: int
    refunds_due: int
    lanes: int
    other_connections: int
    servers: ServerFigures | None
    missing: list[str]


def make_figures(
    sample: DatabaseSample,
    before: MetricsSample | None,
    now: MetricsSample | None,
    missing: list[str],
) -> Figures:
    """Compare this sample with the one before, which was taken `sample.seconds` earlier."""
    events = [_make_event(event, sample.seconds) for event in sample.events]
    backlog = sample.backlog
    return Figures(
        at=backlog.at,
        seconds=sample.seconds,
        rates=Rates(
            holds=sum(event.rates.holds for event in events),
            confirmed=sum(event.rates.confirmed for event in events),
            expired=sum(event.rates.expired for event in events),
        ),
        events=events,
        events_on_sale=sample.watched,
        other_changes=sample.other_changes,
        deliveries_waiting=backlog.deliveries_waiting,
        refunds_due=backlog.refunds_due,
        lanes=backlog.lanes,
        other_connections=backlog.other_connections,
        servers=_make_servers(before, now, sample.seconds, backlog.at) if now is not None else None,
        missing=missing,
    )


def _make_event(activity: EventActivity, seconds: float) -> EventFigures:
    stock, kinds = activity.stock, activity.kinds
    return EventFigures(
        event=ids.format_event_id(stock.id),
        title=stock.title,
        capacity=stock.capacity,
        held=stock.held,
        sold=stock.sold,
        expiring_soon=stock.expiring_soon,
        overdue=stock.overdue,
        changes=activity.changes,
        rates=Rates(
            holds=kinds.get(Status.HELD, 0) / seconds,
            confirmed=kinds.get(Status.CONFIRMED, 0) / seconds,
            expired=kinds.get(Status.EXPIRED, 0) / seconds,
        ),
    )


def _make_servers(before: MetricsSample | None, now: MetricsSample, seconds: float, at: datetime) -> ServerFigures:
    attempts: dict[str, float] = {}
    if before is not None:
        earlier = before.by_label(ATTEMPTS, "outcome")
        attempts = {
            outcome: _growth(earlier.get(outcome, 0), count) / seconds
            for outcome, count in now.by_label(ATTEMPTS, "outcome").items()
        }
    buckets = _bucket_growth(before, now)
    return ServerFigures(
        attempts_per_second=sum(attempts.values()) if before is not None else None,
        refusals_per_second={code: rate for code, rate in attempts.items() if code not in GRANTED and rate > 0},
        p50_ms=_quantile_ms(buckets, 0.5),
        p95_ms=_quantile_ms(buckets, 0.95),
        queue_depth=now.total("holdfast_lane_queue_depth"),
        breakers_open=now.total("holdfast_redis_breaker_open"),
        live_sockets=now.total("holdfast_live_sockets"),
        audit_findings=now.total("holdfast_audit_findings"),
        job_ages_seconds=_job_ages(now, at),
    )


def _growth(before: float, now: float) -> float:
    """A counter that has fallen started again from zero, because its process did."""
    return now - before if now >= before else now


def _bucket_growth(before: MetricsSample | None, now: MetricsSample) -> dict[float, float]:
    """How many holds took at most so many seconds, since the sample before or since the start."""
    totals = _buckets(now)
    if before is None:
        return totals
    earlier = _buckets(before)
    return {bound: _growth(earlier.get(bound, 0), count) for bound, count in totals.items()}


def _buckets(sample: MetricsSample) -> dict[float, float]:
    found: dict[float, float] = {}
    for labels, count in sample.values.get(BUCKETS, {}).items():
        has = dict(labels)
        if has.get("command") == PLACE_HOLD:
            found[float(has["le"])] = found.get(float(has["le"]), 0) + count
    return dict(sorted(found.items()))


def _quantile_ms(buckets: Mapping[float, float], quantile: float) -> float | None:
    """Interpolated within its bucket, as Prometheus does. In the last bucket, which has no end, its start."""
    total = max(buckets.values(), default=0)
    if not total:
        return None
    rank, start, below = quantile * total, 0.0, 0.0
    for bound, count in buckets.items():
        if count >= rank:
            if bound == float("inf"):
                break
            share = (rank - below) / (count - below) if count > below else 1.0
            return (start + (bound - start) * share) * 1000
        start, below = bound, count
    return start * 1000


def _job_ages(sample: MetricsSample, at: datetime) -> dict[str, float]:
    """Of several workers, the one that succeeded last counts."""
    latest: dict[str, float] = {}
    for labels, timestamp in sample.values.get("holdfast_job_last_success_timestamp_seconds", {}).items():
        has = dict(labels)
        name = has.get("job_name") or has.get("job") or ""
        latest[name] = max(latest.get(name, 0.0), timestamp)
    return {name: max(0.0, at.timestamp() - timestamp) for name, timestamp in sorted(latest.items()) if timestamp}
