"""A receipt is reviewed once: the first decision in time counts, and the buyer learns the decision and its reason."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from holdfast.runtime import ids
from tests.support.command_line import audit_findings
from tests.support.concurrent_requests import Reply, request, send_all_at_once
from tests.support.harness import IS_LONG, Org, Server, post_hold, publish_event, query, wait_until
from tests.support.http_assertions import expect_error, expect_ok
from tests.support.resources import create_held_booking, create_submitted_booking, reviewed_event, upload_receipt

ROUNDS = 50 if IS_LONG else 10
# One side wins nearly always on some machines.
ROUNDS_MAX = 400
BUYER = "ana.buyer@example.org"
REASON = "The receipt is of another shop."


@pytest.fixture
def reviewer(server: Server, org: Org) -> Any:
    with server.client(org.headers("review")) as client:
        yield client


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _submit_booking(client: httpx.Client, event: str, user: str = "u-1") -> str:
    """Hold one place, submit its receipt, and return the booking."""
    booking: str = expect_ok(post_hold(client, event, user=user, items=[{"pool": "standing", "tariff": "full"}]), 201)[
        "id"
    ]
    expect_ok(client.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": f"file of {booking}"}))
    return booking


def _event_of(booking: str) -> str:
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    return ids.format_event_id(parsed[0])


def _journal(client: httpx.Client, booking: str) -> list[dict[str, Any]]:
    entries = expect_ok(client.get(f"/v1/events/{_event_of(booking)}/journal"))["items"]
    return [entry for entry in entries if entry["booking"] == booking]


def _emails(server: Server, booking: str) -> list[tuple[str, str]]:
    """The kinds and bodies of the emails about a booking."""
    parsed = ids.parse_booking_id(booking)
    assert parsed is not None
    rows = query(
        server.database_url,
        "SELECT kind, body FROM delivery WHERE event_id = $1 AND stream = $2 AND channel = 'email' ORDER BY number",
        *parsed,
    )
    return [(row["kind"], row["body"]) for row in rows]


def _without_times(reply: Reply) -> dict[str, Any]:
    return {name: value for name, value in reply.body.items() if name not in ("server_time", "expires_in_seconds")}


def test_the_first_of_a_simultaneous_approval_and_rejection_counts(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    """Two people each click twice, on connections of their own."""
    event = publish_event(admin, reviewed_event())
    decided: Counter[str] = Counter()
    while decided.total() < ROUNDS or (len(decided) < 2 and decided.total() < ROUNDS_MAX):
        number = decided.total()
        booking = _submit_booking(admin, event, f"u-{number}")
        approve = request("POST", f"/v1/bookings/{booking}/approve", org.keys["review"])
        reject = request("POST", f"/v1/bookings/{booking}/reject", org.keys["admin"], {"reason": REASON})
        clicks = [("confirmed", approve), ("rejected", reject)] * 2
        clicks = clicks if number % 2 else clicks[::-1]
        replies = send_all_at_once(server.port, [click for _, click in clicks])
        outcomes = [outcome for outcome, _ in clicks]
        done = [(outcome, reply) for outcome, reply in zip(outcomes, replies, strict=True) if reply.status == 200]
        refused = [reply for reply in replies if reply.status != 200]
        assert len(done) == 2, replies
        (winner,) = {outcome for outcome, _ in done}
        assert [reply.body["status"] for _, reply in done] == [winner] * 2
        assert _without_times(done[0][1]) == _without_times(done[1][1])
        assert [(reply.status, reply.code) for reply in refused] == [(409, f"already_{winner}")] * 2
        decided[winner] += 1
    statuses = Counter(
        row["status"]
        for row in query(
            server.database_url, "SELECT status FROM booking WHERE event_id = $1", ids.parse_event_id(event)
        )
    )
    assert statuses == decided
    assert set(decided) == {"confirmed", "rejected"}, "one side always won, so there was no race"
    pool = expect_ok(admin.get(f"/v1/events/{event}/availability"))["pools"][1]
    assert (pool["held"], pool["sold"]) == (0, decided["confirmed"])
    entries = query(
        server.database_url,
        "SELECT booking_id, count(*) FROM journal WHERE event_id = $1 AND kind IN ('confirmed', 'rejected') GROUP BY 1",
        ids.parse_event_id(event),
    )
    assert [row["count"] for row in entries] == [1] * decided.total()
    assert audit_findings(server.database_url, event) == []


def test_the_review_deadline_replaces_the_hold_deadline(admin: httpx.Client) -> None:
    event = publish_event(
        admin, reviewed_event(policy={"review": "manual", "hold_seconds": 60, "review_seconds": 7200})
    )
    held = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)
    assert _parse_time(held["expires_at"]) - _parse_time(held["server_time"]) == timedelta(seconds=60)
    answer = expect_ok(upload_receipt(admin, held["id"]))
    assert answer["status"] == "payment_submitted"
    assert _parse_time(answer["expires_at"]) - _parse_time(answer["server_time"]) == timedelta(seconds=7200)
    assert answer["expires_in_seconds"] == 7200
    assert expect_ok(admin.get(f"/v1/bookings/{held['id']}"))["expires_at"] == answer["expires_at"]
    assert [(p["provider"], p["status"], p["amount"]) for p in answer["payments"]] == [("receipt", "submitted", 3570)]


def test_a_second_receipt_does_not_extend_the_deadline(admin: httpx.Client) -> None:
    booking = create_held_booking(admin)
    first = expect_ok(upload_receipt(admin, booking))
    second = expect_ok(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "another"}))
    assert (second["expires_at"], second["version"]) == (first["expires_at"], first["version"])


def test_a_missed_review_expires_the_booking_with_a_reason(product: Server) -> None:
    server, org = product, Org(product.database_url)
    with product.client(org.headers()) as admin:
        event = publish_event(admin, reviewed_event(policy={"review": "manual", "review_seconds": 1}))
        booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}], email=BUYER), 201)["id"]
        expect_ok(upload_receipt(admin, booking))
        wait_until(lambda: "expired" in [entry["kind"] for entry in _journal(admin, booking)], 20)
        found = expect_ok(admin.get(f"/v1/bookings/{booking}"))
        assert (found["status"], found["reason"]) == ("expired", "receipt_not_reviewed")
        (payment,) = found["payments"]
        assert (payment["status"], payment["outcome"]) == ("review", "review")
        assert payment["reason"] == "receipt_not_reviewed"
        ((kind, body),) = _emails(server, booking)
        assert kind == "booking.expired"
        assert "receipt_not_reviewed" in body
        (entry,) = [entry for entry in _journal(admin, booking) if entry["kind"] == "expired"]
        assert (entry["actor"], entry["reason"]) == ("system", "receipt_not_reviewed")
        expect_error(admin.post(f"/v1/bookings/{booking}/approve"), 410, "hold_expired")
        expect_error(admin.post(f"/v1/bookings/{booking}/reject"), 410, "hold_expired")
        expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)


def test_the_reason_of_a_rejection_reaches_the_booking_the_journal_and_the_buyer(
    server: Server, admin: httpx.Client, reviewer: httpx.Client
) -> None:
    event = publish_event(admin, reviewed_event())
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}], email=BUYER), 201)["id"]
    expect_ok(upload_receipt(admin, booking))
    answer = expect_ok(reviewer.post(f"/v1/bookings/{booking}/reject", json={"reason": REASON}))
    assert (answer["status"], answer["reason"]) == ("rejected", REASON)
    assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["reason"] == REASON
    assert [(p["status"], p["outcome"]) for p in answer["payments"]] == [("failed", None)]
    (entry,) = [entry for entry in _journal(admin, booking) if entry["kind"] == "rejected"]
    assert entry["reason"] == REASON
    assert entry["actor"].startswith("key:hf_sk_")
    ((kind, body),) = _emails(server, booking)
    assert (kind, REASON in body, BUYER in body) == ("booking.rejected", True, True)
    expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)


def test_an_approval_captures_the_payment_of_the_receipt(admin: httpx.Client, reviewer: httpx.Client) -> None:
    answer = expect_ok(reviewer.post(f"/v1/bookings/{create_submitted_booking(admin)}/approve"))
    assert answer["status"] == "confirmed"
    assert [(p["provider"], p["status"], p["outcome"]) for p in answer["payments"]] == [
        ("receipt", "succeeded", "fulfilled")
    ]


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_booking_without_a_receipt_cannot_be_reviewed(admin: httpx.Client, verb: str) -> None:
    booking = create_held_booking(admin)
    expect_error(admin.post(f"/v1/bookings/{booking}/{verb}"), 409, "not_submitted")
    assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["status"] == "held"


def test_a_review_decision_is_final(admin: httpx.Client) -> None:
    approved, rejected = create_submitted_booking(admin), create_submitted_booking(admin)
    expect_ok(admin.post(f"/v1/bookings/{approved}/approve"))
    expect_ok(admin.post(f"/v1/bookings/{rejected}/reject", json={"reason": REASON}))
    expect_error(admin.post(f"/v1/bookings/{approved}/reject"), 409, "already_confirmed")
    expect_error(admin.post(f"/v1/bookings/{rejected}/approve"), 409, "already_rejected")
    expect_error(upload_receipt(admin, approved), 409, "already_confirmed")
    expect_error(upload_receipt(admin, rejected), 409, "already_rejected")
    repeated = expect_ok(admin.post(f"/v1/bookings/{rejected}/reject", json={"reason": "Something else."}))
    assert (repeated["status"], repeated["reason"]) == ("rejected", REASON)
    expect_ok(admin.post(f"/v1/bookings/{approved}/refund"))
    expect_error(admin.post(f"/v1/bookings/{approved}/approve"), 409, "already_refunded")
    expect_error(admin.post(f"/v1/bookings/{approved}/reject"), 409, "already_refunded")


@pytest.mark.parametrize("verb", ["extend", "cancel", "confirm"])
def test_a_booking_under_review_cannot_be_extended_cancelled_or_confirmed(admin: httpx.Client, verb: str) -> None:
    expect_error(admin.post(f"/v1/bookings/{create_submitted_booking(admin)}/{verb}"), 409, "already_submitted")


def test_a_receipt_within_the_grace_period_revives_the_booking(admin: httpx.Client) -> None:
    event = publish_event(
        admin, reviewed_event(policy={"review": "manual", "hold_seconds": 1, "late_grace_seconds": 60})
    )
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    wait_until(lambda: bool(admin.get(f"/v1/bookings/{booking}").json()["status"] == "expired"), 10)
    answer = expect_ok(upload_receipt(admin, booking))
    assert answer["status"] == "payment_submitted"
    expect_error(post_hold(admin, event, items=[{"seat": "A-1"}], user="u-2"), 409, "seat_taken")
    assert expect_ok(admin.post(f"/v1/bookings/{booking}/approve"))["status"] == "confirmed"


def test_a_receipt_after_the_grace_period_or_for_a_taken_seat_is_refused(server: Server, admin: httpx.Client) -> None:
    strict = publish_event(
        admin, reviewed_event(policy={"review": "manual", "hold_seconds": 1, "late_grace_seconds": 0})
    )
    lenient = publish_event(
        admin, reviewed_event(policy={"review": "manual", "hold_seconds": 1, "late_grace_seconds": 60})
    )
    late = expect_ok(post_hold(admin, strict, items=[{"seat": "A-1"}]), 201)["id"]
    overtaken = expect_ok(post_hold(admin, lenient, items=[{"seat": "A-1"}]), 201)["id"]
    for booking in (late, overtaken):
        wait_until(lambda id_=booking: admin.get(f"/v1/bookings/{id_}").json()["status"] == "expired", 10)  # type: ignore[misc]
    expect_ok(post_hold(admin, lenient, items=[{"seat": "A-1"}], user="u-2"), 201)
    for booking in (late, overtaken):
        expect_error(upload_receipt(admin, booking), 410, "hold_expired")
        assert expect_ok(admin.get(f"/v1/bookings/{booking}"))["payments"] == []
        assert expect_ok(admin.get(f"/v1/bookings/{booking}/receipts"))["items"] == []
    assert audit_findings(server.database_url, strict, lenient) == []


def test_receipts_are_refused_if_the_event_offers_no_review(admin: httpx.Client) -> None:
    event = publish_event(admin, reviewed_event(policy={"review": "none"}))
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    expect_error(upload_receipt(admin, booking), 409, "review_not_offered")
    expect_error(admin.post(f"/v1/bookings/{booking}/receipt", json={"file_ref": "f-1"}), 409, "review_not_offered")
    found = expect_ok(admin.get(f"/v1/bookings/{booking}"))
    assert (found["status"], found["payments"]) == ("held", [])
