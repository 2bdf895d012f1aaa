"""Attacks on a server, each bounded in rate and time. They go to loopback only.

Run against a server that trusts one proxy, so that each attacker can have an address of their own.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from multiprocessing import get_context
from typing import Any

import websockets
from msgspec import Struct, json

from holdfast import sql
from holdfast.demo.stampede.client import Client, ConnectionLostError
from holdfast.runtime import ids
from tests.support.harness import connection_to

GRID = {"rows": ["R"] * 1 + [f"R{n}" for n in range(99)], "numbers": 1000}
BRACKETS = b'{"details":{"a":[' + b"[]," * 340_000 + b"[]]}}"
IDLE_CONNECTIONS = 300
UNREAD_CONNECTIONS = 20
LIVE_SOCKETS = 100
# How long an attacker may take to come to an end.
END_SECONDS = 10.0


class Target(Struct, frozen=True):
    """What the attackers know. The keys are their own: they are a tenant of the same server."""

    url: str
    database_url: str
    keys: dict[str, str]
    hall: str
    locked: tuple[str, ...]
    edited: str
    victim: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


Attack = Callable[[Target, float], Coroutine[Any, Any, None]]


class Attacker:
    """Sends requests from one address at a steady rate, and does not care about the answers."""

    def __init__(self, target: Target, address: str, **headers: str) -> None:
        self._client = Client(target.url)
        self._headers = {"x-forwarded-for": address, "content-type": "application/json", **headers}

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            response = await self._client.send(method, path, {**self._headers, **named}, body)
        except (ConnectionLostError, TimeoutError):
            return 0, b""
        return response.status, response.body

    async def repeat(
        self, seconds: float, per_second: float, request: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        """Start requests at this rate, with at most a few of them under way."""
        ends_at = time.monotonic() + seconds
        slots = asyncio.Semaphore(8)
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < ends_at:
                await slots.acquire()
                tasks.create_task(request()).add_done_callback(lambda _: slots.release())
                await asyncio.sleep(1 / per_second)
        self._client.close()


async def build_seats_without_a_token(target: Target, seconds: float) -> None:
    """A few hundred bytes that stand for 100,000 seats."""
    event = {
        "title": "x",
        "starts_at": "2030-01-01T00:00:00Z",
        "currency": "EUR",
        "pools": [{"code": "a", "seats": GRID}],
    }
    body = json.encode(event)
    attacker = Attacker(target, "203.0.113.1")
    await attacker.repeat(seconds, 150, lambda: attacker.send("POST", "/v1/events", body))


async def send_lists_without_a_token(target: Target, seconds: float) -> None:
    attacker = Attacker(target, "203.0.113.10")
    body = json.encode([[]] * 5_000)
    await attacker.repeat(seconds, 50, lambda: attacker.send("POST", "/v1/events", body))


async def send_brackets(target: Target, seconds: float) -> None:
    """The largest body that is hardest to count, with a token of the attacker's own."""
    attacker = Attacker(target, "203.0.113.2", **_authorization(target))
    path = f"/v1/events/{target.hall}/holds"
    await attacker.repeat(seconds, 2, lambda: attacker.send("POST", path, BRACKETS, idempotency_key="k"))


async def never_send_the_body(target: Target, seconds: float) -> None:
    head = b"POST /v1/events/x/holds HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\nIdempotency-Key: k\r\n"
    head += f"Authorization: Bearer {target.keys['sales']}\r\n\r\n".encode()
    await _keep_connections(target, seconds, "127.0.0.5", 100, head)


async def keep_connections_open(target: Target, seconds: float) -> None:
    await _keep_connections(target, seconds, "127.0.0.6", IDLE_CONNECTIONS, b"")


async def leave_seat_maps_unread(target: Target, seconds: float) -> None:
    """Ask for megabytes, and read nothing."""
    head = f"GET /v1/events/{target.edited}/seats HTTP/1.1\r\nHost: h\r\n\r\n".encode()
    await _keep_connections(target, seconds, "127.0.0.7", UNREAD_CONNECTIONS, head)


async def ask_for_scattered_seats(target: Target, seconds: float) -> None:
    """Many seats that leave no orphans, in a hall of 10,000."""
    attacker = Attacker(target, "203.0.113.3", **_authorization(target))

    async def ask() -> None:
        best = {"pool": "hall", "quantity": 100, "adjacent": False}
        body = json.encode({"user": secrets.token_hex(6), "best_available": best})
        status, answer = await attacker.send(
            "POST", f"/v1/events/{target.hall}/holds", body, idempotency_key=secrets.token_hex(8)
        )
        if status == 201:
            await attacker.send("POST", f"/v1/bookings/{json.decode(answer)['id']}/cancel")

    await attacker.repeat(seconds, 10, ask)


async def lock_events(target: Target, seconds: float) -> None:
    """Events of every lane stay locked, and holds for them pile up."""
    attacker = Attacker(target, "203.0.113.4", **_authorization(target))
    body = json.encode({"user": "u", "items": [{"pool": "places"}]})
    async with connection_to(target.database_url) as connection, connection.transaction():
        await connection.fetch(sql.engine.lock, [ids.parse_event_id(event) for event in target.locked])
        turns = iter(range(1_000_000))

        async def hold() -> None:
            event = target.locked[next(turns) % len(target.locked)]
            await attacker.send("POST", f"/v1/events/{event}/holds", body, idempotency_key=secrets.token_hex(8))

        await attacker.repeat(seconds, 20, hold)


