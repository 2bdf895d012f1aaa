"""A cancelled or completed event is wound up to the last booking and the last cent, even if workers die."""

import os
import signal
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psutil

from holdfast.core.commands import Accepted, Command, SettlePayment
from holdfast.core.payment import PaymentResult
from holdfast.runtime import db, ids
from tests.support.child_processes import children_with
from tests.support.command_line import run_audit
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_event,
    new_hold_command,
    new_payment_command,
    one_pool,
    run_commands,
    shift_clock,
)
from tests.support.harness import (
    IS_LONG,
    Org,
    Server,
    example_event,
    post_hold,
    publish_event,
    query,
    run_with_connection,
    running_server,
    wait_until,
)
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.resources import booking_status, list_tickets, post_payment, reviewed_event
from tests.support.ticket_sales import buy_booking, check_in

BOOKINGS = 2_000 if IS_LONG else 300
PRICE = 1_000
WORK_SECONDS = 120
# Longer than the lease of a dead worker.
LEASE_SECONDS = 61


async def _sell(url: str, org: bytes, count: int) -> EventHandle:
    """Create an event with this many confirmed bookings, each paid in the sandbox."""
    async with lane_connection(url) as connection:
        event = await new_event(connection, org, pools=one_pool(count, PRICE), tax_bps=0)
        bookings = await _execute(connection, [new_hold_command(event) for _ in range(count)])
        payments = await _execute(connection, [new_payment_command(event, each.booking.id) for each in bookings])
        paid = [each.payment for each in payments if each.payment is not None]
        refs = [f"sbx_{event.id.hex()}{payment.id.hex()}" for payment in paid]
        await connection.executemany(
            "UPDATE payment SET provider_ref = $3 WHERE event_id = $1 AND id = $2",
            [(event.id, payment.id, ref) for payment, ref in zip(paid, refs, strict=True)],
        )
        await connection.executemany(
            "INSERT INTO sandbox_charge (ref, payment, amount, currency, description, status) "
            "VALUES ($1, $2, $3, 'EUR', '', 'paid')",
            [
                (ref, ids.format_payment_id(event.id, payment.id), PRICE)
                for payment, ref in zip(paid, refs, strict=True)
            ],
        )
        commands = [
            SettlePayment(
                event=event.id,
                org=event.org,
                booking=each.booking.id,
                payment=payment.id,
                result=PaymentResult.CAPTURED,
                actor="provider:sandbox",
                amount=PRICE,
                currency="EUR",
            )
            for each, payment in zip(payments, paid, strict=True)
        ]
        done = await _execute(connection, commands)
        assert Counter(each.booking.status for each in done) == {"confirmed": count}
        return event


async def _execute(connection: db.Connection, commands: Sequence[Command]) -> list[Accepted]:
    accepted = [outcome for outcome in await run_commands(connection, commands) if isinstance(outcome, Accepted)]
    assert len(accepted) == len(commands)
    return accepted


def _get_progress(client: httpx.Client, event: str) -> dict[str, Any]:
    return expect_ok(client.get(f"/v1/events/{event}/progress"))


def _worker(server: Server) -> psutil.Process:
    (found,) = children_with("worker", server.process.pid)
    return found


def _count_refunds(server: Server) -> Counter[int]:
    """How many charges of the sandbox were refunded, by number of refunds."""
    rows = query(
        server.database_url,
        "SELECT (SELECT count(*) FROM sandbox_refund AS refund WHERE refund.ref = charge.ref) AS times, count(*) "
        "FROM sandbox_charge AS charge GROUP BY 1",
    )
    return Counter({row["times"]: row["count"] for row in rows})


def _advance_clock(server: Server, seconds: int) -> None:
    async def shift(connection: db.Connection) -> None:
        await shift_clock(connection, seconds)

    run_with_connection(shift, server.database_url)


def _sell_event(database: str, org: Org, count: int) -> str:
    events: list[EventHandle] = []

    @async_test
    async def sell() -> None:
        events.append(await _sell(database, org.id, count))

    sell()
    return events[0].text


