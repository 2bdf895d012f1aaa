"""The scenarios that `python -m bench` measures, and the server that they run against."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import asyncpg
import httpx
import psutil
import uvloop
from msgspec import Struct

from holdfast.runtime import db, embedded
from holdfast.runtime.credentials import Role, create_key, create_org

HERE = Path(__file__).parent
MANY_EVENTS = 1000
SEATS_IN_ROW = 100
ROWS = 800
BUSY_SECONDS = 20


class Scenario(Struct, frozen=True):
    """`kind` selects what `load.lua` sends. With `refused`, a refusal counts as done, because the event is sold out. A
    buyer waits for up to twice `think_ms` between two requests."""

    name: str
    title: str
    path: str = "/v1/events/{event}/holds"
    kind: str = "pool"
    events: int = 1
    capacity: int = 10_000_000
    confirm: bool = False
    refused: bool = False
    rows: int = 0
    think_ms: int = 0


POOL = Scenario("pool", "holds on one hot pool")
SCENARIOS = (
    Scenario("bare", "no token, no body (upper limit of the server)", path="/bench/bare/{event}", kind="bare"),
    Scenario("no_op", "no-op with a hold's request and response", path="/bench/no_op/{event}"),
    POOL,
    Scenario("for_update", "baseline: one FOR UPDATE transaction per request", path="/bench/for_update/{event}"),
    Scenario("guarded", "baseline: one guarded statement per request", path="/bench/guarded/{event}"),
    Scenario("pairs", "holds on random pairs of one hot seat map", kind="pairs", rows=ROWS),
    Scenario("confirm", "holds and confirmations in turn", confirm=True),
    Scenario("events", f"holds on {MANY_EVENTS:,} events at once", events=MANY_EVENTS),
    Scenario("sold_out", "refusals on a sold-out event", capacity=0, refused=True),
)


class BenchDatabase:
    """An embedded PostgreSQL with one org."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server_url = embedded.start(folder)
        self.url = self._server_url.replace("/postgres?", "/bench?")
        self.key = uvloop.run(self._prepare())

    async def _prepare(self) -> str:
        server = await asyncpg.connect(self._server_url)
        await server.execute("CREATE DATABASE bench")
        await server.close()
        await db.migrate(self.url)
        connection = await db.connect(self.url)
        org = await create_org(db.Database(connection), "bench")
        assert org is not None
        key = await create_key(db.Database(connection), org, Role.ADMIN)
        await connection.close()
        return key


class BenchServer:
    """Some API processes on a database."""

    def __init__(self, database: BenchDatabase, workers: int = 1, environment: Mapping[str, str] | None = None) -> None:
        self._database = database
        self._workers = workers
        self._environment = environment or {}

    def __enter__(self) -> "BenchServer":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        # A terminal would be slower than what is measured.
        self._log = (self._database.folder / f"log-{self._port}").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.server", str(self._port), str(self._workers)],
            env={
                **os.environ,
                "HOLDFAST_DATABASE_URL": self._database.url,
                "HOLDFAST_RATE_PER_ADDRESS": "1e6",
                "HOLDFAST_CONNECTIONS_PER_ADDRESS": "0",
                **self._environment,
            },
            cwd=HERE.parent,
            stderr=self._log,
        )
        authorization = {"Authorization": f"Bearer {self._database.key}"}
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", headers=authorization, timeout=60)
        self._wait_until_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def cpu_seconds(self) -> float:
        """The CPU time of the server and its API processes since their start."""
        main = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in [main, *main.children(recursive=True)]]
        return sum(each.user + each.system for each in times)

    def _wait_until_ready(self) -> None:
        for _ in range(500):
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
        raise RuntimeError(f"The server did not start: {Path(self._log.name).read_text()}")

    def publish(self, scenario: Scenario) -> list[str]:
        pool: dict[str, Any] = {"code": "places", "tariffs": [{"code": "full", "price": 100}]}
        if scenario.rows:
            pool["seats"] = {"rows": [f"R{number}" for number in range(1, scenario.rows + 1)], "numbers": SEATS_IN_ROW}
        else:
            pool["capacity"] = scenario.capacity
        event = {"title": scenario.name, "starts_at": "2030-01-01T00:00:00Z", "currency": "EUR", "pools": [pool]}
        events = []
        for _ in range(scenario.events):
            events.append(self.client.post("/v1/events", json=event).raise_for_status().json()["id"])
            self.client.post(f"/v1/events/{events[-1]}/publish").raise_for_status()
        return events

    def run_wrk(self, scenario: Scenario, paths: list[str], seconds: int, connections: int) -> dict[str, float]:
        file = self._database.folder / "paths"
        file.write_text("\n".join(paths) + "\n")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(HERE / "load.lua")]
        arguments = [scenario.kind, self._database.key, str(file), str(scenario.rows), str(scenario.think_ms)]
        command += [f"http://127.0.0.1:{self._port}", "--", *arguments]
        environment = {**os.environ, **({"BENCH_CONFIRM": "1"} if scenario.confirm else {})}
        output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        counts: dict[str, float] = json.loads(output.rpartition("RESULT ")[2])
        return counts


def measure(server: BenchServer, scenario: Scenario, seconds: int, connections: int) -> dict[str, Any]:
    """Warm up for a second, then measure, on new events."""
    paths = [scenario.path.format(event=event) for event in server.publish(scenario)]
    requests = server.run_wrk(scenario, paths, 1, connections)["requests"]
    counts = server.run_wrk(scenario, paths, seconds, connections)
    requests += counts["requests"]
    if not counts["requests"]:
        # A machine that is busy with something else may need longer for the first one.
        counts = server.run_wrk(scenario, paths, BUSY_SECONDS, connections)
        requests += counts["requests"]
    if counts["broken"]:
        raise RuntimeError(f"{scenario.name}: {counts['broken']} requests got no response")
    done = counts["requests"] if scenario.refused else counts["requests"] - counts["refused"]
    if not done or (scenario.refused and counts["refused"] < counts["requests"]):
        raise RuntimeError(f"{scenario.name} did not do what it measures: {counts}")
    return {
        "title": scenario.title,
        # With those of the warm-up.
        "requests": requests,
        "done_per_second": round(done / counts["seconds"], 1),
        "requests_per_second": round(counts["requests"] / counts["seconds"], 1),
        "p50_ms": round(counts["p50"], 2),
        "p95_ms": round(counts["p95"], 2),
        "p99_ms": round(counts["p99"], 2),
    }
