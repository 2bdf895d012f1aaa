"""Every alert fires when it should, and only then. `promtool` evaluates the rules as Prometheus does."""

import json
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

from holdfast.engine import auditor
from holdfast.worker import runner
from tests.support.programs import require_program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yaml"
RUNBOOK = ROOT / "docs/operating.md"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}

# A block of code, or a command to type.
ACTION = r"(?m)^\s*```|`(?:holdfast|curl|systemctl|docker|journalctl|redis-cli|iostat|df|PATCH|POST)[ `]"

Series = dict[str, str]


class Case(Struct, frozen=True, eq=False):
    """Series in promtool's notation, one value a minute, with which the alert fires and with which it does not."""

    alert: str
    firing: Series
    quiet: Series
    at: str = "30m"


def requests(bad_per_minute: int) -> Series:
    return {
        'holdfast_http_requests_total{operation="place_hold",status="201"}': "0+1000x70",
        'holdfast_http_requests_total{operation="place_hold",status="503"}': f"0+{bad_per_minute}x70",
    }


def attempts(busy: int, fallback: int) -> Series:
    return {
        'holdfast_hold_attempts_total{outcome="placed",path="redis"}': "0+1000x60",
        'holdfast_hold_attempts_total{outcome="busy",path="redis"}': f"0+{busy}x60",
        'holdfast_hold_attempts_total{outcome="placed",path="fallback"}': f"0+{fallback}x60",
    }


def conflicts(taken: int, placed: int, path: str = "postgres") -> Series:
    return {
        f'holdfast_hold_attempts_total{{outcome="seat_taken",path="{path}"}}': f"0+{taken}x60",
        f'holdfast_hold_attempts_total{{outcome="placed",path="{path}"}}': f"0+{placed}x60",
    }


def histogram(name: str, labels: str, slow_per_minute: int) -> Series:
    """A hundred values a minute below 25 ms, and some between 500 ms and a second."""
    comma = "," if labels else ""
    return {
        f'{name}_bucket{{{labels}{comma}le="0.025"}}': "0+100x60",
        f'{name}_bucket{{{labels}{comma}le="0.5"}}': "0+100x60",
        f'{name}_bucket{{{labels}{comma}le="1"}}': f"0+{100 + slow_per_minute}x60",
        f'{name}_bucket{{{labels}{comma}le="+Inf"}}': f"0+{100 + slow_per_minute}x60",
    }


def job(name: str, last_minutes: int) -> Series:
    """A job that succeeds every minute for so many minutes, and never again."""
    series = f'holdfast_job_last_success_timestamp_seconds{{job_name="{name}"}}'
    return {series: f"0+60x{last_minutes} {last_minutes * 60}x60"}


def transitions(expired: int) -> Series:
    return {
        'holdfast_booking_transitions_total{status="held"}': "0+10x120",
        'holdfast_booking_transitions_total{status="expired"}': f"0+{expired}x120",
    }


def gauge(name: str, value: float, labels: str = "") -> Series:
    return {f"{name}{{{labels}}}": f"{value}x70"}


def appearing(name: str, per_minute: int) -> Series:
    """A counter that does not exist for twenty minutes, because nothing has happened so far."""
    return {name: f"_x20 {per_minute}+{per_minute}x50"}


def still(*names: str) -> Series:
    """Counters that no longer rise, so that the ratio of their rates is NaN."""
    return dict.fromkeys(names, "7x120")


def deliveries(channel: str, delivered: int, postponed: int) -> Series:
    name = "holdfast_deliveries_total"
    return {
        f'{name}{{channel="{channel}",result="delivered"}}': f"0+{delivered}x60",
        f'{name}{{channel="{channel}",result="postponed"}}': f"0+{postponed}x60",
    }


HELD, EXPIRED = (f'holdfast_booking_transitions_total{{status="{status}"}}' for status in ("held", "expired"))
PLACED = 'holdfast_hold_attempts_total{outcome="placed",path="redis"}'
SERVED = 'holdfast_http_requests_total{operation="place_hold",status="201"}'
LIMITED = 'holdfast_rate_limited_requests_total{limit="address"}'
COMMANDS = 'holdfast_command_seconds_count{command="place_hold"}'


