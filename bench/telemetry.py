"""`python -m bench.telemetry`: what logs and metrics cost.

Two servers take turns on one database, one with the default settings and one with `--off`. Each pair of runs gives one
ratio of holds per second, and one of CPU time per hold, which a busy machine distorts less.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from bench.scenarios import SCENARIOS, BenchDatabase, BenchServer, Scenario, measure
from bench.wrk import install_wrk

ALL_OFF = ("HOLDFAST_LOG_TRANSITIONS=false", "HOLDFAST_LOG_ATTEMPTS=0", "HOLDFAST_METRICS=false")
POOL = "pool"


class Load(Struct, frozen=True):
    scenario: Scenario
    seconds: int
    connections: int


class Run(Struct, frozen=True):
    per_second: float
    cpu_us: float


def main() -> None:
    options = read_options()
    install_wrk()
    load = Load(find_scenario(options.scenario), options.seconds, options.connections)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in measure_pairs(BenchDatabase(Path(folder)), load, options.pairs, options.on, options.off):
            print(format_pair(*pair))
            pairs.append(pair)
    print("median: {:.3f} x the holds per second, {:.3f} x the CPU time per hold".format(*median_ratios(pairs)))


def measure_telemetry(database: BenchDatabase, seconds: int, connections: int, pairs: int) -> dict[str, float]:
    """The median ratios of a server with logs and metrics to one without."""
    if not pairs:
        return {}
    load = Load(find_scenario(POOL), seconds, connections)
    speed, cpu = median_ratios(list(measure_pairs(database, load, pairs)))
    return {"speed_ratio": speed, "cpu_ratio": cpu}


def find_scenario(name: str) -> Scenario:
    return next(each for each in SCENARIOS if each.name == name)


def measure_pairs(
    database: BenchDatabase, load: Load, count: int, on: Sequence[str] = (), off: Sequence[str] = ALL_OFF
) -> Iterator[tuple[Run, Run]]:
    with (
        BenchServer(database, environment=read_environment(on)) as server_on,
        BenchServer(database, environment=read_environment(off)) as server_off,
    ):
        for number in range(count):
            # Every other pair starts with the other server, so that a trend of the machine favours neither.
            order = [server_on, server_off] if number % 2 else [server_off, server_on]
            runs = {id(server): measure_run(server, load) for server in order}
            yield runs[id(server_on)], runs[id(server_off)]


def measure_run(server: BenchServer, load: Load) -> Run:
    before = server.cpu_seconds()
    result = measure(server, load.scenario, load.seconds, load.connections)
    return Run(result["done_per_second"], 1e6 * (server.cpu_seconds() - before) / result["requests"])


def median_ratios(pairs: Sequence[tuple[Run, Run]]) -> tuple[float, float]:
    """Of the holds per second, and of the CPU time per hold."""
    return (
        statistics.median(on.per_second / off.per_second for on, off in pairs),
        statistics.median(on.cpu_us / off.cpu_us for on, off in pairs),
    )


def format_pair(on: Run, off: Run) -> str:
    return (
        f"{on.per_second:>8,.0f}/s with, {off.per_second:>8,.0f}/s without: {on.per_second / off.per_second:.3f}"
        f"   {on.cpu_us:>6.1f} us with, {off.cpu_us:>6.1f} us without: {on.cpu_us / off.cpu_us:.3f}"
    )


def read_environment(settings: Sequence[str]) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in settings)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.telemetry", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--on", nargs="*", default=[], metavar="NAME=VALUE", help="settings of one server")
    parser.add_argument("--off", nargs="*", default=ALL_OFF, metavar="NAME=VALUE", help="settings of the other server")
    parser.add_argument("--pairs", type=int, default=9, help="pairs of runs")
    parser.add_argument("--seconds", type=int, default=4, help="duration of each run")
    parser.add_argument("--connections", type=int, default=256, help="connections that wrk keeps open")
    parser.add_argument("--scenario", choices=[each.name for each in SCENARIOS], default=POOL, help="the load")
    return parser.parse_args()


if __name__ == "__main__":
    main()
