"""Connections to Redis: one server, Sentinel, or Cluster. Every call has a time budget and goes through the breaker."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from holdfast.gate.circuit_breaker import CircuitBreaker
from holdfast.runtime.extras import optional_import

with optional_import("redis", extra="redis"):
    from redis.asyncio import Redis
    from redis.asyncio.cluster import ClusterNode, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError as AuthenticationError

T = TypeVar("T")
Client = Redis | RedisCluster
Command = tuple[str | bytes | int | float, ...]

# The time budgets of calls that requests wait for, and of background calls.
REQUEST_SECONDS: Final = 0.05
BACKGROUND_SECONDS: Final = 0.25
CONNECT_SECONDS: Final = 2.0
CONNECTIONS_MAX: Final = 4
# After a timeout, run the event loop this many more times, in case the reply has already arrived.
LATE_TURNS: Final = 5
PORT: Final = 6379
SENTINEL_PORT: Final = 26379


class UnavailableError(Exception):
    """The call to Redis failed or timed out, or the breaker is open. Go on without Redis."""


class RedisUrl(Struct, frozen=True):
    """`redis://host:6379/0`, `redis+sentinel://host:26379,other:26379/service/0` or `redis+cluster://host:6379,other`.
    With `rediss`, the connection is encrypted."""

    kind: str
    hosts: tuple[tuple[str, int], ...]
    db: int = 0
    service: str = ""
    username: str | None = None
    password: str | None = None
    is_encrypted: bool = False

    @classmethod
    def parse(cls, text: str) -> "RedisUrl":
        url = urlsplit(text)
        scheme, _, kind = url.scheme.partition("+")
        if scheme not in ("redis", "rediss") or kind not in ("", "sentinel", "cluster"):
            raise ValueError("It must start with redis://, redis+sentinel:// or redis+cluster:// (rediss for TLS).")
        if url.query or url.fragment:
            raise ValueError("It may not have a query string.")
        path = [unquote(part) for part in url.path.split("/") if part]
        service = path.pop(0) if kind == "sentinel" and path else ""
        if kind == "sentinel" and not service:
            raise ValueError("It must name the service after the hosts: redis+sentinel://host:26379/service")
        if kind == "cluster" and path:
            raise ValueError("A cluster has no databases, so nothing may follow the hosts.")
        if path and not (len(path) == 1 and path[0].isascii() and path[0].isdigit()):
            raise ValueError("The database must be a number: redis://host:6379/0")
        hosts = _parse_hosts(url, SENTINEL_PORT if kind == "sentinel" else PORT)
        if not kind and len(hosts) > 1:
            raise ValueError("For several hosts, use redis+sentinel:// or redis+cluster://.")
        return cls(
            kind=kind,
            hosts=hosts,
            db=int(path[0]) if path else 0,
            service=service,
            username=unquote(url.username) if url.username else None,
            password=unquote(url.password) if url.password else None,
            is_encrypted=scheme == "rediss",
        )


def _parse_hosts(url: SplitResult, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for part in url.netloc.rpartition("@")[2].split(","):
        address = urlsplit(f"//{part}")
        if not address.hostname:
            raise ValueError("A host is missing.")
        hosts.append((address.hostname, address.port or default_port))
    return tuple(hosts)


def open_client(url: RedisUrl, *, connections: int = CONNECTIONS_MAX, reads_forever: bool = False) -> Client:
    """A client that connects on demand. It retries nothing, because a second try would exceed the budget of a request.
    `reads_forever` is for subscriptions, which may be silent for a long time."""
    options: dict[str, Any] = {
        "username": url.username,
        "password": url.password,
        "ssl": url.is_encrypted,
        "max_connections": connections,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": None if reads_forever else CONNECT_SECONDS,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    if url.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in url.hosts]
        return RedisCluster(startup_nodes=nodes, **options)
    if url.kind == "sentinel":
        # Sentinels have logins of their own, so the one in the URL is for the service.
        own = {name: options[name] for name in ("ssl", "socket_connect_timeout", "protocol", "retry")}
        own["socket_timeout"] = CONNECT_SECONDS
        sentinel = Sentinel(url.hosts, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
        client: Redis = sentinel.master_for(url.service, db=url.db, **options)
        return client
    host, port = url.hosts[0]
    return Redis(host=host, port=port, db=url.db, **options)


class RedisCalls:
    """Runs commands on one client. Calls that requests wait for have their own client, so that they never queue
    behind background work."""

    def __init__(self, client: Client, breaker: CircuitBreaker, budget_seconds: float) -> None:
        self._client = client
        self.breaker = breaker
        self.budget_seconds = budget_seconds
        # Without it, the client would fail if all connections are in use, and the breaker would blame Redis.
        self._connections = asyncio.Semaphore(CONNECTIONS_MAX)

    async def run(self, commands: Sequence[Command], *, writes: bool = True) -> list[Any]:
        """The replies, in order. Any error makes the whole call fail. The breaker only counts a success if the call
        `writes`: a server that is read-only, or has no memory left, still answers reads and passes on messages."""
        if not (self.breaker.try_begin() if writes else self.breaker.is_closed):
            raise UnavailableError("The breaker is open.")
        try:
            replies = await within(self._execute(commands), self.budget_seconds)
        except Exception as error:
            self.breaker.record_failure(error)
            raise UnavailableError(type(error).__name__) from error
        except BaseException:
            self.breaker.record_failure(asyncio.CancelledError())
            raise
        if writes:
            self.breaker.record_success()
        return replies

    async def connect(self) -> None:
        """Open a connection ahead of its use, if there is none. Connecting may take longer than a request may wait."""
        try:
            await within(self._client.ping(), CONNECT_SECONDS)
        except Exception as error:
            raise UnavailableError(type(error).__name__) from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _execute(self, commands: Sequence[Command]) -> list[Any]:
        async with self._connections:
            return await self._execute_now(commands)

    async def _execute_now(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1:
            return [await self._client.execute_command(*commands[0])]
        if isinstance(self._client, RedisCluster):
            cluster_pipeline = self._client.pipeline()
            for command in commands:
                cluster_pipeline.execute_command(*command)
            return await cluster_pipeline.execute()
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            await pipeline.execute_command(*command)
        return await pipeline.execute()


async def within(work: Awaitable[T], seconds: float) -> T:
    """Wait for the work, and cancel it after this time. If the event loop was busy all that time, the reply may
    have arrived unread: run the loop a few more times, so that a busy process does not blame Redis."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        for _ in range(LATE_TURNS):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
        raise TimeoutError
    finally:
        if not task.done():
            task.add_done_callback(_retrieve_exception)
            task.cancel()


def _retrieve_exception(task: "asyncio.Future[Any]") -> None:
    """Nobody waits for the task any more; without this, asyncio would log its exception as never retrieved."""
    if not task.cancelled():
        task.exception()