CASES = [
    Case(
        "HoldfastInvariantViolated",
        {"holdfast_audit_findings": "0x5 1x60"},
        gauge("holdfast_audit_findings", 0),
    ),
    Case(
        "HoldfastConstraintViolated",
        {"holdfast_invariant_violations_total": "0x20 1x60"},
        {"holdfast_invariant_violations_total": "0x70"},
    ),
    Case(
        "HoldfastAuditLate",
        gauge("holdfast_audit_oldest_seconds", 4000),
        gauge("holdfast_audit_oldest_seconds", 600),
    ),
    Case(
        "HoldfastDown",
        gauge("holdfast_processes", 1, 'kind="worker"'),
        gauge("holdfast_processes", 1, 'kind="api"'),
    ),
    Case(
        "HoldfastProcessUnreachable",
        gauge("up", 0, 'job="holdfast-worker",instance="a:9101"'),
        {**gauge("up", 1, 'job="holdfast-worker",instance="a:9101"'), **gauge("up", 0, 'job="node",instance="b:9100"')},
    ),
    Case(
        "HoldfastProcessRestarts",
        # It dies every five minutes. Its jobs look as if they had succeeded lately.
        {
            'holdfast_process_start_timestamp_seconds{kind="worker",instance="a"}': " ".join(
                f"{300 * number}x4" for number in range(20)
            )
        },
        # A deployment restarts four processes one after the other.
        {'holdfast_process_start_timestamp_seconds{kind="api",instance="a"}': "10x20 1200 1260 1320 1380x60"},
    ),
    Case("HoldfastReaperSilent", job("reaper", 20), job("reaper", 60)),
    Case("HoldfastRelaySilent", job("relay", 20), job("relay", 60)),
    Case(
        "HoldfastCriticalJobSilent",
        {**job("inbox", 20), **job("auditor", 60)},
        {**job("inbox", 60), **job("auditor", 20)},
    ),
    Case(
        "HoldfastFiguresSilent",
        {
            'holdfast_job_last_success_timestamp_seconds{job_name="figures",instance="a"}': "0+60x70",
            'holdfast_job_last_success_timestamp_seconds{job_name="figures",instance="b"}': "0+60x20 1200x60",
        },
        job("figures", 60),
    ),
    Case("HoldfastJobSilent", job("reconciler", 5), job("reconciler", 60)),
    Case(
        "HoldfastTaskDies",
        {'holdfast_task_failures_total{task="lane-1"}': "0+1x60"},
        {'holdfast_task_failures_total{task="lane-1"}': "0x10 1x60"},
    ),
    Case(
        "HoldfastEventLoopBlocked",
        histogram("holdfast_event_loop_lag_seconds", 'instance="a:8000"', 5),
        histogram("holdfast_event_loop_lag_seconds", 'instance="a:8000"', 0),
    ),
    Case(
        "HoldfastPoolExhausted",
        gauge("holdfast_database_pools_exhausted", 1, 'pool="reports",instance="a"'),
        gauge("holdfast_database_pools_exhausted", 0, 'pool="reports",instance="a"'),
    ),
    Case(
        "HoldfastErrorBudgetBurnsFast",
        requests(20),
        {**requests(1), 'holdfast_http_requests_total{operation="readyz",status="503"}': "0+100x70"},
    ),
    Case("HoldfastErrorBudgetBurnsSlowly", requests(10), requests(1), "35m"),
    Case("HoldfastHoldsFail", attempts(busy=20, fallback=0), attempts(busy=2, fallback=0)),
    Case(
        "HoldfastHoldsSlow",
        histogram("holdfast_command_seconds", 'command="place_hold"', 20),
        histogram("holdfast_command_seconds", 'command="place_hold"', 1),
    ),
    Case(
        "HoldfastLaneWait",
        histogram("holdfast_lane_wait_seconds", "", 20),
        histogram("holdfast_lane_wait_seconds", "", 1),
    ),
    Case(
        "HoldfastCommitsSlow", histogram("holdfast_commit_seconds", "", 20), histogram("holdfast_commit_seconds", "", 1)
    ),
    Case(
        "HoldfastLockTimeouts",
        {"holdfast_lock_timeouts_total": "0+10x60", 'holdfast_command_seconds_count{command="place_hold"}': "0+100x60"},
        {"holdfast_lock_timeouts_total": "0+1x60", 'holdfast_command_seconds_count{command="place_hold"}': "0+100x60"},
    ),
    Case(
        "HoldfastDatabaseExhausted",
        {'holdfast_batch_failures_total{reason="exhausted"}': "0x25 1x60"},
        {'holdfast_batch_failures_total{reason="conflict"}': "0+5x60"},
    ),
    Case(
        "HoldfastCommandsBreak",
        {'holdfast_batch_failures_total{reason="error"}': "0x25 1x60"},
        {'holdfast_batch_failures_total{reason="connection_lost"}': "0+5x60"},
    ),
    Case("HoldfastSeatConflicts", conflicts(1000, 700), {**conflicts(700, 1000), **conflicts(40, 50, "redis")}),
    Case(
        "HoldfastExtensionsFail",
        {'holdfast_hold_extensions_total{outcome="failed"}': "0+1x60"},
        {
            'holdfast_hold_extensions_total{outcome="failed"}': "0x60",
            'holdfast_hold_extensions_total{outcome="expired_before_checkout"}': "0+10x60",
        },
    ),
    Case("HoldfastReaperLags", gauge("holdfast_reaper_lag_seconds", 90), gauge("holdfast_reaper_lag_seconds", 2)),
    Case("HoldfastHoldsExpire", transitions(6), transitions(4)),
    Case("HoldfastEventNotEnded", gauge("holdfast_events_overdue", 1), gauge("holdfast_events_overdue", 0), "65m"),
    Case(
        "HoldfastRefundOverdue",
        gauge("holdfast_refunds_oldest_seconds", 5000),
        gauge("holdfast_refunds_oldest_seconds", 60),
    ),
    Case(
        "HoldfastPaymentInReview",
        gauge("holdfast_payments_in_review", 1),
        gauge("holdfast_payments_in_review", 0),
        "1h",
    ),
    Case(
        "HoldfastReviewOverdue",
        gauge("holdfast_receipts_oldest_seconds", 2000),
        gauge("holdfast_receipts_oldest_seconds", 900),
    ),
    Case(
        "HoldfastNoticesStuck",
        gauge("holdfast_payment_notices_oldest_seconds", 1000),
        # In a rush, some are always on their way.
        {**gauge("holdfast_payment_notices_waiting", 30), **gauge("holdfast_payment_notices_oldest_seconds", 5)},
    ),
    Case(
        "HoldfastDeliveriesLate",
        gauge("holdfast_deliveries_oldest_seconds", 1200, 'channel="email"'),
        {
            **gauge("holdfast_deliveries_oldest_seconds", 30, 'channel="email"'),
            # One org's endpoint is slow, and others get theirs.
            **gauge("holdfast_deliveries_oldest_seconds", 5000, 'channel="webhook"'),
            **deliveries("webhook", delivered=1, postponed=0),
        },
    ),
    Case(
        "HoldfastDeliveriesFail",
        deliveries("email", delivered=1, postponed=2),
        {**deliveries("email", delivered=20, postponed=2), **deliveries("webhook", delivered=0, postponed=9)},
    ),
    Case(
        "HoldfastTelegramLate",
        gauge("holdfast_telegram_messages_oldest_seconds", 700),
        {**gauge("holdfast_telegram_messages_waiting", 80), **gauge("holdfast_telegram_messages_oldest_seconds", 60)},
    ),
    Case(
        "HoldfastTelegramWithoutLeader",
        {
            **gauge("holdfast_telegram_bots", 5, 'instance="a"'),
            **gauge("holdfast_telegram_bots_led", 3, 'instance="a"'),
            **gauge("holdfast_telegram_bots_led", 1, 'instance="b"'),
        },
        # Bot processes run, and no bot is connected.
        {
            **gauge("holdfast_processes", 2, 'kind="bot"'),
            **gauge("holdfast_telegram_bots", 0),
            **gauge("holdfast_telegram_bots_led", 0),
        },
    ),
    Case("HoldfastRedisBreakerOpen", gauge("holdfast_redis_breaker_open", 1), gauge("holdfast_redis_breaker_open", 0)),
    Case("HoldfastRedisFallback", attempts(busy=0, fallback=100), attempts(busy=0, fallback=1)),
    Case(
        "HoldfastRedisDiffers",
        gauge("holdfast_gate_differences", 1, 'kind="free_in_database"'),
        gauge("holdfast_gate_differences", 9, 'kind="unknown_buyer"'),
    ),
    Case(
        "HoldfastRateLimits",
        {**requests(0), LIMITED: "0+500x60"},
        # Half of the few requests of a quiet site.
        {LIMITED: "0+60x60", SERVED: "0+60x60"},
    ),
]