def test_a_large_cancelled_event_is_refunded_completely_even_if_the_worker_dies(
    database: str,
) -> None:
    org = Org(database)
    event = _sell_event(database, org, BOOKINGS)
    with running_server(database, workers=2, worker=True) as server, server.client(org.headers()) as admin:
        before = _get_progress(admin, event)
        assert (before["bookings"], before["live"], before["done"]) == (BOOKINGS, BOOKINGS, False)
        assert expect_ok(admin.post(f"/v1/events/{event}/cancel"))["status"] == "cancelled"
        expect_error(post_hold(admin, event, items=[{"pool": "places"}]), 409, "event_not_on_sale")

        progress = [_get_progress(admin, event)]

        def count_refunded() -> int:
            progress.append(_get_progress(admin, event))
            return int(progress[-1]["refunded"])

        wait_until(lambda: count_refunded() > 0, WORK_SECONDS)
        first = _worker(server)
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        assert count_refunded() < BOOKINGS, "the worker was done before it was killed"
        wait_until(lambda: bool(_workers_except(server, first.pid)), 20)
        _advance_clock(server, LEASE_SECONDS)
        wait_until(lambda: count_refunded() == BOOKINGS, WORK_SECONDS)

        ended = [each["refunds_due"] for each in progress if each["live"] == 0]
        assert ended == sorted(ended, reverse=True)
        after = _get_progress(admin, event)
        assert after == {
            "status": "cancelled",
            "bookings": BOOKINGS,
            "live": 0,
            "refunds_due": 0,
            "refunded": BOOKINGS,
            "in_review": 0,
            "done": True,
        }
        assert _count_refunds(server) == {1: BOOKINGS}
        pool = expect_ok(admin.get(f"/v1/events/{event}/availability"))["pools"][0]
        assert (pool["held"], pool["sold"]) == (0, 0)
        entries = query(
            database,
            "SELECT kind, count(*), count(DISTINCT booking_id) AS bookings FROM journal "
            "WHERE kind IN ('refunded', 'payment.refund_due', 'payment.refunded') GROUP BY kind",
        )
        assert {row["kind"]: (row["count"], row["bookings"]) for row in entries} == {
            "refunded": (BOOKINGS, BOOKINGS),
            "payment.refund_due": (BOOKINGS, BOOKINGS),
            "payment.refunded": (BOOKINGS, BOOKINGS),
        }
        assert expect_ok(admin.post(f"/v1/events/{event}/cancel"))["status"] == "cancelled"
    assert run_audit(database_url=database) == {"ok": True, "events": 1, "findings": []}


def _workers_except(server: Server, pid: int) -> list[psutil.Process]:
    return [child for child in children_with("worker", server.process.pid) if child.pid != pid]


def test_no_ticket_of_a_cancelled_event_is_admitted_while_it_waits_for_the_worker(
    database: str,
) -> None:
    org = Org(database)
    event = _sell_event(database, org, 1_500)
    with running_server(database, workers=1) as server, server.client(org.headers()) as admin:
        expect_ok(admin.post(f"/v1/events/{event}/cancel"))
        waiting = query(database, "SELECT id FROM booking WHERE status = 'confirmed' LIMIT 1")
        event_id = ids.parse_event_id(event)
        assert event_id is not None
        if waiting:
            booking = ids.format_booking_id(event_id, waiting[0]["id"])
            (ticket,) = list_tickets(admin, booking)
            expect_error(check_in(admin, ticket["code"]), 409, "ticket_void")
            assert ticket["status"] == "void"
            expect_error(admin.post(f"/v1/bookings/{booking}/transfer", json={"user": "ben"}), 409, "already_refunded")


def test_the_worker_winds_up_an_event_whose_cancelling_process_died(database: str) -> None:
    """The API process died before it ended any booking."""
    org = Org(database)
    event = _sell_event(database, org, 600)
    event_id = ids.parse_event_id(event)
    query(database, "UPDATE event SET status = 'cancelled', revision = revision + 1 WHERE id = $1", event_id)
    with running_server(database, workers=1, worker=True) as server, server.client(org.headers()) as admin:
        wait_until(lambda: _get_progress(admin, event)["live"] == 0, WORK_SECONDS)
        statuses = query(database, "SELECT status, count(*) FROM booking GROUP BY status")
        assert [(row["status"], row["count"]) for row in statuses] == [("refunded", 600)]


