"""`python -m bench.telemetry`: what logs and metrics cost.

Two servers take turns on one database, one with the default settings and one with `--off`. Each pair of runs gives one
ratio of holds per second, and one of CPU time per hold, which a busy machine distorts less.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from msgspec import Struct

from bench.scenarios import SCENARIOS, BenchDatabase, BenchServer, measure
from bench.wrk import install_wrk

ALL_OFF = ("HOLDFAST_LOG_TRANSITIONS=false", "HOLDFAST_LOG_ATTEMPTS=0", "HOLDFAST_METRICS=false")


class Run(Struct, frozen=True):
    per_second: float
    cpu_us: float


def main() -> None:
    options = read_options()
    install_wrk()
    pairs: list[tuple[Run, Run]] = []
    with tempfile.TemporaryDirectory() as folder:
        database = BenchDatabase(Path(folder))
        with (
            BenchServer(database, environment=read_environment(options.on)) as on,
            BenchServer(database, environment=read_environment(options.off)) as off,
        ):
            for number in range(options.pairs):
                # Every other pair starts with the other server, so that a trend of the machine favours neither.
                order = [on, off] if number % 2 else [off, on]
                runs = {id(server): measure_run(server, options) for server in order}
                pairs.append((runs[id(on)], runs[id(off)]))
                print(format_pair(*pairs[-1]))
    speed = statistics.median(on.per_second / off.per_second for on, off in pairs)
    cpu = statistics.median(on.cpu_us / off.cpu_us for on, off in pairs)
    print(f"median: {speed:.3f} x the holds per second, {cpu:.3f} x the CPU time per hold")


def measure_run(server: BenchServer, options: argparse.Namespace) -> Run:
    scenario = next(each for each in SCENARIOS if each.name == options.scenario)
    before = server.cpu_seconds()
    result = measure(server, scenario, options.seconds, options.connections)
    return Run(result["done_per_second"], 1e6 * (server.cpu_seconds() - before) / result["requests"])


def format_pair(on: Run, off: Run) -> str:
    return (
        f"{on.per_second:>8,.0f}/s with, {off.per_second:>8,.0f}/s without: {on.per_second / off.per_second:.3f}"
        f"   {on.cpu_us:>6.1f} us with, {off.cpu_us:>6.1f} us without: {on.cpu_us / off.cpu_us:.3f}"
    )


def read_environment(settings: list[str]) -> dict[str, str]:
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
    parser.add_argument("--scenario", choices=[each.name for each in SCENARIOS], default="pool", help="the load")
    return parser.parse_args()


if __name__ == "__main__":
    main()
