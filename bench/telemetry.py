"""`python -m bench.telemetry`: what logs and metrics cost.

One server works with and without them in turns (`bench/telemetry_switch.py`). Each pair of turns gives one ratio of
holds per second, and one of CPU time per hold. Single ratios differ by much, so the medians come with their errors.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import json

from bench.scenarios import POOL, BenchDatabase, BenchServer
from bench.telemetry_switch import SETTLING_SECONDS, SLICE_SECONDS, Pair, Slice
from bench.wrk import install_wrk

# What the server may turn off.
CHOICES = ("both", "logs", "metrics")
# For the first holds, and for requests between the pairs.
SPARE_SECONDS = 4
SPARE_SHARE = 1.2


def main() -> None:
    options = read_options()
    install_wrk()
    with tempfile.TemporaryDirectory() as folder:
        database = BenchDatabase(Path(folder))
        for line in format_telemetry(measure_telemetry(database, options.pairs, options.connections, options.what)):
            print(line)


def measure_telemetry(
    database: BenchDatabase, pairs: int, connections: int, choices: Sequence[str] = CHOICES
) -> dict[str, dict[str, float]]:
    """What holds cost with each of these, compared to without."""
    results = {}
    with BenchServer(database) as server:
        for choice in choices:
            measured = list(measure_pairs(server, pairs, connections, choice))
            results[choice] = {
                **_spread("speed", [_per_second(each.on) / _per_second(each.off) for each in measured]),
                # Holds of all turns together, which has its share of what happens once a second.
                "speed_of_all": round(
                    _all_per_second(each.on for each in measured) / _all_per_second(each.off for each in measured), 4
                ),
                **_spread("cpu", [_cpu_us(each.on) / _cpu_us(each.off) for each in measured]),
                "cpu_us": statistics.median(_cpu_us(each.on) - _cpu_us(each.off) for each in measured),
            }
    return results


def measure_pairs(server: BenchServer, pairs: int, connections: int, choice: str) -> Iterator[Pair]:
    (event,) = server.publish(POOL)
    seconds = SPARE_SECONDS + round(SPARE_SHARE * pairs * 2 * (SETTLING_SECONDS + SLICE_SECONDS))
    with ThreadPoolExecutor(1) as executor:
        load = executor.submit(server.run_wrk, POOL, [POOL.path.format(event=event)], seconds, connections)
        for _ in range(pairs):
            response = server.client.post(f"/bench/measure_{choice}/{event}").raise_for_status()
            pair = json.decode(response.content, type=Pair)
            if not (pair.on.changes and pair.off.changes):
                raise RuntimeError(f"The server had nothing to do: {pair}")
            yield pair
        load.result()


def format_telemetry(results: dict[str, dict[str, float]]) -> Iterator[str]:
    for choice, result in results.items():
        name = "logs and metrics" if choice == "both" else choice
        yield (
            f"With {name:<17}{result['speed']:.3f} (+-{result['speed_error']:.3f}) x the holds per second "
            f"({result['speed_of_all']:.3f} in all turns together), "
            f"{result['cpu']:.3f} (+-{result['cpu_error']:.3f}) x the CPU time per hold: {result['cpu_us']:+.1f} us"
        )


def _spread(name: str, ratios: Sequence[float]) -> dict[str, float]:
    """The median and its standard error, as if the ratios were normally distributed."""
    error = math.sqrt(math.pi / 2 / len(ratios)) * statistics.stdev(ratios)
    return {name: round(statistics.median(ratios), 4), f"{name}_error": round(error, 4)}


def _per_second(part: Slice) -> float:
    return part.changes / part.seconds


def _all_per_second(parts: Iterable[Slice]) -> float:
    parts = list(parts)
    return sum(part.changes for part in parts) / sum(part.seconds for part in parts)


def _cpu_us(part: Slice) -> float:
    return 1e6 * part.cpu_seconds / part.changes


def at_least_two(text: str) -> int:
    """One pair has no error."""
    if int(text) < 2:
        raise argparse.ArgumentTypeError("give 2 or more")
    return int(text)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.telemetry", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--what", nargs="*", choices=CHOICES, default=CHOICES, help="what to turn on and off")
    parser.add_argument("--pairs", type=at_least_two, default=400, help="pairs of a turn with and a turn without")
    parser.add_argument("--connections", type=int, default=256, help="connections that wrk keeps open")
    return parser.parse_args()


if __name__ == "__main__":
    main()
