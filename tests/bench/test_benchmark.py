"""The benchmark runs in a short form and reports its measurements."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import IS_LONG
from tests.support.programs import ensure_installed

SCENARIOS = {"bare", "no_op", "pool", "for_update", "guarded", "pairs", "confirm", "events", "sold_out"}
SHORT = {"no_op", "pool", "for_update"}
REDIS_SCENARIOS = {"rush", "pairs", "taken", "nearly_full", "full"}


def test_one_benchmark_run_prints_one_table_of_ratios(tmp_path: Path) -> None:
    if ensure_installed("wrk", "wrk") is None:
        pytest.skip("the load comes from wrk")
    output = tmp_path / "results.json"
    # Four servers and two of Redis take too long for `make test`.
    names, redis_names = (SCENARIOS, REDIS_SCENARIOS) if IS_LONG else (SHORT, set[str]())
    options = ["--seconds", "1", "--rounds", "1", "--connections", "64", "--bookings", "5000", "--buyers", "100"]
    options += ["--telemetry-pairs", "2"]
    options += ["--scenarios", *sorted(names), "--redis-scenarios", *sorted(redis_names), "--output", str(output)]
    command = [sys.executable, "-m", "bench", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "x for update" in done.stdout
    found = json.loads(output.read_text())
    assert set(found["scenarios"]) == names
    rates = {name: result["done_per_second"] for name, result in found["scenarios"].items()}
    assert rates["pool"] > 2 * rates["for_update"]
    assert found["costs"]["bare_ratio"] < 10
    assert set(found["telemetry"]) == {"both"}
    assert found["telemetry"]["both"]["speed"] > 0
    assert re.search(r"^With logs and metrics [\d.]+ \(\+-[\d.]+\) x the holds per second", done.stdout, re.MULTILINE)
    assert set(found["redis"]) == redis_names
    if IS_LONG:
        taken = found["redis"]["taken"]["modes"]
        assert set(taken) == {"no redis", "live map", "redis", "redis down"}
        assert taken["redis"]["postgres_us"] < taken["no redis"]["postgres_us"] / 2
