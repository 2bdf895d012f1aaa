"""A watcher of an event gets a snapshot and then every change, in order and without gaps, even if servers restart or
other watchers stop reading."""

import itertools
import json
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from holdfast.live.messages import RecentChanges
from tests.support.concurrent_requests import hold_request, send_all_at_once
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

Body = dict[str, Any]


@contextmanager
def watching(server: Server, event: str, query: str = "", token: str | None = None) -> Iterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {token}"} if token else None
    url = f"{server.url.replace('http', 'ws')}/v1/events/{event}/live{query}"
    with connect(url, additional_headers=headers, proxy=None, max_size=None, open_timeout=30) as feed:
        yield feed


def read_message(feed: ClientConnection, seconds: float = 30) -> Body:
    message: Body = json.loads(feed.recv(timeout=seconds))
    return message


def read_change(feed: ClientConnection) -> Body:
    """The next message that is not a beat."""
    give_up_at = time.monotonic() + 30
    while (message := read_message(feed, give_up_at - time.monotonic()))["type"] == "beat":
        pass
    return message


def read_until(feed: ClientConnection, version: int) -> list[Body]:
    """Read messages up to the one with this version."""
    messages = [read_change(feed)]
    while messages[-1].get("seq", 0) < version:
        messages.append(read_change(feed))
    return messages


def get_version(client: httpx.Client, event: str) -> int:
    number: int = client.get(f"/v1/events/{event}/availability").json()["version"]
    return number


def expected_messages(client: httpx.Client, event: str, after: int) -> list[Body]:
    """The messages that the feed must send, from the list of changes."""
    messages = client.get(f"/v1/events/{event}/changes", params={"after": after, "limit": 200}).json()["changes"]
    return [{"type": "change", **{name: each[name] for name in ("seq", "kind", "seats", "pools")}} for each in messages]


def taken_seats(client: httpx.Client, event: str) -> dict[str, str]:
    listed = client.get(f"/v1/events/{event}/seats").json()["seats"]
    return {seat["label"]: seat["state"] for seat in listed if seat["state"] != "free"}


def take_seat(client: httpx.Client, event: str, label: str, **body: Any) -> str:
    answer = post_hold(client, event, items=[{"seat": label}], **body)
    assert answer.status_code == 201, answer.text
    booking: str = answer.json()["id"]
    return booking


def act(client: httpx.Client, booking: str, action: str) -> None:
    assert client.post(f"/v1/bookings/{booking}/{action}").status_code == 200


def test_a_watcher_gets_a_snapshot_and_then_every_change(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    act(admin, take_seat(admin, event, "A-1"), "confirm")
    take_seat(admin, event, "A-2")
    assert admin.patch(f"/v1/events/{event}", json={"block_seats": ["B-1"]}).status_code == 200
    with watching(server, event) as feed:
        snapshot = read_message(feed)
        start = snapshot["version"]
        available = admin.get(f"/v1/events/{event}/availability").json()
        assert snapshot.pop("server_time").endswith("Z")
        assert snapshot == {
            "type": "snapshot",
            "version": available["version"],
            "pools": available["pools"],
            "seats": {"A-1": "sold", "A-2": "held", "B-1": "blocked"},
        }
        booking = take_seat(admin, event, "A-3")
        act(admin, booking, "confirm")
        act(admin, booking, "refund")
        post_hold(admin, event, items=[{"pool": "standing", "tariff": "child", "quantity": 2}])
        admin.patch(f"/v1/events/{event}", json={"pools": [{"code": "standing", "capacity": 400}]})
        messages = read_until(feed, start + 5)
    assert [message["kind"] for message in messages] == ["held", "confirmed", "refunded", "held", "event_changed"]
    assert messages == expected_messages(admin, event, start)


def test_a_returning_watcher_gets_each_missed_change_once(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event) as feed:
        last_seen = read_message(feed)["version"]
        take_seat(admin, event, "A-1")
        last_seen = read_until(feed, last_seen + 1)[-1]["seq"]
    for label in ("A-2", "A-3", "A-4"):
        take_seat(admin, event, label)
    with watching(server, event, f"?after={last_seen}") as feed:
        missed = read_until(feed, last_seen + 3)
        take_seat(admin, event, "A-5")
        assert missed + read_until(feed, last_seen + 4) == expected_messages(admin, event, last_seen)
    with watching(server, event, "?after=0") as feed:
        assert read_until(feed, last_seen + 4) == expected_messages(admin, event, 0)


def test_changes_that_are_no_longer_in_memory_are_not_left_out() -> None:
    recent = RecentChanges()
    recent.add(["one", "two", "three"])
    assert recent.last(2) == ["two", "three"]
    assert recent.last(3) == ["one", "two", "three"]
    assert [recent.last(count) for count in (4, 5, -1)] == [None] * 3


def test_a_watcher_too_far_behind_or_ahead_gets_a_snapshot(server: Server, org: Org, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event, f"?after={get_version(admin, event) + 1}") as feed:
        assert read_message(feed)["type"] == "snapshot"
    body = {"user": "u-1", "items": [{"pool": "standing", "tariff": "full", "quantity": 1}]}
    large_event = publish_event(
        admin,
        example_event(policy={"max_units_per_user": None}, pools=[{**example_event()["pools"][1], "capacity": 1100}]),
    )
    replies = send_all_at_once(
        server.port, [hold_request(org.keys["sales"], large_event, f"k{n}", body) for n in range(1_050)], 20
    )
    assert {reply.status for reply in replies} == {201}
    newest = get_version(admin, large_event)
    with watching(server, large_event, "?after=1") as feed:
        assert read_message(feed)["version"] == newest
    with watching(server, large_event, f"?after={newest - 1_000}") as feed:
        messages = read_until(feed, newest)
    assert [message["seq"] for message in messages] == list(range(newest - 999, newest + 1))


def test_no_watcher_misses_a_change_while_every_process_sells(server: Server, org: Org, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))
    labels = [f"{row}-{number}" for row in "AB" for number in range(1, 21)]
    requests = [
        hold_request(org.keys["sales"], event, f"{label} {round_}", {"user": "u-1", "items": [{"seat": label}]})
        for round_ in range(3)
        for label in labels
    ]
    with ExitStack() as stack:
        feeds = [stack.enter_context(watching(server, event)) for _ in range(8)]
        assert len({_pid_of(server, feed) for feed in feeds}) == 2
        starts = [read_message(feed)["version"] for feed in feeds]
        send_all_at_once(server.port, requests, 16)
        newest = get_version(admin, event)
        assert newest == starts[0] + len(labels)
        for feed, start in zip(feeds, starts, strict=True):
            messages = read_until(feed, newest)
            assert messages == expected_messages(admin, event, start)
            states = {label: state for message in messages for label, state in message["seats"].items()}
            assert states == taken_seats(admin, event) == dict.fromkeys(labels, "held")


