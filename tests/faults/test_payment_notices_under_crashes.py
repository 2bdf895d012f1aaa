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
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import httpx
from msgspec import Struct
from standardwebhooks import Webhook

from holdfast.runtime import ids
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

TIMES_KILLED = 5
SENDERS = 48
# Deadlines that only keep the test from hanging.
SENDING_SECONDS = 240
SETTLING_SECONDS = 60

POLICY = {"extend_seconds": 0, "late_grace_seconds": 3600}

# The number of payments of each kind.
COUNT = 1000 if IS_LONG else 100
IN_TIME, DOUBLED, FAILED_FIRST, WRONG, LATE, TAKEN, PAIRS = (
    COUNT * percent // 100 for percent in (35, 10, 5, 10, 15, 15, 5)
)

Document = dict[str, Any]


class GatewayNotice(Struct):
    """A notice of the gateway, and how often it was sent."""

    id: str
    body: str
    sent: int = 0


def test_every_payment_ends_in_exactly_one_way_even_if_processes_are_killed(database: str) -> None:
    with running_server(database, workers=2, worker=True) as server:
        org = Org(database)
        with server.client(org.headers()) as admin:
            late_event = publish_event(admin, _event(LATE))
            hall = publish_event(admin, _hall(TAKEN))
            event = publish_event(admin, _event(2000))
        key = org.keys["sales"]
        late = _start_payments(server, key, [(late_event, {"pool": "places"})] * LATE)
        taken = _start_payments(server, key, [(hall, {"seat": f"A-{number}"}) for number in range(1, TAKEN + 1)])
        in_time, doubled, failed_first, wrong = (
            _start_payments(server, key, [(event, {"pool": "places"})] * count)
            for count in (IN_TIME, DOUBLED, FAILED_FIRST, WRONG)
        )
        first, second = _start_two_payments(server, key, [(event, {"pool": "places"})] * PAIRS)
        payments = [*late, *taken, *in_time, *doubled, *failed_first, *wrong, *first, *second]
        assert len({payment["id"] for payment in payments}) == COUNT

        # These holds expire, their checkouts close, and other buyers take the seats.
        _expire_holds(database, late_event, hall)
        wait_until(lambda: _has_failed(database, LATE + TAKEN), SETTLING_SECONDS)
        _sell_all_seats(server, key, hall)

        # The gateway captured the payments anyway and sends its notices.
        paid = [payment["provider_ref"] for payment in payments if payment not in wrong]
        query(database, "UPDATE sandbox_charge SET status = 'paid' WHERE ref = ANY ($1::text[])", paid)
        notices = [_success_notice(payment) for payment in payments if payment not in wrong]
        notices += [_success_notice(payment) for payment in doubled]
        notices += [_notice(payment, "payment.failed") for payment in failed_first]
        notices += [_success_notice(payment, **_wrong_data(number)) for number, payment in enumerate(wrong)]
        killed = asyncio.run(_send_all(server, notices))
        assert killed == TIMES_KILLED
        assert any(notice.sent > 2 for notice in notices), "no notice had to be sent again"

        wait_until(lambda: _is_settled(database), SETTLING_SECONDS)
        outcomes = _outcomes(database)
        assert _tally(outcomes, in_time) == {"fulfilled": IN_TIME}
        assert _tally(outcomes, doubled) == {"fulfilled": DOUBLED}
        assert _tally(outcomes, failed_first) == {"fulfilled": FAILED_FIRST}
        assert _tally(outcomes, wrong) == {"review": WRONG}
        assert _tally(outcomes, late) == {"revived": LATE}
        assert _tally(outcomes, taken) == {"refunded": TAKEN}
        for one, other in zip(first, second, strict=True):
            assert {outcomes[one["id"]], outcomes[other["id"]]} == {"fulfilled", "refunded"}
        assert find_inconsistencies(database) == []
        assert run_audit(database_url=database) == {"ok": True, "events": 3, "findings": []}


def find_inconsistencies(database: str) -> list[str]:
    """Compare the settled payments with each other, with their bookings, and with the gateway's refunds."""
    found = []
    counts = query(database, COUNTS)[0]
    if counts["captured"] != counts["kept"] + counts["refunded"] + counts["in_review"]:
        found.append(f"captured payments without an end: {dict(counts)}")
    found += [f"{row['status']} without a capture: {row['ref']}" for row in query(database, UNFOUNDED)]
    found += [f"{row['refunds']} refunds of {row['ref']}, which is {row['status']}" for row in query(database, REFUNDS)]
    found += [f"{row['kept']} payments kept for a booking that is {row['status']}" for row in query(database, KEPT)]
    return found


