"""The rows of the table: what is asked for, and of whom."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import asyncpg
import httpx
import uvloop
from msgspec import Struct

from holdfast.runtime import db, embedded
from holdfast.runtime.credentials import Role, create_key, create_org

HERE = Path(__file__).parent
MANY_EVENTS = 1000
PAIRS = 40_000


class Row(Struct, frozen=True):
    name: str
    what: str
    path: str = "/v1/events/{event}/holds"
    kind: str = "pool"
    events: int = 1
    capacity: int = 10_000_000
    confirm: bool = False
    # Every request counts as done when it is refused, because there is nothing to be had.
    refused: bool = False


ROWS = (
    Row("bare", "bare answer, no token and no body", path="/bench/bare/{event}", kind="bare"),
    Row("no_op", "no-op: a hold's request and answer (the ceiling)", path="/bench/no_op/{event}"),
    Row("pool", "holds on one hot pool"),
    Row("for_update", "baseline: one transaction with FOR UPDATE per request", path="/bench/for_update/{event}"),
    Row("guarded", "baseline: one guarded statement per request", path="/bench/guarded/{event}"),
    Row("pairs", "holds on one hot seat map, random pairs", kind="pairs"),
    Row("confirm", "hold, then confirm", confirm=True),
    Row("events", f"holds on {MANY_EVENTS:,} events at once", events=MANY_EVENTS),
    Row("sold_out", "refusals on a sold-out event", capacity=0, refused=True),
)


class Hall:
    """An embedded PostgreSQL and one API process, for as long as it is open."""

    def __init__(self, folder: Path) -> None:
        self.server_url = embedded.start(folder)
        self.database_url = self.server_url.replace("/postgres?", "/bench?")
        self._folder = folder

    def __enter__(self) -> "Hall":
        self._key = uvloop.run(self._prepare())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.server", str(self._port), "1"],
            env={**os.environ, "HOLDFAST_DATABASE_URL": self.database_url, "HOLDFAST_RATE_PER_ADDRESS": "1e6"},
            cwd=HERE.parent,
        )
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}", headers={"Authorization": f"Bearer {self._key}"}, timeout=60
        )
        self._wait_until_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(30)

    async def _prepare(self) -> str:
        connection = await asyncpg.connect(self.server_url)
        await connection.execute("CREATE DATABASE bench")
        await connection.close()
        await db.migrate(self.database_url)
        connection = await db.connect(self.database_url)
        org = await create_org(connection, "bench")
        assert org is not None
        key = await create_key(connection, org, Role.ADMIN)
        await connection.close()
        return key

    def _wait_until_ready(self) -> None:
        for _ in range(500):
            try:
                if self._client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
        raise RuntimeError("the server did not start")

    def publish(self, row: Row) -> list[str]:
        pool: dict[str, Any] = {"code": "places", "tariffs": [{"code": "full", "price": 100}]}
        if row.kind == "pairs":
            pool["seats"] = {"rows": [f"R{number}" for number in range(1, PAIRS // 50 + 1)], "numbers": 100}
        else:
            pool["capacity"] = row.capacity
        event = {"title": row.name, "starts_at": "2030-01-01T00:00:00Z", "currency": "EUR", "pools": [pool]}
        made = []
        for _ in range(row.events):
            made.append(self._client.post("/v1/events", json=event).raise_for_status().json()["id"])
            self._client.post(f"/v1/events/{made[-1]}/publish").raise_for_status()
        return made

    def rush(self, row: Row, paths: list[str], seconds: int, connections: int) -> dict[str, float]:
        file = self._folder / "paths"
        file.write_text("\n".join(paths) + "\n")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(HERE / "load.lua")]
        command += [f"http://127.0.0.1:{self._port}", "--", row.kind, self._key, str(file), str(PAIRS)]
        environment = {**os.environ, **({"BENCH_CONFIRM": "1"} if row.confirm else {})}
        output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        found: dict[str, float] = json.loads(output.rpartition("RESULT ")[2])
        return found


def measure(hall: Hall, row: Row, seconds: int, connections: int) -> dict[str, Any]:
    """A second to warm up, then the measured time, on events of the row's own."""
    paths = [row.path.format(event=event) for event in hall.publish(row)]
    hall.rush(row, paths, 1, connections)
    found = hall.rush(row, paths, seconds, connections)
    if found["broken"]:
        raise RuntimeError(f"{row.name}: {found['broken']} requests got no answer")
    done = found["requests"] if row.refused else found["requests"] - found["refused"]
    if not done or (row.refused and found["refused"] < found["requests"]):
        raise RuntimeError(f"{row.name}: not what was to be measured: {found}")
    return {
        "what": row.what,
        "done_per_second": round(done / found["seconds"], 1),
        "requests_per_second": round(found["requests"] / found["seconds"], 1),
        "p50_ms": round(found["p50"], 2),
        "p95_ms": round(found["p95"], 2),
        "p99_ms": round(found["p99"], 2),
    }
