"""A gateway repeats its notices, late and out of order, while processes die: each payment ends in exactly one way, and
each refund happens exactly once."""

import asyncio
import json
import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
from msgspec import Struct
from standardwebhooks import Webhook

from tests.support.command_line import run_audit
from tests.support.concurrent_requests import Reply, hold_request, request, send_all_at_once
from tests.support.harness import (
    IS_LONG,
    SANDBOX_SECRET,
    Org,
    Server,
    example_event,
    publish_event,
    query,
    running_server,
    wait_until,
)
from tests.support.http_assertions import expect_ok
from tests.support.resources import post_notice, start_payment

HOLD_SECONDS = 10
TIMES_KILLED = 5
SENDERS = 48
# For what must happen at all.
SENDING_SECONDS = 240
SETTLING_SECONDS = 60

# Of payments, how many there are of each kind, by how they end.
COUNT = 1000 if IS_LONG else 200
IN_TIME, DOUBLED, FAILED_FIRST, WRONG, LATE, TAKEN, PAIRS = (
    COUNT * percent // 100 for percent in (35, 10, 5, 10, 15, 15, 5)
)

Document = dict[str, Any]


class Told(Struct):
    """What the gateway has to say, and how often it had to."""

    id: str
    body: str
    sent: int = 0


def test_every_payment_ends_in_exactly_one_way_whatever_is_killed(database: str) -> None:
    with running_server(database, workers=2, worker=True) as server:
        org = Org(database)
        with server.client(org.headers()) as admin:
            late_event = publish_event(admin, _event(LATE, HOLD_SECONDS))
            hall = publish_event(admin, _hall(TAKEN))
            event = publish_event(admin, _event(2000, 900))
        key = org.keys["sales"]
        late = _begin(server, key, [(late_event, {"pool": "places"})] * LATE)
        taken = _begin(server, key, [(hall, {"seat": f"A-{number}"}) for number in range(1, TAKEN + 1)])
        in_time, doubled, failed_first, wrong = (
            _begin(server, key, [(event, {"pool": "places"})] * count)
            for count in (IN_TIME, DOUBLED, FAILED_FIRST, WRONG)
        )
        first, second = _begin_twice(server, key, [(event, {"pool": "places"})] * PAIRS)
        payments = [*late, *taken, *in_time, *doubled, *failed_first, *wrong, *first, *second]
        assert len({payment["id"] for payment in payments}) == COUNT

        # These holds expire, their checkouts close, and other buyers take the seats.
        wait_until(lambda: _has_failed(database, LATE + TAKEN), SETTLING_SECONDS)
        _take(server, key, hall)

        # The gateway captured the payments anyway and sends its notices.
        paid = [payment["provider_ref"] for payment in payments if payment not in wrong]
        query(database, "UPDATE sandbox_charge SET status = 'paid' WHERE ref = ANY ($1::text[])", paid)
        said = [_succeeded(payment) for payment in payments if payment not in wrong]
        said += [_succeeded(payment) for payment in doubled]
        said += [_told(payment, "payment.failed") for payment in failed_first]
        said += [_succeeded(payment, **_wrong(number)) for number, payment in enumerate(wrong)]
        killed = asyncio.run(_tell_all(server, said))
        assert killed == TIMES_KILLED
        assert any(one.sent > 2 for one in said), "nobody had to be told again"

        wait_until(lambda: _is_settled(database), SETTLING_SECONDS)
        ended = _endings(database)
        assert _tally(ended, in_time) == {"fulfilled": IN_TIME}
        assert _tally(ended, doubled) == {"fulfilled": DOUBLED}
        assert _tally(ended, failed_first) == {"fulfilled": FAILED_FIRST}
        assert _tally(ended, wrong) == {"review": WRONG}
        assert _tally(ended, late) == {"revived": LATE}
        assert _tally(ended, taken) == {"refunded": TAKEN}
        for one, other in zip(first, second, strict=True):
            assert {ended[one["id"]], ended[other["id"]]} == {"fulfilled", "refunded"}
        assert complaints(database) == []
        assert run_audit(database_url=database) == {"ok": True, "events": 3, "findings": []}


def complaints(database: str) -> list[str]:
    """What is wrong with the money once everything has settled: our books against each other, and against the
    gateway's own log of refunds."""
    found = []
    counts = query(database, COUNTS)[0]
    if counts["captured"] != counts["kept"] + counts["back"] + counts["left"]:
        found.append(f"captured money without an end: {dict(counts)}")
    found += [f"{row['status']} without money: {row['ref']}" for row in query(database, UNFOUNDED)]
    found += [f"{row['refunds']} refunds of {row['ref']}, which is {row['status']}" for row in query(database, REFUNDS)]
    found += [f"{row['kept']} payments kept for a booking that is {row['status']}" for row in query(database, KEPT)]
    return found