COUNTS = """
SELECT count(*) FILTER (WHERE captured_at IS NOT NULL) AS captured,
       count(*) FILTER (WHERE captured_at IS NOT NULL AND outcome IN ('fulfilled', 'revived')) AS kept,
       count(*) FILTER (WHERE captured_at IS NOT NULL AND outcome = 'refunded') AS refunded,
       count(*) FILTER (WHERE captured_at IS NOT NULL AND outcome = 'review') AS in_review
FROM payment
"""

UNFOUNDED = """
SELECT status, provider_ref AS ref FROM payment WHERE captured_at IS NULL AND outcome IS NOT NULL
"""

REFUNDS = """
SELECT coalesce(payment.status, 'nothing') AS status, coalesce(provider_ref, refunded.ref) AS ref,
       coalesce(refunded.refunds, 0) AS refunds
FROM payment FULL JOIN (SELECT ref, count(*) AS refunds FROM sandbox_refund GROUP BY ref) AS refunded
  ON refunded.ref = payment.provider_ref
WHERE coalesce(refunded.refunds, 0) <> CASE payment.outcome WHEN 'refunded' THEN 1 ELSE 0 END
"""

KEPT = """
SELECT booking.status, kept.count AS kept FROM booking JOIN LATERAL (
    SELECT count(*) FROM payment WHERE payment.booking_id = booking.id AND payment.outcome IN ('fulfilled', 'revived')
) AS kept ON true
WHERE kept.count > 1 OR kept.count = 1 AND booking.status NOT IN ('confirmed', 'completed')
"""


def test_the_check_finds_every_kind_of_inconsistency(database: str) -> None:
    with running_server(database, workers=1, worker=True) as server:
        with server.client(Org(database).headers()) as admin:
            kept, refunded, wrong = start_payment(admin), start_payment(admin), start_payment(admin)
            expect_ok(post_notice(admin, kept))
            expect_ok(post_notice(admin, wrong, amount=1))
            expect_ok(admin.post(f"/v1/bookings/{refunded['booking']}/cancel"))
            wait_until(lambda: _has_failed(database, 1), SETTLING_SECONDS)
            query(database, "UPDATE sandbox_charge SET status = 'paid'")
            expect_ok(post_notice(admin, refunded))
            wait_until(lambda: _is_settled(database), SETTLING_SECONDS)
    assert _outcomes(database) == {kept["id"]: "fulfilled", refunded["id"]: "refunded", wrong["id"]: "review"}
    assert find_inconsistencies(database) == []
    for corruption, message in {
        f"INSERT INTO sandbox_refund (key, ref) VALUES ('again', '{refunded['provider_ref']}')": "2 refunds of sbx",
        f"INSERT INTO sandbox_refund (key, ref) VALUES ('once', '{kept['provider_ref']}')": "1 refunds of sbx",
        "INSERT INTO sandbox_refund (key, ref) VALUES ('once', 'sbx_nobody')": "which is nothing",
        "DELETE FROM sandbox_refund": "0 refunds of sbx",
        "UPDATE payment SET status = 'failed', outcome = NULL WHERE outcome = 'fulfilled'": "without an end",
        "UPDATE payment SET captured_at = NULL WHERE outcome = 'fulfilled'": "succeeded without a capture",
        "UPDATE booking SET status = 'expired' WHERE status = 'confirmed'": "kept for a booking that is expired",
    }.items():
        assert any(message in found for found in _check_corrupted(database, corruption)), corruption


def _check_corrupted(database: str, statement: str) -> list[str]:
    """Corrupt the database with this statement, run the check, and undo the corruption."""
    tables = ("sandbox_refund", "payment", "booking")
    for table in tables:
        query(database, f"CREATE TABLE before_{table} AS TABLE {table}")
    query(database, statement)
    found = find_inconsistencies(database)
    for table in tables:
        query(database, f"DELETE FROM {table}")
        query(database, f"INSERT INTO {table} SELECT * FROM before_{table}")
        query(database, f"DROP TABLE before_{table}")
    assert find_inconsistencies(database) == []
    return found


def _event(capacity: int) -> Document:
    pools = [{"code": "places", "capacity": capacity, "tariffs": [{"code": "full", "price": 1000}]}]
    return example_event(pools=pools, policy=POLICY)


def _hall(seats: int) -> Document:
    pool = {
        "code": "hall",
        "seats": {"rows": ["A"], "numbers": seats},
        "tariffs": [{"code": "full", "price": 3000}],
    }
    return example_event(pools=[pool], policy=POLICY)


def _expire_holds(database: str, *events: str) -> None:
    statement = "UPDATE booking SET expires_at = holdfast_now() - interval '1 second' WHERE event_id = ANY ($1)"
    query(database, statement, [ids.parse_event_id(event) for event in events])


def _start_payments(server: Server, key: str, items: Sequence[tuple[str, Document]]) -> list[Document]:
    """Hold each of these items and start its payment."""
    return _pay(server, key, _hold(server, key, items))


