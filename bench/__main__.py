"""`python -m bench`: runs all scenarios, prints a table and writes `bench/results.json`."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from bench.cost import measure_costs
from bench.redis_modes import REDIS_SCENARIOS, measure_redis_modes
from bench.scenarios import SCENARIOS, BenchDatabase, BenchServer, measure
from bench.table import format_redis_table, format_table
from bench.telemetry import at_least_two, format_telemetry, measure_telemetry
from bench.wrk import install_wrk

RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    options = read_options()
    install_wrk()
    with tempfile.TemporaryDirectory() as folder:
        database = BenchDatabase(Path(folder))
        with BenchServer(database) as server:
            results = measure_scenarios(server, options)
        costs = measure_costs(database.url, options.bookings)
        telemetry = measure_telemetry(
            database, options.telemetry_pairs, options.connections, ["both"] if options.telemetry_pairs else []
        )
        redis = measure_redis_modes(database, options.redis_scenarios, options)
    for line in [*format_table(results, costs), *format_telemetry(telemetry), *format_redis_table(redis)]:
        print(line)
    measured = {"scenarios": results, "costs": costs, "telemetry": telemetry, "redis": redis}
    options.output.write_text(json.dumps(measured, indent=2) + "\n")


def measure_scenarios(server: BenchServer, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for _ in range(options.rounds):
        for scenario in (scenario for scenario in SCENARIOS if scenario.name in options.scenarios):
            result = measure(server, scenario, options.seconds, options.connections)
            best = results.get(scenario.name)
            if best is None or result["done_per_second"] > best["done_per_second"]:
                results[scenario.name] = result
    return results


def read_options() -> argparse.Namespace:
    names = [scenario.name for scenario in SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m bench", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=int, default=8, help="duration of each measurement")
    parser.add_argument("--rounds", type=int, default=2, help="measurements per scenario; the best one counts")
    parser.add_argument("--connections", type=int, default=256, help="connections that wrk keeps open")
    parser.add_argument("--bookings", type=int, default=1_000_000, help="bookings in the large event")
    parser.add_argument("--scenarios", nargs="*", choices=names, default=names, help="scenarios to run")
    parser.add_argument(
        "--telemetry-pairs",
        type=lambda text: 0 if text == "0" else at_least_two(text),
        default=200,
        help="pairs of turns with and without logs and metrics, or 0",
    )
    redis_names = [scenario.name for scenario in REDIS_SCENARIOS]
    parser.add_argument("--buyers", type=int, default=5_000, help="connected buyers in the rush")
    parser.add_argument(
        "--redis-scenarios", nargs="*", choices=redis_names, default=redis_names, help="scenarios to run with Redis"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="file for the results")
    return parser.parse_args()


main()