def test_a_cancelled_event_ends_held_submitted_free_and_paid_bookings(database: str) -> None:
    org = Org(database)
    pools = [
        {"code": "paid", "capacity": 9, "tariffs": [{"code": "full", "price": PRICE}]},
        {"code": "free", "capacity": 9},
    ]
    with running_server(database, workers=1, worker=True) as server, server.client(org.headers()) as admin:
        event = publish_event(admin, reviewed_event(pools=pools))

        def place_hold(pool: str = "paid") -> str:
            id_: str = expect_ok(post_hold(admin, event, items=[{"pool": pool}]), 201)["id"]
            return id_

        started, submitted, free, confirmed = place_hold(), place_hold(), place_hold("free"), place_hold()
        payment = expect_ok(post_payment(admin, started), 201)["id"]
        expect_ok(admin.post(f"/v1/bookings/{submitted}/receipt", json={"file_ref": "f"}))
        for booking in (free, confirmed):
            expect_ok(admin.post(f"/v1/bookings/{booking}/confirm"))
        paid = buy_booking(admin, event, {"pool": "paid"})
        expect_ok(admin.post(f"/v1/events/{event}/cancel"))
        ends = {
            started: "cancelled",
            submitted: "cancelled",
            free: "cancelled",
            confirmed: "refunded",
            paid: "refunded",
        }
        assert {booking: booking_status(admin, booking) for booking in ends} == ends
        reasons = {expect_ok(admin.get(f"/v1/bookings/{booking}"))["reason"] for booking in ends}
        assert reasons == {"event_cancelled"}
        wait_until(lambda: bool(_get_progress(admin, event)["done"]), WORK_SECONDS)
        after = _get_progress(admin, event)
        assert (after["refunded"], after["in_review"]) == (1, 1), "the receipt needs a review"
        wait_until(lambda: admin.get(f"/v1/payments/{payment}").json()["status"] == "failed", WORK_SECONDS)
        assert _count_refunds(server) == {0: 1, 1: 1}
    assert run_audit(database_url=database)["ok"]


def test_the_worker_completes_an_event_at_its_end_and_not_before(database: str) -> None:
    org = Org(database)
    now = datetime.now(UTC)
    yesterday, tomorrow = (now + timedelta(days=days) for days in (-1, 1))
    started_yesterday = {
        "starts_at": yesterday.isoformat(),
        "sales_close_at": (now + timedelta(days=2)).isoformat(),
    }
    with running_server(database, workers=1, worker=True) as server, server.client(org.headers()) as admin:
        endless = publish_event(admin, example_event(**started_yesterday))
        ongoing = publish_event(admin, example_event(**started_yesterday, ends_at=tomorrow.isoformat()))
        draft = expect_ok(
            admin.post(
                "/v1/events", json=example_event(**started_yesterday, ends_at=(now - timedelta(hours=1)).isoformat())
            ),
            201,
        )
        over = publish_event(admin, example_event(**started_yesterday))
        item = {"pool": "standing", "tariff": "full"}
        confirmed = {}
        for event in (endless, ongoing, over):
            confirmed[event] = expect_ok(post_hold(admin, event, items=[item]), 201)["id"]
            expect_ok(admin.post(f"/v1/bookings/{confirmed[event]}/confirm"))
        still_held = expect_ok(post_hold(admin, over, items=[item], user="u-2"), 201)["id"]
        expect_ok(admin.patch(f"/v1/events/{over}", json={"ends_at": (now - timedelta(hours=1)).isoformat()}))
        wait_until(lambda: booking_status(admin, confirmed[over]) == "completed", 30)
        assert expect_ok(admin.get(f"/v1/events/{over}"))["status"] == "completed"
        assert booking_status(admin, still_held) == "held"
        expect_error(post_hold(admin, over, items=[item], user="u-3"), 409, "event_not_on_sale")
        entries = expect_ok(admin.get(f"/v1/events/{over}/journal"))["items"]
        (entry,) = [entry for entry in entries if entry["kind"] == "event_completed"]
        assert entry["actor"] == "completer"
        for event in (endless, ongoing):
            assert expect_ok(admin.get(f"/v1/events/{event}"))["status"] == "active"
            assert booking_status(admin, confirmed[event]) == "confirmed"
            expect_ok(post_hold(admin, event, items=[item], user="u-3"), 201)
        assert expect_ok(admin.get(f"/v1/events/{draft['id']}"))["status"] == "draft"
        assert _get_progress(admin, over)["done"] is False, "a hold is still live"
        expect_ok(admin.post(f"/v1/bookings/{still_held}/cancel"))
        assert _get_progress(admin, over)["done"] is True
