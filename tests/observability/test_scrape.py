"""A real Prometheus scrapes every kind of process, and finds every metric that the docs, rules and dashboard name."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from msgspec import Struct

from holdfast.api.operations import OPERATIONS
from holdfast.core.states import Verb
from holdfast.engine.command_metrics import COMMAND_NAMES
from holdfast.runtime import metrics
from holdfast.runtime.instruments import CountedHistogram, Counter, Gauge, Histogram, Instrument
from tests.support.bot_harness import Agency, running, stop
from tests.support.harness import (
    Org,
    Server,
    example_event,
    free_port,
    fresh_database,
    post_hold,
    publish_event,
    running_server_on,
    temporary_folder,
    wait_until,
)
from tests.support.http_assertions import expect_ok
from tests.support.programs import require_program
from tests.support.redis_process import running_redis
from tests.support.telegram_server import running_telegram_server

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-prometheus"
PATIENCE_SECONDS = 60
HOLDS = 12
# Of requests and commands that this test does not send.
LATER_VALUES: dict[str, set[str]] = {
    "status": {"500"},
    "command": {*COMMAND_NAMES.values(), *Verb},
    "operation": {operation.name for operation in OPERATIONS},
}
# Of a function and a role in the database.
OTHER_NAMES = {"holdfast_now", "holdfast_owner"}
KINDS: dict[type[Instrument], str] = {
    Counter: "counter",
    Gauge: "gauge",
    Histogram: "histogram",
    CountedHistogram: "histogram",
}


class Scraped(Struct, frozen=True):
    """A Prometheus that has scraped two API servers with two processes each, a worker and a bot."""

    url: str

    def ask(self, expression: str) -> list[dict[str, Any]]:
        response = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30)
        if response.status_code == 503:
            # It is still starting.
            return []
        result: list[dict[str, Any]] = expect_ok(response)["data"]["result"]
        return result

    def value(self, expression: str) -> float:
        found = self.ask(expression)
        return float(found[0]["value"][1]) if found else 0.0


@contextmanager
def running_prometheus(targets: dict[str, list[str]]) -> Iterator[Scraped]:
    """With our rules, and a target group per kind of process."""
    program = require_program("prometheus", "prometheus")
    port = free_port()
    with temporary_folder() as folder:
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ROOT / "deploy/prometheus/alerts.yaml")],
            "scrape_configs": [
                {
                    "job_name": name,
                    "authorization": {"credentials": TOKEN},
                    "static_configs": [{"targets": addresses}],
                }
                for name, addresses in targets.items()
            ],
        }
        file = folder / "prometheus.json"
        file.write_text(json.dumps(configuration))
        process = subprocess.Popen(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ]
        )
        try:
            yield Scraped(f"http://127.0.0.1:{port}")
        finally:
            stop(process)


@pytest.fixture(scope="module")
def scraped(postgres: str) -> Iterator[Scraped]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(postgres))
        redis = stack.enter_context(running_redis())
        settings = {"HOLDFAST_METRICS_TOKEN": TOKEN, "HOLDFAST_REDIS_URL": redis.url}
        ports = [free_port(), free_port()]
        servers = [stack.enter_context(running_server_on(port, url, environment=settings)) for port in ports]
        agency = Agency(stack.enter_context(running_telegram_server()), url)
        agency.connect()
        worker, bot = (f"127.0.0.1:{free_port()}" for _ in range(2))
        environment = {**agency.environment, **settings}
        stack.enter_context(running("worker", "--metrics", worker, env=environment))
        stack.enter_context(running("bot", "--metrics", bot, "--port", str(free_port()), env=environment))
        sell(Org(url), servers)
        addresses = [server.url.removeprefix("http://") for server in servers]
        targets = {"holdfast-api": addresses, "holdfast-worker": [worker], "holdfast-bot": [bot]}
        prometheus = stack.enter_context(running_prometheus(targets))
        wait_until(lambda: is_ready(prometheus), PATIENCE_SECONDS, 0.5)
        yield prometheus


def sell(org: Org, servers: list[Server]) -> None:
    """Holds through all servers, of which the last two ask for the same seat."""
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client(org.headers())) for server in servers]
        event = publish_event(clients[0], example_event())
        for number in range(HOLDS):
            items = [{"seat": f"A-{number % (HOLDS - 1) + 1}"}]
            response = post_hold(clients[number % 2], event, user=f"u-{number}", items=items)
            assert response.status_code == (201 if number < HOLDS - 1 else 409)
        expect_ok(clients[0].post(f"/v1/bookings/{list_bookings(clients[0])[0]}/confirm"))


def list_bookings(client: httpx.Client) -> list[str]:
    return [booking["id"] for booking in expect_ok(client.get("/v1/bookings"))["items"]]


def is_ready(prometheus: Scraped) -> bool:
    """Everything is up, and the worker has read its figures and led its bot."""
    try:
        return (
            prometheus.value('count(up{job=~"holdfast-.*"} == 1)') == 4
            and prometheus.value("sum(holdfast_processes)") == 6
            and prometheus.value("max(holdfast_live_holds)") == HOLDS - 2
            and prometheus.value("sum(holdfast_telegram_bots_led)") == 1
            and bool(prometheus.ask('holdfast_gate_differences{kind="missing"}'))
        )
    except httpx.TransportError:
        return False


def test_counts_of_all_processes_add_up(scraped: Scraped) -> None:
    assert scraped.value('sum(holdfast_hold_attempts_total{outcome="placed"})') == HOLDS - 1
    assert scraped.value('sum(holdfast_hold_attempts_total{outcome="seat_taken"})') == 1
    assert scraped.value('sum(holdfast_booking_transitions_total{status="held"})') == HOLDS - 1
    assert scraped.value('sum(holdfast_booking_transitions_total{status="confirmed"})') == 1
    assert scraped.value('sum(holdfast_http_requests_total{operation="place_hold",status="201"})') == HOLDS - 1
    assert scraped.value('sum(holdfast_command_seconds_count{command="confirm"})') == 1
    assert scraped.value('count(holdfast_job_last_success_timestamp_seconds{job_name="reaper"})') == 1
    assert scraped.value("max(holdfast_audit_findings)") == 0
    assert scraped.value("max(holdfast_telegram_bots)") == 1
    assert scraped.value("sum(holdfast_database_pools_exhausted)") == 0


def test_every_metric_exists_in_a_real_scrape(scraped: Scraped) -> None:
    found = {row["metric"]["__name__"] for row in scraped.ask('{__name__=~"holdfast_.+"}')}
    assert {name for each in metrics.ALL for name in series_names(each)} - found == set()


def test_rules_and_dashboard_use_only_metrics_that_exist(scraped: Scraped) -> None:
    exposed = {row["metric"]["__name__"] for row in scraped.ask('{__name__=~"holdfast_.+"}')}
    rules = (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    dashboard = (ROOT / "deploy/grafana/dashboards/holdfast.json").read_text()
    recorded = {rule.get("record") for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]} - {None}
    for text in (rules, dashboard):
        used = set(re.findall(r"\bholdfast_[a-z_]+", text))
        assert used
        assert used - exposed == set()
    assert set(re.findall(r"\bholdfast:[a-z_:0-9]+", rules)) == recorded


def test_labels_in_rules_and_dashboard_exist() -> None:
    labels = {label for each in metrics.ALL for label in each.labels} | {"le", "job", "instance"}
    for path in ("deploy/prometheus/alerts.yaml", "deploy/grafana/dashboards/holdfast.json"):
        text = (ROOT / path).read_text().replace('\\"', '"')
        named = re.findall(r"[{,](\w+)(?:=~|!~|!=|=)\"", text)
        grouped = [label for group in re.findall(r"\bby \(([^)]*)\)", text) for label in re.split(r",\s*", group)]
        assert {*named, *grouped} - labels == set(), path


def test_rules_and_dashboard_name_only_label_values_that_exist(scraped: Scraped) -> None:
    """A rule about a job that has another name by now would never fire, or always."""
    for path in ("deploy/prometheus/alerts.yaml", "deploy/grafana/dashboards/holdfast.json"):
        text = (ROOT / path).read_text().replace('\\"', '"')
        for label in ("job_name", "operation", "outcome", "path", "status", "command", "reason", "kind", "channel"):
            found = {row["metric"][label] for row in scraped.ask(f'count by ({label}) ({{{label}!=""}})')}
            found |= LATER_VALUES.get(label, set())
            named = re.findall(rf'[{{,]{label}(?:=~|!~|!=|=)"([^"]*)"', text)
            for value in (each for group in named for each in group.split("|")):
                assert any(re.fullmatch(value, each) for each in found), f'{path}: {label}="{value}"'


@pytest.mark.parametrize("instrument", metrics.ALL, ids=lambda each: each.name)
def test_every_metric_is_documented(instrument: Instrument) -> None:
    labels = ", ".join(f"`{label}`" for label in instrument.labels) or "\N{EN DASH}"
    row = f"| `{exposed_name(instrument)}` | {KINDS[type(instrument)]} | {labels} | "
    assert row in (ROOT / "docs/metrics.md").read_text()


def test_the_docs_name_no_other_metrics() -> None:
    exposed = {name for each in metrics.ALL for name in (exposed_name(each), *series_names(each))}
    for path in (ROOT / "docs").rglob("*.md"):
        assert set(re.findall(r"\bholdfast_[a-z_]+\b", path.read_text())) - exposed - OTHER_NAMES == set(), path


def exposed_name(instrument: Instrument) -> str:
    return f"{instrument.name}_total" if isinstance(instrument, Counter) else instrument.name


def series_names(instrument: Instrument) -> list[str]:
    if isinstance(instrument, Histogram):
        return [f"{instrument.name}_{part}" for part in ("bucket", "count", "sum")]
    return [exposed_name(instrument)]