COUNTS = """
SELECT count(*) FILTER (WHERE captured_at IS NOT NULL) AS captured,
       count(*) FILTER (WHERE captured_at IS NOT NULL AND outcome IN ('fulfilled', 'revived')) AS kept,
       count(*) FILTER (WHERE captured_at IS NOT NULL AND outcome = 'refunded') AS back,
       count(*) FILTER (WHERE captured_at IS NOT NULL AND outcome = 'review') AS left
FROM payment
"""

UNFOUNDED = """
SELECT status, provider_ref AS ref FROM payment WHERE captured_at IS NULL AND outcome IS NOT NULL
"""

REFUNDS = """
SELECT coalesce(payment.status, 'nothing') AS status, coalesce(provider_ref, gone.ref) AS ref,
       coalesce(gone.refunds, 0) AS refunds
FROM payment FULL JOIN (SELECT ref, count(*) AS refunds FROM sandbox_refund GROUP BY ref) AS gone
  ON gone.ref = payment.provider_ref
WHERE coalesce(gone.refunds, 0) <> CASE payment.outcome WHEN 'refunded' THEN 1 ELSE 0 END
"""

KEPT = """
SELECT booking.status, kept.count AS kept FROM booking JOIN LATERAL (
    SELECT count(*) FROM payment WHERE payment.booking_id = booking.id AND payment.outcome IN ('fulfilled', 'revived')
) AS kept ON true
WHERE kept.count > 1 OR kept.count = 1 AND booking.status NOT IN ('confirmed', 'completed')
"""


def test_the_check_of_the_books_notices_what_must_not_be(database: str) -> None:
    with running_server(database, workers=1, worker=True) as server:
        with server.client(Org(database).headers()) as admin:
            kept, back, wrong = start_payment(admin), start_payment(admin), start_payment(admin)
            expect_ok(post_notice(admin, kept))
            expect_ok(post_notice(admin, wrong, amount=1))
            expect_ok(admin.post(f"/v1/bookings/{back['booking']}/cancel"))
            wait_until(lambda: _has_failed(database, 1), SETTLING_SECONDS)
            query(database, "UPDATE sandbox_charge SET status = 'paid'")
            expect_ok(post_notice(admin, back))
            wait_until(lambda: _is_settled(database), SETTLING_SECONDS)
    assert _endings(database) == {kept["id"]: "fulfilled", back["id"]: "refunded", wrong["id"]: "review"}
    assert complaints(database) == []
    for doctored, complaint in {
        f"INSERT INTO sandbox_refund (key, ref) VALUES ('again', '{back['provider_ref']}')": "2 refunds of sbx",
        f"INSERT INTO sandbox_refund (key, ref) VALUES ('once', '{kept['provider_ref']}')": "1 refunds of sbx",
        "INSERT INTO sandbox_refund (key, ref) VALUES ('once', 'sbx_nobody')": "which is nothing",
        "DELETE FROM sandbox_refund": "0 refunds of sbx",
        "UPDATE payment SET status = 'failed', outcome = NULL WHERE outcome = 'fulfilled'": "without an end",
        "UPDATE payment SET captured_at = NULL WHERE outcome = 'fulfilled'": "succeeded without money",
        "UPDATE booking SET status = 'expired' WHERE status = 'confirmed'": "kept for a booking that is expired",
    }.items():
        assert any(complaint in one for one in _doctored(database, doctored)), doctored


def _doctored(database: str, statement: str) -> list[str]:
    """What the check says of books that were changed so; they are put back after it."""
    tables = ("sandbox_refund", "payment", "booking")
    for table in tables:
        query(database, f"CREATE TABLE before_{table} AS TABLE {table}")
    query(database, statement)
    found = complaints(database)
    for table in tables:
        query(database, f"DELETE FROM {table}")
        query(database, f"INSERT INTO {table} SELECT * FROM before_{table}")
        query(database, f"DROP TABLE before_{table}")
    assert complaints(database) == []
    return found


def _event(capacity: int, hold_seconds: int) -> Document:
    pools = [{"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": 1000}]}]
    return example_event(pools=pools, policy=_policy(hold_seconds))


def _hall(seats: int) -> Document:
    pool = {
        "code": "hall",
        "seats": {"rows": ["A"], "numbers": seats},
        "tariffs": [{"code": "full", "price": 3000}],
    }
    return example_event(pools=[pool], policy=_policy(HOLD_SECONDS))


def _policy(hold_seconds: int) -> Document:
    return {"hold_seconds": hold_seconds, "extend_seconds": 0, "late_grace_seconds": 3600}


def _begin(server: Server, key: str, wanted: Sequence[tuple[str, Document]]) -> list[Document]:
    """A payment for a hold of each of these."""
    return _pay(server, key, _hold(server, key, wanted))


def _begin_twice(
    server: Server, key: str, wanted: Sequence[tuple[str, Document]]
) -> tuple[list[Document], list[Document]]:
    bookings = _hold(server, key, wanted)
    return _pay(server, key, bookings), _pay(server, key, bookings)