def _pid_of(server: Server, feed: ClientConnection) -> int:
    port = feed.local_address[1]
    return next(
        pid
        for pid in server.api_pids()
        if any(c.raddr and c.raddr.port == port for c in psutil.Process(pid).net_connections("tcp"))
    )


def test_the_feed_reports_an_expired_hold(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    with watching(server, event) as feed:
        read_message(feed)
        take_seat(admin, event, "A-1")
        assert read_change(feed)["seats"] == {"A-1": "held"}
        wait_until(lambda: taken_seats(admin, event) == {}, 15)
        take_seat(admin, event, "B-1", user="u-2")
        expired, held = read_change(feed), read_change(feed)
    assert (expired["kind"], expired["seats"], expired["pools"]["stalls"]["held"]) == ("expired", {"A-1": "free"}, 0)
    assert (held["kind"], held["seats"]) == ("held", {"B-1": "held"})


def test_changes_reveal_nothing_about_users_and_payments(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event) as feed:
        start = read_message(feed)["version"]
        booking = take_seat(admin, event, "A-1", user="somebody")
        paid = admin.post(
            f"/v1/bookings/{booking}/payments",
            json={"provider": "sandbox"},
            headers={"Idempotency-Key": secrets.token_hex(8)},
        )
        assert paid.status_code == 201
        newest = get_version(admin, event)
        messages = read_until(feed, newest)
    assert len(messages) == newest - start >= 2
    assert "noted" in {message["kind"] for message in messages}
    assert "somebody" not in json.dumps(messages)
    assert "payment" not in json.dumps(messages)


def expect_refused(server: Server, event: str, query: str = "", token: str | None = None) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refusal, watching(server, event, query, token):
        pass
    response = refusal.value.response
    return response.status_code, json.loads(response.body or b"{}")["code"]


def test_a_caller_who_cannot_read_an_event_cannot_watch_it(server: Server, org: Org, admin: httpx.Client) -> None:
    draft = admin.post("/v1/events", json=example_event()).json()["id"]
    other = Org(server.database_url)
    assert expect_refused(server, draft) == (404, "not_found")
    assert expect_refused(server, draft, token=other.keys["admin"]) == (404, "not_found")
    assert expect_refused(server, publish_event(admin, example_event()), token=other.keys["admin"]) == (
        404,
        "not_found",
    )
    assert expect_refused(server, draft, token="nonsense") == (401, "unauthorized")
    with watching(server, draft, token=org.keys["door"]) as feed:
        assert read_message(feed)["type"] == "snapshot"


def test_an_invalid_handshake_is_refused(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    assert expect_refused(server, "ev_" + "0" * 32) == (404, "not_found")
    assert expect_refused(server, "nonsense") == (404, "not_found")
    for query in ("?after=-1", "?after=x", "?since=1"):
        assert expect_refused(server, event, query) == (422, "invalid_request")


@pytest.mark.parametrize("texts", [["x"] * 101, ["x" * 5_000]], ids=["too many messages", "a long message"])
def test_a_watcher_that_sends_too_much_is_disconnected(server: Server, admin: httpx.Client, texts: list[str]) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event) as patient, watching(server, event) as feed:
        read_message(patient), read_message(feed)
        for text in texts:
            feed.send(text)
        assert read_close_code(feed) == 1008
        patient.send("hello")
        take_seat(admin, event, "A-1")
        assert read_change(patient)["seats"] == {"A-1": "held"}


def read_close_code(feed: ClientConnection) -> int | None:
    """The code with which the server closed the connection, or None if it just dropped it."""
    with pytest.raises(ConnectionClosed) as closed:
        read_change(feed)
    return closed.value.rcvd.code if closed.value.rcvd else None


def test_a_watcher_that_stops_reading_is_dropped_without_delaying_others(server: Server, admin: httpx.Client) -> None:
    # Long labels, so that few changes fill the system's buffers.
    first, *labels = [f"{number:*>64}" for number in range(6_000)]
    seats = [{"label": label} for label in (first, *labels)]
    event = publish_event(admin, example_event(pools=[{**example_event()["pools"][0], "seats": seats}]))
    with watching(server, event) as feed, watching_without_reading(server, event) as port:
        start = read_message(feed)["version"]
        fields = itertools.cycle(("block_seats", "unblock_seats"))
        give_up_at = time.monotonic() + 120
        # The system buffers a few megabytes for a client that does not read.
        while is_served(server, port):
            assert time.monotonic() < give_up_at, "it was not dropped"
            assert admin.patch(f"/v1/events/{event}", json={next(fields): labels}).status_code == 200
            assert len(read_change(feed)["seats"]) == len(labels)
        take_seat(admin, event, first)
        messages = read_change(feed)
        assert (messages["seats"], messages["seq"]) == ({first: "held"}, get_version(admin, event))
        assert messages["seq"] > start + 5


@contextmanager
def watching_without_reading(server: Server, event: str) -> Iterator[int]:
    """Watch without reading anything, and return the local port."""
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        silent.connect(("127.0.0.1", server.port))
        silent.sendall(
            f"GET /v1/events/{event}/live HTTP/1.1\r\nHost: holdfast\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            "c29tZWJvZHkgaXMgaGVyZQ==\r\n\r\n".encode()
        )
        assert silent.recv(12) == b"HTTP/1.1 101"
        yield silent.getsockname()[1]


def is_served(server: Server, port: int) -> bool:
    """Whether one of the API processes still has the connection from this port open."""
    connections = [c for pid in server.api_pids() for c in psutil.Process(pid).net_connections("tcp")]
    return any(c.raddr and c.raddr.port == port for c in connections)


def test_a_process_limits_its_watchers_and_sends_heartbeats(postgres: str) -> None:
    with (
        fresh_database(postgres) as url,
        running_server(url, workers=1, HOLDFAST_LIVE_SOCKETS="2", HOLDFAST_LIVE_BEAT_SECONDS="0.2") as server,
    ):
        with server.client(Org(url).headers()) as admin:
            event = publish_event(admin, example_event())
        with watching(server, event) as first:
            newest = read_message(first)["version"]
            with watching(server, event):
                assert expect_refused(server, event) == (503, "busy")
            beat = read_message(first)
            assert beat.pop("server_time").endswith("Z")
            assert beat == {"type": "beat", "version": newest}
            wait_until(lambda: _can_watch(server, event), 10)


def _can_watch(server: Server, event: str) -> bool:
    try:
        with watching(server, event) as feed:
            return bool(read_message(feed)["type"] == "snapshot")
    except InvalidStatus:
        return False


def test_a_watcher_misses_no_change_across_a_server_restart(postgres: str) -> None:
    with fresh_database(postgres) as url:
        org = Org(url)
        with running_server(url) as server, server.client(org.headers()) as admin:
            event = publish_event(admin, example_event())
            with watching(server, event) as feed:
                last_seen = read_message(feed)["version"]
                take_seat(admin, event, "A-1")
                last_seen = read_until(feed, last_seen + 1)[-1]["seq"]
                server.process.terminate()
                assert read_close_code(feed) == 1012
            assert server.stop() == 0
        with running_server(url) as server, server.client(org.headers()) as admin:
            take_seat(admin, event, "A-2")
            take_seat(admin, event, "A-3")
            with watching(server, event, f"?after={last_seen}") as feed:
                assert read_until(feed, last_seen + 2) == expected_messages(admin, event, last_seen)