def _start_two_payments(
    server: Server, key: str, items: Sequence[tuple[str, Document]]
) -> tuple[list[Document], list[Document]]:
    bookings = _hold(server, key, items)
    return _pay(server, key, bookings), _pay(server, key, bookings)


def _hold(server: Server, key: str, items: Sequence[tuple[str, Document]]) -> list[str]:
    bodies = [(event, {"user": secrets.token_hex(4), "items": [item]}) for event, item in items]
    holds = [hold_request(key, event, secrets.token_hex(8), body) for event, body in bodies]
    return [reply["id"] for reply in _expect_status(send_all_at_once(server.port, holds, 32), 201)]


def _pay(server: Server, key: str, bookings: Sequence[str]) -> list[Document]:
    body = {"provider": "sandbox"}
    requests = [request("POST", f"/v1/bookings/{id_}/payments", key, body, secrets.token_hex(8)) for id_ in bookings]
    return _expect_status(send_all_at_once(server.port, requests, 32), 201)


def _sell_all_seats(server: Server, key: str, hall: str) -> None:
    """Sell every seat of the hall to other buyers."""
    seats = [(hall, {"seat": f"A-{number}"}) for number in range(1, TAKEN + 1)]
    bookings = _hold(server, key, seats)
    _expect_status(
        send_all_at_once(
            server.port, [request("POST", f"/v1/bookings/{id_}/confirm", key, {}) for id_ in bookings], 32
        ),
        200,
    )


def _expect_status(replies: Sequence[Reply], status: int) -> list[Document]:
    assert Counter(reply.status for reply in replies) == {status: len(replies)}
    return [reply.body for reply in replies]


def _success_notice(payment: Document, **changes: Any) -> GatewayNotice:
    return _notice(payment, "payment.succeeded", **changes)


def _notice(payment: Document, kind: str, **changes: Any) -> GatewayNotice:
    data = {name: payment[name] for name in ("provider_ref", "amount", "currency")}
    return GatewayNotice(f"msg_{secrets.token_hex(8)}", json.dumps({"type": kind, "data": {**data, **changes}}))


def _wrong_data(number: int) -> Document:
    return ({"amount": 1}, {"amount": 10**9}, {"currency": "USD"})[number % 3]


async def _send_all(server: Server, notices: Sequence[GatewayNotice]) -> int:
    """Send two copies of each notice and repeat them until they are accepted. Kill an API process several times along
    the way. Return the number of kills."""
    waiting = [copy for notice in random.sample(notices, len(notices)) for copy in (notice, notice)]
    kill_at = {len(waiting) * number // (TIMES_KILLED + 1) for number in range(1, TIMES_KILLED + 1)}
    killed = 0
    give_up_at = time.monotonic() + SENDING_SECONDS

    async def send(client: httpx.AsyncClient) -> None:
        nonlocal killed
        while waiting:
            notice = waiting.pop()
            if len(waiting) in kill_at:
                kill_at.discard(len(waiting))
                await asyncio.to_thread(_kill_api_process, server)
                killed += 1
            await _send_until_accepted(client, notice, give_up_at)

    limits = httpx.Limits(max_connections=SENDERS, max_keepalive_connections=SENDERS)
    async with httpx.AsyncClient(base_url=server.url, timeout=10, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(send(client) for _ in range(SENDERS)))
    return killed


def _kill_api_process(server: Server) -> None:
    """Kill an API process as soon as one serves."""

    def kill_one() -> bool:
        pids = server.api_pids()
        for pid in random.sample(pids, len(pids)):
            # Another sender may just have killed it.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    wait_until(kill_one, SENDING_SECONDS)


async def _send_until_accepted(client: httpx.AsyncClient, notice: GatewayNotice, give_up_at: float) -> None:
    while True:
        assert time.monotonic() < give_up_at, "a notice was not accepted"
        notice.sent += 1
        at = datetime.now(UTC)
        headers = {
            "webhook-id": notice.id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(SANDBOX_SECRET).sign(notice.id, at, notice.body),
        }
        try:
            answer = await client.post("/v1/webhooks/sandbox", content=notice.body, headers=headers)
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
    """Whether no notice and no payment has work left."""
    (left,) = query(
        database,
        "SELECT (SELECT count(*) FROM payment_notice WHERE due_at IS NOT NULL) AS notices, "
        "(SELECT count(*) FROM payment WHERE status IN ('started', 'refund_due')) AS payments",
    )
    return (left["notices"], left["payments"]) == (0, 0)


def _outcomes(database: str) -> dict[str, str | None]:
    rows = query(database, "SELECT 'pay_' || replace(event_id::text || id::text, '-', '') AS id, outcome FROM payment")
    return {row["id"]: row["outcome"] for row in rows}


def _tally(outcomes: dict[str, str | None], payments: Sequence[Document]) -> Counter[str | None]:
    return Counter(outcomes[payment["id"]] for payment in payments)
