"""Instruments and their export: what was recorded is what Prometheus reads, from one process and from several."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.runtime import metrics_access
from holdfast.runtime.exporter import FOLDER_VARIABLE, Exporter
from holdfast.runtime.instruments import CountedHistogram, Counter, Gauge, Histogram
from holdfast.runtime.metrics_server import CONNECTIONS_MAX, CannotListenError, MetricsAddress, MetricsServer
from tests.support.command_line import run_holdfast
from tests.support.harness import free_port


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """The value of each series by its name and labels."""
    # A child process must not import the package before it has chosen its folder.
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_counter_adds_up_over_several_flushes() -> None:
    counter = Counter("things", "Things.", "kind", initial=[("quiet",)])
    exporter = Exporter("test", [counter])
    counter.add("busy")
    exporter.flush()
    counter.add("busy", count=2)
    exporter.flush()
    exporter.flush()
    found = samples(exporter.render())
    assert found["things_total", "busy"] == 3
    assert found["things_total", "quiet"] == 0


def test_a_gauge_has_its_last_value_or_that_of_the_function_it_follows() -> None:
    level, followed = Gauge("level", "Level."), Gauge("followed", "Followed.", "of")
    queue = [1, 2]
    followed.follow(lambda: len(queue), "queue")
    exporter = Exporter("test", [level, followed])
    level.set(4)
    exporter.flush()
    level.set(3)
    queue.append(3)
    exporter.flush()
    found = samples(exporter.render())
    assert found["level",] == 3
    assert found["followed", "queue"] == 3


def test_a_histogram_counts_values_as_prometheus_client_does() -> None:
    histogram = Histogram("seconds", "Seconds.", "of", bounds=(0.1, 1.0))
    values = (0.05, 0.1, 0.100001, 1.0, 5.0)
    exporter = Exporter("test", [histogram])
    for value in values:
        histogram.observe(value, "x")
    exporter.flush()
    found = samples(exporter.render())
    assert found["seconds_bucket", "0.1", "x"] == 2
    assert found["seconds_bucket", "1.0", "x"] == 4
    assert found["seconds_bucket", "+Inf", "x"] == 5
    assert found["seconds_count", "x"] == 5
    assert found["seconds_sum", "x"] == pytest.approx(sum(values))


def test_a_counted_histogram_counts_its_values_by_more_labels_than_it_has() -> None:
    answers = Counter("answers", "Answers.", "of", "status")
    histogram = CountedHistogram("seconds", "Seconds.", "of", counter=answers)
    exporter = Exporter("test", [answers, histogram])
    for value, status in ((0.001, 200), (0.002, 200), (9.0, 404)):
        histogram.observe(value, "x", status)
    histogram.observe(0.001, "y", 200)
    exporter.flush()
    found = samples(exporter.render())
    assert (found["answers_total", "x", "200"], found["answers_total", "x", "404"]) == (2, 1)
    assert (found["seconds_count", "x"], found["seconds_count", "y"]) == (3, 1)
    assert (found["seconds_bucket", "0.001", "x"], found["seconds_bucket", "+Inf", "x"]) == (1, 3)
    assert found["seconds_sum", "x"] == pytest.approx(9.003)


RECORD = """
import sys
from holdfast.runtime.exporter import Exporter
from holdfast.runtime.instruments import Counter, Gauge
counter, gauge = Counter("shared", "Shared."), Gauge("alive", "Alive.", combination="livesum")
exporter = Exporter("test", [counter, gauge])
counter.add(count=int(sys.argv[1]))
gauge.set(1)
exporter.flush()
print("recorded", flush=True)
sys.stdin.read()
"""
RENDER = """
from holdfast.runtime.exporter import Exporter
print(Exporter("test", []).render().decode())
"""


def test_processes_share_a_folder_and_the_dead_keep_their_counters_but_not_their_gauges(tmp_path: Path) -> None:
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}

    def scrape() -> tuple[float, float]:
        rendered = subprocess.check_output([sys.executable, "-c", RENDER], env=environment, timeout=60)
        found = samples(rendered)
        return found["shared_total",], found["alive",]

    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RECORD, count],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for count in ("3", "4")
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"recorded\n"
        assert scrape() == (7, 2)
        children[0].kill()
        children[0].wait(20)
        assert scrape() == (7, 1)


@pytest.mark.parametrize(
    ("token", "authorization", "address", "headers", "may_read"),
    [
        (None, "", "127.0.0.1", (), True),
        (None, "", "::1", ("host",), True),
        (None, "", "192.0.2.1", (), False),
        (None, "", "", (), False),
        (None, "Bearer anything", "192.0.2.1", (), False),
        (None, "", "127.0.0.1", ("x-forwarded-for",), False),
        (None, "", "127.0.0.1", ("via",), False),
        ("secret", "Bearer secret", "192.0.2.1", ("x-forwarded-for",), True),
        ("secret", "", "127.0.0.1", (), False),
        ("secret", "Bearer secre", "127.0.0.1", (), False),
        ("secret", "secret", "127.0.0.1", (), False),
        ("secret", "Bearer ünknown", "127.0.0.1", (), False),
    ],
)
def test_who_may_read_the_metrics(
    token: str | None, authorization: str, address: str, headers: tuple[str, ...], may_read: bool
) -> None:
    assert (metrics_access.refusal(token, authorization, address, headers) is None) == may_read


def test_a_process_behind_a_proxy_needs_a_token() -> None:
    assert metrics_access.refusal(None, "", "127.0.0.1", (), behind_proxy=True) is not None
    assert metrics_access.refusal("secret", "Bearer secret", "127.0.0.1", (), behind_proxy=True) is None


@pytest.fixture
def address() -> Iterator[MetricsAddress]:
    found = MetricsAddress("127.0.0.1", free_port())
    counter = Counter("served", "Served.")
    exporter = Exporter("test", [counter])
    counter.add()
    exporter.flush()
    server = MetricsServer(exporter, found, "secret")
    try:
        yield found
    finally:
        server.close()


def read(address: MetricsAddress, path: str = "/metrics", **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{address.host}:{address.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_worker_serves_its_metrics_to_whoever_has_the_token(address: MetricsAddress) -> None:
    status, body = read(address, Authorization="Bearer secret")
    assert status == 200
    assert samples(body)["served_total",] == 1
    assert read(address)[0] == 401
    assert read(address, "/", Authorization="Bearer secret")[0] == 404


def test_a_client_that_says_nothing_does_not_block_the_next(address: MetricsAddress) -> None:
    with socket.create_connection((address.host, address.port)):
        assert read(address, Authorization="Bearer secret")[0] == 200


def test_slow_clients_make_way_for_a_scrape(address: MetricsAddress) -> None:
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection((address.host, address.port)))
            for _ in range(3 * CONNECTIONS_MAX)
        ]
        for connection in slow[-CONNECTIONS_MAX:]:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert read(address, Authorization="Bearer secret")[0] == 200
        # They would be closed after a while anyway, but these at once.
        assert all(connection.recv(1) == b"" for connection in slow[:CONNECTIONS_MAX])


@pytest.mark.parametrize("text", ["", "9101", ":9101", "host:", "host:0", "host:65536", "host:http", "host:٣"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Write it as HOST:PORT"):
        MetricsAddress.parse(text)


@pytest.mark.parametrize(("text", "host"), [("127.0.0.1:9101", "127.0.0.1"), ("[::1]:9101", "::1")])
def test_an_address_has_a_host_and_a_port(text: str, host: str) -> None:
    assert MetricsAddress.parse(text) == MetricsAddress(host, 9101)


def test_an_address_in_use_is_reported(address: MetricsAddress) -> None:
    with pytest.raises(CannotListenError, match=f"port {address.port} of 127.0.0.1"):
        MetricsServer(Exporter("test", []), address, None)


def test_the_worker_says_what_is_wrong_with_its_address(database: str) -> None:
    done = run_holdfast("worker", "--metrics", "nowhere", database_url=database)
    assert done.returncode == 2
    assert "Cannot use --metrics" in done.stderr
