"""`python -m bench`: one run, one table, ratios; the same in `bench/results.json`."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.cost import costs
from bench.rows import ROWS, Hall, measure
from bench.table import table

RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--seconds", type=int, default=8, help="how long each row is measured")
    parser.add_argument("--rounds", type=int, default=2, help="how often each row is measured; the best counts")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--bookings", type=int, default=1_000_000, help="size of the large event")
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, help="what is measured")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    find_wrk()
    with tempfile.TemporaryDirectory() as folder, Hall(Path(folder)) as hall:
        rows: dict[str, Any] = {}
        for _ in range(options.rounds):
            for row in (row for row in ROWS if row.name in options.rows):
                found = measure(hall, row, options.seconds, options.connections)
                if row.name not in rows or found["done_per_second"] > rows[row.name]["done_per_second"]:
                    rows[row.name] = found
        cost = costs(hall.database_url, options.bookings)
    for line in table(rows, cost):
        print(line)
    options.output.write_text(json.dumps({"rows": rows, "costs": cost}, indent=2) + "\n")


def find_wrk() -> None:
    if shutil.which("wrk") is None and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-y", "-qq", "wrk"], check=False, stdout=subprocess.DEVNULL)
    if shutil.which("wrk") is None:
        sys.exit("The load comes from wrk. Install it first: apt-get install wrk")


main()
