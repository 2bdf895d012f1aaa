"""The table that `make bench` prints."""

from collections.abc import Iterator
from typing import Any

_BASELINES = {"for_update": "x for update", "guarded": "x guarded", "no_op": "x no-op"}


def format_table(results: dict[str, Any], costs: dict[str, Any]) -> Iterator[str]:
    """Ratios are the scenario's rate divided by the rate of the baseline that the column names."""
    times = "".join(f"{name:>9}" for name in ("done/s", "p50 ms", "p95 ms", "p99 ms"))
    yield f"{'scenario':<54}{times}" + "".join(f"{title:>14}" for title in _BASELINES.values())
    for result in results.values():
        rate = result["done_per_second"]
        times = "".join(f"{result[name]:>9.1f}" for name in ("p50_ms", "p95_ms", "p99_ms"))
        ratios = "".join(_format_ratio(rate, results.get(name)) for name in _BASELINES)
        yield f"{result['title']:<54}{rate:>9,.0f}{times}{ratios}"
    yield ""
    yield "One hold without load takes"
    yield f"  {costs['bare_ratio']:.2f} x as long as a bare transaction that writes the same rows"
    yield f"  {costs['minimal_ratio']:.2f} x as long as a transaction that only locks, inserts one row and counts"
    large, small = f"{costs['large']:,}", f"{costs['small']:,}"
    yield f"  {costs['size_ratio']:.2f} x as long in an event with {large} bookings as in one with {small}"
    if pool := results.get("pool"):
        yield f"The p99 of holds on one hot pool is {pool['p99_ms'] / pool['p50_ms']:.2f} x their p50."


def _format_ratio(rate: float, baseline: dict[str, Any] | None) -> str:
    return f"{rate / baseline['done_per_second']:>14.2f}" if baseline else f"{'-':>14}"


def format_redis_table(results: dict[str, Any]) -> Iterator[str]:
    """Each scenario in all modes. The last column is the CPU time of PostgreSQL for each request."""
    if not results:
        return
    yield ""
    head = "".join(f"{name:>9}" for name in ("req/s", "refused", "p50 ms", "p95 ms", "p99 ms", "pg us"))
    yield f"{'with and without Redis':<54}{'':<12}{head}"
    for result in results.values():
        for mode, figures in result["modes"].items():
            times = "".join(f"{figures[name]:>9.1f}" for name in ("p50_ms", "p95_ms", "p99_ms", "postgres_us"))
            rate, refused = figures["requests_per_second"], figures["refused_percent"]
            yield f"{result['title']:<54}{mode:<12}{rate:>9,.0f}{refused:>8.0f}%{times}"
