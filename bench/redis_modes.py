"""What a Redis in front of the engine gains and costs: the same load without one, with one, and with one that is down.

All servers have two API processes and share one database. They take turns, so that noise affects all of them alike.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
from msgspec import structs
from tests.support.redis_process import RedisServer, running_redis

from bench.scenarios import SEATS_IN_ROW, BenchDatabase, BenchServer, Scenario

WORKERS = 2
# Seats per request when a hall is filled.
FILL = 100
# The open breaker of a process tries again after five seconds. Its failures are part of what is measured.
DOWN_SECONDS = 2

REDIS_SCENARIOS = (
    Scenario("rush", "buyers who think, on one hot seat map", kind="seat", rows=200, think_ms=1_350),
    Scenario("pairs", "holds on random pairs of one hot seat map", kind="pairs", rows=800),
    Scenario("taken", "refusals of taken seats", kind="seat", rows=2, refused=True),
    Scenario("nearly_full", "best two seats of a hall with single seats left", kind="best", rows=100, refused=True),
    Scenario("full", "best two seats of a full hall", kind="best", rows=100, refused=True),
)
# How many of the first seats of each row stay free.
FREE_IN_ROW = {"nearly_full": 1}


def measure_redis_modes(database: BenchDatabase, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """The medians of all rounds, by scenario and mode."""
    results: dict[str, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    if not names:
        return {}
    with running_servers(database) as (servers, redis):
        for _ in range(options.rounds):
            for scenario in (scenario for scenario in REDIS_SCENARIOS if scenario.name in names):
                for mode, server in servers.items():
                    if mode == "live map" and scenario.name != "taken":
                        continue
                    with _stopped(redis) if mode == "redis down" else ExitStack():
                        results[scenario.name][mode].append(_measure(database, server, scenario, mode, options))
    titles = {scenario.name: scenario.title for scenario in REDIS_SCENARIOS}
    return {
        name: {"title": titles[name], "modes": {mode: _medians(rounds) for mode, rounds in modes.items()}}
        for name, modes in results.items()
    }


@contextmanager
def running_servers(database: BenchDatabase) -> Iterator[tuple[dict[str, BenchServer], RedisServer]]:
    """Servers by mode. `live map` refuses taken seats from the seat map in the memory of the process."""
    with running_redis() as redis, running_redis() as stopped, ExitStack() as stack:
        plain = stack.enter_context(BenchServer(database, WORKERS))
        with_redis, without = (
            stack.enter_context(BenchServer(database, WORKERS, {"HOLDFAST_REDIS_URL": each.url}))
            for each in (redis, stopped)
        )
        yield {"no redis": plain, "live map": plain, "redis": with_redis, "redis down": without}, stopped


@contextmanager
def _stopped(redis: RedisServer) -> Iterator[None]:
    redis.pause()
    try:
        yield
    finally:
        redis.resume()


def _measure(
    database: BenchDatabase, server: BenchServer, scenario: Scenario, mode: str, options: argparse.Namespace
) -> dict[str, float]:
    if mode == "live map":
        scenario = structs.replace(scenario, path="/bench/live_map/{event}")
    (event,) = server.publish(scenario)
    if scenario.refused:
        _fill(server, event, scenario)
    path = scenario.path.format(event=event)
    connections = options.buyers if scenario.think_ms else options.connections
    server.run_wrk(scenario, [path], min(DOWN_SECONDS, options.seconds), connections)
    before = _cpu_seconds(database)
    counts = server.run_wrk(scenario, [path], options.seconds, connections)
    if counts["broken"]:
        raise RuntimeError(f"{scenario.name}: {counts['broken']} requests got no response")
    if scenario.refused and counts["refused"] < 0.99 * counts["requests"]:
        raise RuntimeError(f"{scenario.name} did not do what it measures: {counts}")
    return {
        "requests_per_second": counts["requests"] / counts["seconds"],
        "refused_percent": 100 * counts["refused"] / counts["requests"],
        "p50_ms": counts["p50"],
        "p95_ms": counts["p95"],
        "p99_ms": counts["p99"],
        "postgres_us": 1e6 * (_cpu_seconds(database) - before) / counts["requests"],
    }


def _fill(server: BenchServer, event: str, scenario: Scenario) -> None:
    """Hold every seat but the first few of each row."""
    free = FREE_IN_ROW.get(scenario.name, 0)
    for row in range(1, scenario.rows + 1):
        labels = [f"R{row}-{number}" for number in range(free + 1, SEATS_IN_ROW + 1)]
        body = {"user": f"early-{row}", "items": [{"seat": label} for label in labels]}
        headers = {"Idempotency-Key": f"fill-{row}"}
        server.client.post(f"/v1/events/{event}/holds", json=body, headers=headers).raise_for_status()
    time.sleep(1)


def _cpu_seconds(database: BenchDatabase) -> float:
    """The CPU time of PostgreSQL since its start."""
    pid = int((database.folder / "postgres" / "postmaster.pid").read_text().split()[0])
    spent = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children()]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system
    return spent


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}
