"""The table that `make bench` prints."""

from collections.abc import Iterator
from typing import Any


def table(rows: dict[str, Any], cost: dict[str, Any]) -> Iterator[str]:
    times = "".join(f"{name:>9}" for name in ("done/s", "p50 ms", "p95 ms", "p99 ms"))
    yield f"{'':<54}{times}{'x FOR UPD':>11}{'x guarded':>11}{'of no-op':>10}"
    for row in rows.values():
        rate = row["done_per_second"]
        ratios = [rate / rows[name]["done_per_second"] for name in ("for_update", "guarded", "no_op")]
        times = "".join(f"{row[name]:>9.1f}" for name in ("p50_ms", "p95_ms", "p99_ms"))
        yield f"{row['what']:<54}{rate:>9,.0f}{times}{ratios[0]:>11.1f}{ratios[1]:>11.1f}{ratios[2]:>10.2f}"
    yield ""
    yield f"one hold alone, in bare transactions that write the same rows: {cost['bare_ratio']:.2f}"
    yield f"one hold alone, in transactions that only lock, insert one row and count: {cost['least_ratio']:.2f}"
    sizes = f"in an event of {cost['large']:,} bookings, in holds of one of {cost['small']:,}"
    yield f"one hold {sizes}: {cost['size_ratio']:.2f}"
    pool = rows["pool"]
    yield f"p99 of holds on one hot pool, in its p50: {pool['p99_ms'] / pool['p50_ms']:.2f}"