# Series that exist only once something has happened, and ratios of nothing to nothing.
ABSENT = [
    Case(
        "HoldfastErrorBudgetBurnsFast",
        {SERVED: "0+100x70", **appearing('holdfast_http_requests_total{operation="place_hold",status="503"}', 100)},
        still(SERVED, 'holdfast_http_requests_total{operation="place_hold",status="503"}'),
    ),
    Case(
        "HoldfastHoldsFail",
        {PLACED: "0+100x60", **appearing('holdfast_hold_attempts_total{outcome="busy",path="redis"}', 50)},
        still(PLACED, 'holdfast_hold_attempts_total{outcome="busy",path="redis"}'),
    ),
    Case(
        "HoldfastLockTimeouts",
        {COMMANDS: "0+100x60", **appearing("holdfast_lock_timeouts_total", 50)},
        still(COMMANDS, "holdfast_lock_timeouts_total"),
    ),
    Case("HoldfastHoldsExpire", {HELD: "0+10x120", **appearing(EXPIRED, 60)}, still(HELD, EXPIRED), "50m"),
    Case(
        "HoldfastRedisFallback",
        {PLACED: "0+100x60", **appearing('holdfast_hold_attempts_total{outcome="placed",path="fallback"}', 50)},
        still(PLACED, 'holdfast_hold_attempts_total{outcome="placed",path="fallback"}'),
    ),
    Case("HoldfastRateLimits", {SERVED: "0+100x60", **appearing(LIMITED, 600)}, still(SERVED, LIMITED), "40m"),
    Case(
        "HoldfastDeliveriesFail",
        appearing('holdfast_deliveries_total{channel="email",result="postponed"}', 2),
        still(*deliveries("email", 0, 0)),
        "40m",
    ),
    # No worker has ever run.
    Case("HoldfastReaperSilent", gauge("up", 1), job("reaper", 60)),
    Case("HoldfastRelaySilent", gauge("up", 1), job("relay", 60)),
    # A worker whose job has failed since the start, of which a gauge knows only the start.
    Case("HoldfastReaperSilent", gauge("holdfast_job_last_success_timestamp_seconds", 60, 'job_name="reaper"'), {}),
    # Nobody sends webhooks at all.
    Case(
        "HoldfastDeliveriesLate",
        gauge("holdfast_deliveries_oldest_seconds", 1200, 'channel="webhook"'),
        gauge("holdfast_deliveries_waiting", 9, 'channel="webhook"'),
    ),
    Case(
        "HoldfastTelegramWithoutLeader", gauge("holdfast_telegram_bots", 1) | gauge("holdfast_telegram_bots_led", 0), {}
    ),
    Case("HoldfastFiguresSilent", job("figures", 5), gauge("up", 1)),
]


