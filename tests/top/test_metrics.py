"""Figures from the metrics of API processes: what happened between two looks, over all servers."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from threading import Thread

import pytest
from rich.console import Console

from holdfast.top.database_sample import Backlog, DatabaseSample, EventActivity, EventStock
from holdfast.top.figures import Figures, ServerFigures, make_figures
from holdfast.top.metrics_sample import MetricsSample, MetricsSampler, add_up, parse
from holdfast.top.screen import render
from tests.support.harness import free_port

AT = datetime(2027, 3, 5, 18, tzinfo=UTC)
TOKEN = "of-the-metrics"


def metrics_text(placed: int, taken: int, busy: int, fast: int, slow: int, breakers: int = 0) -> str:
    """The metrics of one server. `fast` holds took up to 10 ms, and `slow` ones up to 100 ms."""
    return f"""\
# HELP holdfast_hold_attempts_total Holds that buyers asked for.
# TYPE holdfast_hold_attempts_total counter
holdfast_hold_attempts_total{{outcome="placed",path="postgres"}} {placed}
holdfast_hold_attempts_total{{outcome="replayed",path="postgres"}} 1
holdfast_hold_attempts_total{{outcome="seat_taken",path="redis"}} {taken}
holdfast_hold_attempts_total{{outcome="seat_taken",path="fallback"}} {taken}
holdfast_hold_attempts_total{{outcome="busy",path="postgres"}} {busy}
# HELP holdfast_command_seconds Time from a command to its outcome.
# TYPE holdfast_command_seconds histogram
holdfast_command_seconds_bucket{{command="place_hold",le="0.01"}} {fast}
holdfast_command_seconds_bucket{{command="place_hold",le="0.1"}} {fast + slow}
holdfast_command_seconds_bucket{{command="place_hold",le="+Inf"}} {fast + slow}
holdfast_command_seconds_bucket{{command="confirm",le="0.01"}} 0
holdfast_command_seconds_bucket{{command="confirm",le="0.1"}} 0
holdfast_command_seconds_bucket{{command="confirm",le="+Inf"}} 1000000
# HELP holdfast_lane_queue_depth Commands that wait in the lanes.
# TYPE holdfast_lane_queue_depth gauge
holdfast_lane_queue_depth 3
# TYPE holdfast_redis_breaker_open gauge
holdfast_redis_breaker_open {breakers}
# TYPE holdfast_live_sockets gauge
holdfast_live_sockets 40
# TYPE holdfast_audit_findings gauge
holdfast_audit_findings 2
# TYPE holdfast_job_last_success_timestamp_seconds gauge
holdfast_job_last_success_timestamp_seconds{{job_name="reaper"}} {AT.timestamp() - 7}
"""


FIRST = metrics_text(placed=100, taken=10, busy=5, fast=1_000, slow=1_000)
SECOND = metrics_text(placed=160, taken=25, busy=5, fast=1_090, slow=1_010)


def database_sample(seconds: float = 2, title: str = "Friday night") -> DatabaseSample:
    stock = EventStock(id=bytes(16), title=title, capacity=100, held=30, sold=50, expiring_soon=4, overdue=1)
    event = EventActivity(stock, 40, {"held": 30, "confirmed": 8, "extended": 2})
    return DatabaseSample(seconds, Backlog(AT, 12, 3, 8, 20), 7, [event], 9)


def compare(before: str | None, now: str, seconds: float = 2) -> ServerFigures:
    earlier = add_up(parse(before)) if before is not None else None
    figures = make_figures(database_sample(seconds), earlier, add_up(parse(now)), [])
    assert figures.servers is not None
    return figures.servers


def test_rates_are_differences_per_second() -> None:
    servers = compare(FIRST, SECOND)
    assert servers.attempts_per_second == (60 + 2 * 15) / 2
    assert servers.refusals_per_second == {"seat_taken": 15}


def test_the_first_look_has_no_rates() -> None:
    servers = compare(None, SECOND)
    assert servers.attempts_per_second is None
    assert servers.refusals_per_second == {}


def test_latencies_are_those_since_the_last_look() -> None:
    servers = compare(FIRST, SECOND)
    # 90 of 100 holds took up to 10 ms. The median is five ninths into that bucket, and p95 halfway into the next.
    assert servers.p50_ms == pytest.approx(10 * 50 / 90)
    assert servers.p95_ms == pytest.approx(10 + 90 * 0.5)


def test_a_latency_beyond_all_buckets_is_their_end() -> None:
    slow = FIRST.replace('command="place_hold",le="+Inf"} 2000', 'command="place_hold",le="+Inf"} 100000')
    assert compare(None, slow).p95_ms == 100


def test_without_holds_there_is_no_latency() -> None:
    assert compare(FIRST, FIRST).p50_ms is None


def test_a_counter_that_starts_again_counts_from_zero() -> None:
    assert compare(SECOND, metrics_text(placed=4, taken=0, busy=0, fast=4, slow=0)).refusals_per_second == {}
    assert compare(SECOND, metrics_text(placed=3, taken=0, busy=0, fast=4, slow=0)).attempts_per_second == 1.5


def test_servers_add_up_except_for_what_all_of_them_report() -> None:
    both = add_up([*parse(FIRST), *parse(metrics_text(1, 1, 1, 1, 1, breakers=2))])
    figures = make_figures(database_sample(), None, both, []).servers
    assert figures is not None
    assert (figures.queue_depth, figures.live_sockets, figures.breakers_open) == (6, 80, 2)
    assert figures.audit_findings == 2
    assert figures.job_ages_seconds == {"reaper": pytest.approx(7)}


def test_rates_of_events_come_from_the_journal() -> None:
    figures = make_figures(database_sample(seconds=4), None, None, [])
    assert figures.servers is None
    assert (figures.rates.holds, figures.rates.confirmed, figures.rates.expired) == (7.5, 2, 0)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        body = {"/metrics": FIRST, "/page/metrics": "<html>no metrics"}.get(self.path, "").encode()
        self.send_response(401 if not is_allowed else 200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


@pytest.fixture(scope="module")
def metrics_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def scrape(*urls: str, token: str | None = TOKEN) -> tuple[MetricsSample | None, list[str]]:
    async def run() -> tuple[MetricsSample | None, list[str]]:
        sampler = MetricsSampler(urls, token)
        try:
            return await sampler.sample()
        finally:
            await sampler.close()

    return asyncio.run(run())


def test_the_token_goes_to_every_server(metrics_url: str) -> None:
    sample, failures = scrape(metrics_url, f"{metrics_url}/metrics")
    assert failures == []
    assert sample is not None
    assert sample.total("holdfast_hold_attempts_total", outcome="placed") == 200


@pytest.mark.parametrize(
    ("path", "token", "reason"),
    [
        ("", None, "HOLDFAST_METRICS_TOKEN"),
        ("", "wrong", "HOLDFAST_METRICS_TOKEN"),
        ("/elsewhere", TOKEN, "has no metrics"),
        ("/page", TOKEN, "something other than metrics"),
    ],
)
def test_a_server_without_metrics_is_named_and_the_others_count(
    metrics_url: str, path: str, token: str | None, reason: str
) -> None:
    sample, (failure,) = scrape(metrics_url + path, token=token)
    assert sample is None
    assert reason in failure
    assert metrics_url in failure


def test_a_server_that_is_down_is_named_and_the_others_count(metrics_url: str) -> None:
    sample, (failure,) = scrape(f"http://127.0.0.1:{free_port()}", metrics_url)
    assert sample is not None
    assert "does not answer" in failure


def shown(figures: Figures) -> str:
    console = Console(width=160, file=StringIO(), record=True)
    console.print(render(figures))
    return console.export_text()


def test_the_screen_shows_every_figure() -> None:
    text = shown(make_figures(database_sample(), add_up(parse(FIRST)), add_up(parse(SECOND)), ["One is missing."]))
    for figure in ("15.0 holds/s", "4.0 confirmed/s", "Friday night", "80%", "12 notifications wait", "3 refunds due"):
        assert figure in text, figure
    for figure in ("p50 5.6 ms, p95 55.0 ms", "15.0 seat_taken", "3 commands wait", "no circuit breaker is open"):
        assert figure in text, figure
    for figure in ("40 sockets", "all 1 jobs run", "2 findings", "One is missing.", "9 changes in other events"):
        assert figure in text, figure


@pytest.mark.parametrize(("seconds", "text"), [(310, "all 2 jobs run"), (1_000, "gate_check last ran 1,000 s ago")])
def test_a_job_that_runs_every_five_minutes_is_late_after_three_runs(seconds: int, text: str) -> None:
    last = f'holdfast_job_last_success_timestamp_seconds{{job_name="gate_check"}} {AT.timestamp() - seconds}\n'
    assert text in shown(make_figures(database_sample(), None, add_up(parse(FIRST + last)), []))


def test_a_title_cannot_write_to_the_terminal() -> None:
    text = shown(make_figures(database_sample(title="\x1b]0;gone\x07[red]x\u202e"), None, None, []))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]x" in text