async def edit_a_large_event(target: Target, seconds: float) -> None:
    """Every edit makes the layout of 20,000 seats stale, and every hold needs it again."""
    attacker = Attacker(target, "203.0.113.5", **_authorization(target, "admin"))

    async def edit() -> None:
        change = {secrets.choice(("block_seats", "unblock_seats")): ["R0-1"], "title": secrets.token_hex(4)}
        await attacker.send("PATCH", f"/v1/events/{target.edited}", json.encode(change))
        hold = {"user": secrets.token_hex(6), "items": [{"seat": f"R1-{secrets.randbelow(200) + 1}"}]}
        await attacker.send(
            "POST", f"/v1/events/{target.edited}/holds", json.encode(hold), idempotency_key=secrets.token_hex(8)
        )

    await attacker.repeat(seconds, 2, edit)


async def forge_webhooks(target: Target, seconds: float) -> None:
    attacker = Attacker(target, "203.0.113.6")
    forged = {"webhook_id": "msg", "webhook_timestamp": str(int(time.time())), "webhook_signature": "v1,AAAA"}
    await attacker.repeat(seconds, 50, lambda: attacker.send("POST", "/v1/webhooks/sandbox", b"{}" * 4000, **forged))


async def flood_pages(target: Target, seconds: float) -> None:
    """Pages that need no session, with a line of X-Forwarded-For that changes each time."""
    attacker = Attacker(target, "203.0.113.7")
    paths = ("/logo/nobody", "/brand/ff0000.css", "/enter?token=x", "/o/nobody", "/nowhere")
    turns = iter(range(1_000_000))
    await attacker.repeat(seconds, 40, lambda: attacker.send("GET", paths[next(turns) % len(paths)]))


async def send_on_live_sockets(target: Target, seconds: float) -> None:
    """Watchers have nothing to send. These send without end."""
    url = f"{target.url.replace('http', 'ws')}/v1/events/{target.hall}/live"
    ends_at = time.monotonic() + seconds
    async with AsyncExitStack() as stack:
        sockets = []
        for _ in range(LIVE_SOCKETS):
            with suppress(websockets.WebSocketException, OSError, TimeoutError):
                sockets.append(await stack.enter_async_context(websockets.connect(url, proxy=None, close_timeout=0.1)))
        while time.monotonic() < ends_at:
            for feed in sockets[:5]:
                with suppress(websockets.WebSocketException, OSError):
                    await feed.send("x" * 100_000)
            await asyncio.sleep(0.2)


async def bomb_a_mailbox(target: Target, seconds: float) -> None:
    """Hold with somebody else's address, and give up."""
    attacker = Attacker(target, "203.0.113.8", **_authorization(target))

    async def hold_and_cancel() -> None:
        hold = {"user": secrets.token_hex(6), "items": [{"pool": "places"}], "email": target.victim}
        path = f"/v1/events/{target.edited}/holds"
        status, answer = await attacker.send("POST", path, json.encode(hold), idempotency_key=secrets.token_hex(8))
        if status == 201:
            await attacker.send("POST", f"/v1/bookings/{json.decode(answer)['id']}/cancel")

    await attacker.repeat(seconds, 10, hold_and_cancel)


ATTACKS: tuple[Attack, ...] = (
    build_seats_without_a_token,
    send_brackets,
    never_send_the_body,
    keep_connections_open,
    leave_seat_maps_unread,
    ask_for_scattered_seats,
    lock_events,
    edit_a_large_event,
    forge_webhooks,
    flood_pages,
    send_on_live_sockets,
    bomb_a_mailbox,
)

# What somebody without a token can do at no cost, 200 times a second.
STRANGER: tuple[Attack, ...] = (build_seats_without_a_token, send_lists_without_a_token)


@contextmanager
def under_attack(target: Target, attacks: Sequence[Attack], seconds: float) -> Iterator[None]:
    """Attack from a process of its own, so that the attackers slow down nobody but the server."""
    process = get_context("spawn").Process(target=_attack, args=(json.encode(target), attacks, seconds), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.join(seconds + END_SECONDS)
        process.kill()
        process.join()


def _attack(target: bytes, attacks: Sequence[Attack], seconds: float) -> None:
    async def attack_in_all_ways() -> None:
        decoded = json.decode(target, type=Target)
        async with asyncio.timeout(seconds + END_SECONDS), asyncio.TaskGroup() as tasks:
            for attack in attacks:
                tasks.create_task(attack(decoded, seconds))

    with suppress(TimeoutError):
        asyncio.run(attack_in_all_ways())


def _authorization(target: Target, role: str = "sales") -> dict[str, Any]:
    return {"authorization": f"Bearer {target.keys[role]}"}


async def _keep_connections(target: Target, seconds: float, source: str, count: int, sent: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(count):
            with suppress(OSError):
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", target.port), 1, (source, 0)))
                connection.sendall(sent)
            await asyncio.sleep(0)
        await asyncio.sleep(seconds)
