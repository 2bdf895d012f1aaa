"""`python -m bench.live`: the time from the commit of a hold until the last of many live feeds has it."""

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from msgspec import Struct
from tests.support.concurrent_requests import hold_request, send_all_at_once_async
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    make_template,
    publish_event,
    query,
    running_server,
)
from tests.support.live_audience import Audience, AudienceReport

from holdfast.runtime import embedded, ids

SEATS_IN_ROW = 100
LONG_HOLDS = {"hold_seconds": 3600, "max_hold_seconds": 7200, "avoid_orphans": False}


class LiveReport(Struct, frozen=True):
    event: str
    seen: AudienceReport
    holds: int
    seconds: float
    latencies: list[float]
    hold_seconds: list[float]
    megabytes: list[float]
    idle_megabytes: list[float]


def measure(server: Server, org: Org, sockets: int, holds_per_second: int, seconds: int) -> LiveReport:
    rows = [f"R{number}" for number in range(1, holds_per_second * seconds // SEATS_IN_ROW + 2)]
    stalls = {
        "code": "stalls",
        "tariffs": [{"code": "full", "price": 100}],
        "seats": {"rows": rows, "numbers": SEATS_IN_ROW},
    }
    with server.client(org.headers()) as admin:
        event = publish_event(admin, example_event(pools=[stalls], policy=LONG_HOLDS))
    labels = (f"{row}-{number}" for row in rows for number in range(1, SEATS_IN_ROW + 1))
    idle = _memory_megabytes(server)
    with Audience(server.port, event, sockets) as audience:
        began = time.monotonic()
        durations = asyncio.run(_place_holds(server, org, event, labels, holds_per_second, holds_per_second * seconds))
        spent = time.monotonic() - began
        journal = query(
            server.database_url, "SELECT number, at FROM journal WHERE event_id = $1", ids.parse_event_id(event)
        )
        busy = _memory_megabytes(server)
        seen = audience.wait_for_version(max(entry["number"] for entry in journal))
    at = {entry["number"]: entry["at"].timestamp() for entry in journal}
    latencies = sorted(last_at - at[number] for number, last_at in seen.last_at.items())
    return LiveReport(event, seen, len(durations), spent, latencies, sorted(durations), busy, idle)


async def _place_holds(
    server: Server, org: Org, event: str, labels: Iterator[str], rate: int, count: int
) -> list[float]:
    """Place holds at a steady rate, and return the duration of each."""
    key = org.keys["sales"]
    began = time.monotonic()
    tasks = []
    for number, label in enumerate(itertools.islice(labels, count)):
        await asyncio.sleep(max(began + number / rate - time.monotonic(), 0))
        body = {"user": f"u-{number}", "items": [{"seat": label}]}
        tasks.append(asyncio.create_task(_hold(server.port, hold_request(key, event, f"k-{number}", body))))
    return list(await asyncio.gather(*tasks))


async def _hold(port: int, request: bytes) -> float:
    began = time.monotonic()
    (reply,) = await send_all_at_once_async(port, [request])
    assert reply.status == 201, reply
    return time.monotonic() - began


def _memory_megabytes(server: Server) -> list[float]:
    return [psutil.Process(pid).memory_info().rss / 2**20 for pid in server.api_pids()]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.live", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--sockets", type=int, default=5_000, help="open live feeds")
    parser.add_argument("--rate", type=int, default=200, help="holds per second")
    parser.add_argument("--seconds", type=int, default=15, help="duration of the measurement")
    parser.add_argument("--workers", type=int, default=2, help="API processes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server_url = embedded.start(Path(folder))
        make_template(server_url)
        with (
            fresh_database(server_url) as url,
            running_server(
                url,
                workers=options.workers,
                HOLDFAST_CONNECTIONS_PER_ADDRESS="0",
                HOLDFAST_LIVE_SOCKETS_PER_ADDRESS=str(options.sockets),
            ) as server,
        ):
            report = measure(server, Org(url), options.sockets, options.rate, options.seconds)
    for line in describe(report):
        print(line)


def describe(report: LiveReport) -> list[str]:
    seen = report.seen
    return [
        f"{seen.sockets:,} sockets, {report.holds:,} holds in {report.seconds:.1f} s",
        f"commit to the last socket: p50 {_percentile(report.latencies, 50)}, p95 {_percentile(report.latencies, 95)}, "
        f"max {1000 * report.latencies[-1]:.0f} ms",
        f"latency of a hold: p50 {_percentile(report.hold_seconds, 50)}, p95 {_percentile(report.hold_seconds, 95)}",
        f"{seen.messages:,} messages ({seen.merged:,} with several entries), {seen.bytes / 2**20:.0f} MB, "
        f"{seen.gaps} gaps, {seen.lost} lost, {seen.behind} behind at the end",
        f"memory of API processes: {_join(report.idle_megabytes)} MB before, {_join(report.megabytes)} MB under load",
    ]


def _percentile(values: list[float], percent: int) -> str:
    return f"{1000 * statistics.quantiles(values, n=100)[percent - 1]:.0f} ms"


def _join(values: list[float]) -> str:
    return " + ".join(f"{value:.0f}" for value in values)


if __name__ == "__main__":
    main()
