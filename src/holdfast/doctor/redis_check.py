"""Whether Redis answers, and may do what Holdfast asks of it."""

import secrets
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, convert

from holdfast.doctor.check import CheckResult, Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime.extras import explain_install

if TYPE_CHECKING:
    # Needs the optional extra `redis`.
    from holdfast.gate.redis_client import Client

VERSION_MIN: Final = (6, 2)
MEMORY_WARNING: Final = 0.8
CALLS: Final = 10
NO_EVICTION: Final = "noeviction"
RIGHTS: Final = (
    "~org:*",
    "~rate:*",
    "resetchannels",
    "&holdfast:changes",
    "+@read",
    "+@write",
    "+@scripting",
    "+@pubsub",
    "+@connection",
    "+time",
    "+info",
)


class RedisInfo(Struct, frozen=True):
    """Fields of INFO."""

    redis_version: str
    used_memory: int
    maxmemory: int
    maxmemory_policy: str


async def check_redis(installation: Installation) -> Results:
    url = installation.settings.redis_url
    if url is None:
        return
    if find_spec("redis") is None:
        yield problem("HOLDFAST_REDIS_URL needs a package.", explain_install("redis"))
        return
    from holdfast.gate.redis_client import RedisUrl, open_client

    try:
        parsed = RedisUrl.parse(url)
    except ValueError:
        yield problem(
            "HOLDFAST_REDIS_URL is malformed.",
            "Write it as redis://user:password@host:6379/0. docs/redis.md has the other forms.",
        )
        return
    client = open_client(parsed)
    try:
        async for result in _examine(client, is_cluster=parsed.kind == "cluster"):
            yield result
    finally:
        await client.aclose()


async def _examine(client: "Client", *, is_cluster: bool) -> Results:
    try:
        fastest = min([await _measure_call(client) for _ in range(CALLS)])
    except Exception as error:
        yield _explain(error)
        return
    yield _judge_latency(fastest)
    failed = await _find_failed_commands(client)
    if failed:
        yield _explain_failed_commands(failed)
    else:
        yield ok("It runs all scripts, and passes on messages.")
    for name, info in await _read_infos(client, is_cluster=is_cluster):
        for result in judge_info(info):
            yield CheckResult(result.level, f"{name}{result.text}", result.remedy)


async def _measure_call(client: "Client") -> float:
    start = time.monotonic()
    await client.ping()
    return time.monotonic() - start


def _judge_latency(seconds: float) -> CheckResult:
    """Of the fastest call: the others may have waited for this process."""
    from holdfast.gate.redis_client import REQUEST_SECONDS

    text = f"Redis answers in {seconds * 1000:.1f} ms at best."
    remedy = "Run Redis near the API processes, in the same data centre."
    if seconds > REQUEST_SECONDS:
        return problem(
            f"{text} Holdfast gives up after {REQUEST_SECONDS * 1000:.0f} ms, so it works without it.", remedy
        )
    if seconds > REQUEST_SECONDS / 2:
        return warning(f"{text} Every hold of a seat waits for it.", remedy)
    return ok(text)


async def _find_failed_commands(client: "Client") -> dict[str, str]:
    """Commands that fail, with their errors. The keys have names like those of an event, because rights may depend on
    them, and are gone afterwards."""
    from holdfast.gate import lua
    from holdfast.gate.commit_writer import CHANNEL
    from holdfast.gate.redis_client import CONNECT_SECONDS

    prefix = f"org:doctor:event:{{{secrets.token_hex(8)}}}:"
    keys = [prefix + name for name in ("text", "hash", "set")]
    found: dict[str, str] = {}
    try:
        replies = [_text(each) for each in await client.execute_command("EVAL", lua.PROBE, len(keys), *keys)]
        found.update(zip(replies[::2], replies[1::2], strict=True))
    except Exception as error:
        found["EVAL"] = str(error)
    try:
        await client.execute_command("PUBLISH", CHANNEL, b"")
    except Exception as error:
        found["PUBLISH"] = str(error)
    try:
        async with client.pubsub() as subscription:
            await subscription.subscribe(CHANNEL)
            # Redis answers to a subscription with a message, or with an error.
            await subscription.get_message(timeout=CONNECT_SECONDS)
    except Exception as error:
        found["SUBSCRIBE"] = str(error)
    return found


def _explain_failed_commands(failed: dict[str, str]) -> CheckResult:
    names = ", ".join(failed)
    errors = " ".join(failed.values())
    if "READONLY" in errors or "read only replica" in errors:
        return problem(
            f"Redis is a read-only replica: {names} failed.",
            "Point HOLDFAST_REDIS_URL to the master, or to its sentinels.",
        )
    if "OOM" in errors:
        return problem(f"Redis has no memory left: {names} failed.", "Raise maxmemory.")
    return problem(
        f"Redis refuses {names}, so Holdfast works without it.",
        f"Give the user these rights: ACL SETUSER <user> {' '.join(RIGHTS)}",
    )


async def _read_infos(client: Any, *, is_cluster: bool) -> list[tuple[str, RedisInfo]]:
    """INFO of the server, or of each node of a cluster with its name. Empty if the user may not run INFO, which
    Holdfast itself does not need."""
    options = {"target_nodes": "primaries"} if is_cluster else {}
    try:
        replies = await client.execute_command("INFO", **options)
    except Exception:
        return []
    by_node = {f"{node}: ": info for node, info in replies.items()} if is_cluster else {"": replies}
    return [(node, convert(info, RedisInfo, strict=False)) for node, info in by_node.items()]


def judge_info(info: RedisInfo) -> Iterator[CheckResult]:
    version = tuple(int(part) for part in info.redis_version.split(".")[:2])
    if version < VERSION_MIN:
        yield problem(f"Redis has version {info.redis_version}.", "Upgrade it to 6.2 or newer, or to Valkey.")
    if info.maxmemory and info.used_memory > MEMORY_WARNING * info.maxmemory:
        yield warning(
            f"Redis uses {info.used_memory / info.maxmemory:.0%} of its memory.",
            "Raise maxmemory. docs/redis.md says how much an event takes.",
        )
    if info.maxmemory and info.maxmemory_policy != NO_EVICTION:
        yield warning(
            f"Redis evicts keys when its memory is full ({info.maxmemory_policy}). Holdfast then rebuilds events "
            "during the sale, which costs PostgreSQL time.",
            f"Set maxmemory-policy to {NO_EVICTION}, and maxmemory high enough for your events.",
        )
    else:
        yield ok(f"Version {info.redis_version}, {_memory(info)}, and it evicts nothing.")


def _memory(info: RedisInfo) -> str:
    used = f"{info.used_memory / 1024**2:.1f} MiB in use"
    return f"{used} of {info.maxmemory / 1024**2:.1f} MiB" if info.maxmemory else f"{used}, no limit"


def _explain(error: Exception) -> CheckResult:
    from holdfast.gate.redis_client import AuthenticationError

    text = str(error)
    if isinstance(error, AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return problem(
            "Redis refuses the user or the password.", "Correct them in HOLDFAST_REDIS_URL: redis://user:password@host."
        )
    if "NOPERM" in text:
        return problem("Redis does not let this user run PING.", "Give the user the right: ACL SETUSER <user> +ping.")
    return problem(
        f"Redis cannot be reached ({type(error).__name__}). Holdfast sells without it.",
        "Check that Redis runs and that a firewall does not block it. Check HOLDFAST_REDIS_URL.",
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