def _hold(server: Server, key: str, wanted: Sequence[tuple[str, Document]]) -> list[str]:
    bodies = [(event, {"user": secrets.token_hex(4), "items": [item]}) for event, item in wanted]
    holds = [hold_request(key, event, secrets.token_hex(8), body) for event, body in bodies]
    return [reply["id"] for reply in _all(send_all_at_once(server.port, holds, 32), 201)]


def _pay(server: Server, key: str, bookings: Sequence[str]) -> list[Document]:
    body = {"provider": "sandbox"}
    begun = [request("POST", f"/v1/bookings/{id_}/payments", key, body, secrets.token_hex(8)) for id_ in bookings]
    return _all(send_all_at_once(server.port, begun, 32), 201)


def _take(server: Server, key: str, hall: str) -> None:
    """Other buyers take every seat of the hall."""
    seats = [(hall, {"seat": f"A-{number}"}) for number in range(1, TAKEN + 1)]
    bookings = _hold(server, key, seats)
    _all(
        send_all_at_once(
            server.port, [request("POST", f"/v1/bookings/{id_}/confirm", key, {}) for id_ in bookings], 32
        ),
        200,
    )


def _all(replies: Sequence[Reply], status: int) -> list[Document]:
    assert Counter(reply.status for reply in replies) == {status: len(replies)}
    return [reply.body for reply in replies]


def _succeeded(payment: Document, **changes: Any) -> Told:
    return _told(payment, "payment.succeeded", **changes)


def _told(payment: Document, kind: str, **changes: Any) -> Told:
    data = {name: payment[name] for name in ("provider_ref", "amount", "currency")}
    return Told(f"msg_{secrets.token_hex(8)}", json.dumps({"type": kind, "data": {**data, **changes}}))


def _wrong(number: int) -> Document:
    return ({"amount": 1}, {"amount": 10**9}, {"currency": "USD"})[number % 3]


async def _tell_all(server: Server, said: Sequence[Told]) -> int:
    """Two copies of each, at the same time, repeated until the other side has taken them. Whenever a part of them is
    through, one of the processes that take them is killed. Returns how often that was."""
    waiting = [copy for one in random.sample(said, len(said)) for copy in (one, one)]
    kill_at = {len(waiting) * number // (TIMES_KILLED + 1) for number in range(1, TIMES_KILLED + 1)}
    killed = 0
    give_up_at = time.monotonic() + SENDING_SECONDS

    async def send(client: httpx.AsyncClient) -> None:
        nonlocal killed
        while waiting:
            one = waiting.pop()
            if len(waiting) in kill_at:
                kill_at.discard(len(waiting))
                killed += await asyncio.to_thread(_kill_one, server)
            await _insist(client, one, give_up_at)

    limits = httpx.Limits(max_connections=SENDERS, max_keepalive_connections=SENDERS)
    async with httpx.AsyncClient(base_url=server.url, timeout=10, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(send(client) for _ in range(SENDERS)))
    return killed


def _kill_one(server: Server) -> bool:
    """One that serves, as soon as there is one."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = server.api_pids()
        return bool(found)

    wait_until(is_there, SENDING_SECONDS)
    os.kill(random.choice(found), signal.SIGKILL)
    return True


async def _insist(client: httpx.AsyncClient, one: Told, give_up_at: float) -> None:
    while True:
        assert time.monotonic() < give_up_at, "a notice was not taken"
        one.sent += 1
        at = datetime.now(UTC)
        headers = {
            "webhook-id": one.id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(SANDBOX_SECRET).sign(one.id, at, one.body),
        }
        try:
            answer = await client.post("/v1/webhooks/sandbox", content=one.body, headers=headers)
        except httpx.TransportError:
            await asyncio.sleep(0.05)
            continue
        if answer.is_success:
            return
        assert answer.status_code == 503, answer.text
        await asyncio.sleep(0.05)


def _has_failed(database: str, count: int) -> bool:
    found: int = query(database, "SELECT count(*) FROM payment WHERE status = 'failed'")[0]["count"]
    return found == count


def _is_settled(database: str) -> bool:
    """Nothing is left to be done, about any notice or payment."""
    (left,) = query(
        database,
        "SELECT (SELECT count(*) FROM payment_notice WHERE due_at IS NOT NULL) AS notices, "
        "(SELECT count(*) FROM payment WHERE status IN ('started', 'refund_due')) AS payments",
    )
    return (left["notices"], left["payments"]) == (0, 0)


def _endings(database: str) -> dict[str, str | None]:
    rows = query(database, "SELECT 'pay_' || replace(event_id::text || id::text, '-', '') AS id, outcome FROM payment")
    return {row["id"]: row["outcome"] for row in rows}


def _tally(ended: dict[str, str | None], payments: Sequence[Document]) -> Counter[str | None]:
    return Counter(ended[payment["id"]] for payment in payments)
