"""The log of a running server: what a request leaves behind, for programs and for people."""

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import call_holdfast
from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    running_server,
    wait_until,
)
from tests.support.http_assertions import expect_ok
from tests.support.log_capture import CapturedLog, redirect_output

WAIT_SECONDS = 60
STANDING = [{"pool": "standing", "tariff": "full"}]


class LoggedRequests:
    """A server, its log, and one event that it sells."""

    def __init__(self, server: Server, log: CapturedLog) -> None:
        self.server = server
        self.log = log
        self.admin = server.client(Org(server.database_url).headers())
        self.event = publish_event(self.admin, example_event())

    def lines(self, **fields: Any) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.text.splitlines() if line.startswith("{") and line[-1] == "}"]
        return [line for line in found if fields.items() <= line.items()]

    def wait_for(self, **fields: Any) -> dict[str, Any]:
        wait_until(lambda: bool(self.lines(**fields)), WAIT_SECONDS)
        (line,) = self.lines(**fields)
        return line


@contextmanager
def _logged(postgres: str, path: Path, **environment: str) -> Iterator[LoggedRequests]:
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(postgres))
        with redirect_output(path):
            server = stack.enter_context(running_server(database, workers=1, worker=False, **environment))
        logged = LoggedRequests(server, CapturedLog(path))
        stack.callback(logged.admin.close)
        yield logged


@pytest.fixture(scope="module")
def logged(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedRequests]:
    with _logged(postgres, tmp_path_factory.mktemp("log") / "log", HOLDFAST_LOG_ATTEMPTS="5") as logged:
        yield logged


def test_a_hold_leaves_its_attempt_and_its_booking_under_the_request_id(logged: LoggedRequests) -> None:
    headers = {"X-Request-ID": "shop-42", "Idempotency-Key": "k-1"}
    body = {"user": "u-1", "items": STANDING}
    held = expect_ok(logged.admin.post(f"/v1/events/{logged.event}/holds", json=body, headers=headers), 201)
    attempt = logged.wait_for(event="hold_attempted", request_id="shop-42")
    line = logged.wait_for(event="booking_held", request_id="shop-42")
    for each in (attempt, line):
        assert (each["level"], each["event_id"], each["booking"]) == ("info", logged.event, held["id"])
        assert each["org"].startswith("org_")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", each["timestamp"])
    assert line["outcome"] == "accepted"
    assert line["duration_ms"] >= 0


def test_a_refused_hold_says_why(logged: LoggedRequests) -> None:
    expect_ok(post_hold(logged.admin, logged.event, items=[{"seat": "A-1"}]), 201)
    refused = post_hold(logged.admin, logged.event, user="u-2", items=[{"seat": "A-1"}])
    assert refused.status_code == 409
    line = logged.wait_for(event="hold_refused", request_id=refused.headers["x-request-id"])
    assert (line["refusal"], line["outcome"]) == (refused.json()["code"], "refused")


def test_a_customer_has_a_pseudonym_that_follows_them(logged: LoggedRequests) -> None:
    user = f"ana.{secrets.token_hex(4)}@example.org"
    token = expect_ok(logged.admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    with logged.server.client({"Authorization": f"Bearer {token}"}) as customer:
        answer = customer.post(
            f"/v1/events/{logged.event}/holds", json={"items": STANDING}, headers={"Idempotency-Key": "k-2"}
        )
        booking = expect_ok(answer, 201)["id"]
        expect_ok(customer.post(f"/v1/bookings/{booking}/cancel"))
    held, cancelled = (logged.wait_for(event=name, booking=booking) for name in ("booking_held", "booking_cancelled"))
    assert re.fullmatch(r"user:[0-9a-f]{12}", held["actor"])
    assert cancelled["actor"] == held["actor"]
    assert user.partition("@")[0] not in logged.log.text


def test_a_booking_has_a_line_for_each_change_and_an_event_too(logged: LoggedRequests) -> None:
    booking = expect_ok(post_hold(logged.admin, logged.event, items=STANDING), 201)["id"]
    expect_ok(logged.admin.post(f"/v1/bookings/{booking}/confirm"))
    expect_ok(logged.admin.post(f"/v1/bookings/{booking}/refund"))
    logged.wait_for(event="booking_refunded", booking=booking)
    names = [line["event"] for line in logged.lines(booking=booking) if line["event"].startswith("booking_")]
    assert names == ["booking_held", "booking_confirmed", "booking_refunded"]
    assert logged.wait_for(event="event_published", event_id=logged.event)["actor"].startswith("key:")


def test_attempts_add_up_in_a_rush(logged: LoggedRequests) -> None:
    event = publish_event(logged.admin, example_event())
    before = _count_attempts(logged)
    for _ in range(40):
        post_hold(logged.admin, event, user="u-3", items=[{"seat": "B-1"}])
    wait_until(lambda: _count_attempts(logged) == before + 40, WAIT_SECONDS)


def _count_attempts(logged: LoggedRequests) -> int:
    counted = [line["lines"] for line in logged.lines(event="lines_suppressed", name="hold_attempted")]
    return len(logged.lines(event="hold_attempted")) + int(sum(counted))


def test_people_can_read_the_log_as_text(postgres: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with _logged(postgres, path, HOLDFAST_LOG_FORMAT="console") as logged:
        expect_ok(post_hold(logged.admin, logged.event, items=STANDING), 201)
        wait_until(lambda: "booking_held" in logged.log.text, WAIT_SECONDS)
    text = path.read_text()
    assert not [line for line in text.splitlines() if line.startswith("{")]
    assert re.search(r"booking_held .*outcome=accepted", text)


def test_transitions_can_be_turned_off(postgres: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with _logged(postgres, path, HOLDFAST_LOG_TRANSITIONS="false", HOLDFAST_LOG_ATTEMPTS="1000") as logged:
        expect_ok(post_hold(logged.admin, logged.event, items=STANDING), 201)
        # The line of a later refusal is written after the line of the hold would be.
        expect_ok(post_hold(logged.admin, logged.event, items=[{"seat": "A-1"}]), 201)
        assert post_hold(logged.admin, logged.event, items=[{"seat": "A-1"}], user="u-2").status_code == 409
        logged.wait_for(event="hold_refused")
        assert logged.lines(event="booking_held") == []
        assert len(logged.lines(event="hold_attempted")) == 3


def test_a_format_that_does_not_exist_is_refused() -> None:
    done = call_holdfast("postgresql://127.0.0.1:9/none", "worker", HOLDFAST_LOG_FORMAT="xml")
    assert done.returncode == 2
    assert "HOLDFAST_LOG_FORMAT" in done.stderr