def test_every_alert_has_a_case() -> None:
    assert sorted(case.alert for case in CASES) == sorted(ALERTS)
    assert {case.alert for case in ABSENT} <= set(ALERTS)


def test_the_rules_are_valid() -> None:
    promtool = require_program("promtool", "prometheus")
    result = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_fires_when_it_should(tmp_path: Path) -> None:
    assert fired({case: case.firing for case in CASES}, tmp_path) == sorted(ALERTS)


def test_no_alert_fires_when_it_should_not(tmp_path: Path) -> None:
    assert fired({case: case.quiet for case in CASES}, tmp_path) == []


def test_alerts_fire_for_series_that_did_not_exist_before(tmp_path: Path) -> None:
    assert fired({case: case.firing for case in ABSENT}, tmp_path) == sorted(case.alert for case in ABSENT)


def test_no_alert_fires_for_a_ratio_of_nothing_to_nothing(tmp_path: Path) -> None:
    assert fired({case: case.quiet for case in ABSENT if case.quiet}, tmp_path) == []


def test_a_silent_worker_is_reported_after_two_minutes(tmp_path: Path) -> None:
    alerts = {"reaper": "HoldfastReaperSilent", "relay": "HoldfastRelaySilent"}
    cases = [Case(alert, job(name, 3), job(name, 4), "5m15s") for name, alert in alerts.items()]
    assert fired({case: case.firing for case in cases}, tmp_path, "15s") == sorted(alerts.values())
    assert fired({case: case.quiet for case in cases}, tmp_path, "15s") == []


def fired(series: Mapping[Case, Series], folder: Path, evaluation_interval: str = "1m") -> list[str]:
    """Claim for each case that its alert does not fire, and let promtool contradict."""
    promtool = require_program("promtool", "prometheus")
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in of_case.items()],
            "alert_rule_test": [{"eval_time": case.at, "alertname": case.alert, "exp_alerts": []}],
        }
        for case, of_case in series.items()
    ]
    file = folder / "test.json"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": evaluation_interval, "tests": tests})
    )
    result = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=120)
    output = result.stdout + result.stderr
    contradicted = sorted(re.findall(r"alertname: (\w+)", output))
    assert bool(contradicted) == (result.returncode != 0), output
    return contradicted


def test_a_busy_auditor_succeeds_twice_before_it_counts_as_silent() -> None:
    silent = re.search(r'job_name="auditor"}\) > (\d+)', ALERTS["HoldfastCriticalJobSilent"]["expr"])
    assert silent is not None
    assert int(silent[1]) > 2 * (auditor.RUN_SECONDS + runner.AUDITOR_SECONDS)


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_names_its_section_of_the_runbook(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert ROOT / page == RUNBOOK
    assert anchor == alert.lower()
    assert re.search(ACTION, sections()[anchor]) or any(
        re.search(ACTION, sections()[link]) for link in re.findall(r"\]\(#([\w-]+)\)", sections()[anchor])
    ), f"the section about {alert} has no command and no query, and links to no section that has one"


@cache
def sections() -> dict[str, str]:
    """The text of each section of the runbook, by its anchor."""
    parts = re.split(r"^#{2,4} (.*)\n", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    return {title.lower().replace(" ", "-"): text for title, text in zip(parts[::2], parts[1::2], strict=True)}
