"""A watcher of an event gets a snapshot and then every change, in order and without gaps, whatever happens to servers
and other watchers."""

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


def next_message(feed: ClientConnection, seconds: float = 30) -> Body:
    message: Body = json.loads(feed.recv(timeout=seconds))
    return message


def next_change(feed: ClientConnection) -> Body:
    """The next message that is not a beat."""
    give_up_at = time.monotonic() + 30
    while (message := next_message(feed, give_up_at - time.monotonic()))["type"] == "beat":
        pass
    return message


def messages_until(feed: ClientConnection, version: int) -> list[Body]:
    """Messages up to the one that tells of this version."""
    told = [next_change(feed)]
    while told[-1].get("seq", 0) < version:
        told.append(next_change(feed))
    return told


def version(client: httpx.Client, event: str) -> int:
    number: int = client.get(f"/v1/events/{event}/availability").json()["version"]
    return number


def changes(client: httpx.Client, event: str, after: int) -> list[Body]:
    """What the feed has to tell, from the list of changes."""
    told = client.get(f"/v1/events/{event}/changes", params={"after": after, "limit": 200}).json()["changes"]
    return [{"type": "change", **{name: each[name] for name in ("seq", "kind", "seats", "pools")}} for each in told]


def seats_of(client: httpx.Client, event: str) -> dict[str, str]:
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
        snapshot = next_message(feed)
        begin = snapshot["version"]
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
        told = messages_until(feed, begin + 5)
    assert [message["kind"] for message in told] == ["held", "confirmed", "refunded", "held", "event_changed"]
    assert told == changes(admin, event, begin)


def test_a_returning_watcher_gets_what_it_missed_and_nothing_twice(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event) as feed:
        known = next_message(feed)["version"]
        take_seat(admin, event, "A-1")
        known = messages_until(feed, known + 1)[-1]["seq"]
    for label in ("A-2", "A-3", "A-4"):
        take_seat(admin, event, label)
    with watching(server, event, f"?after={known}") as feed:
        missed = messages_until(feed, known + 3)
        take_seat(admin, event, "A-5")
        assert missed + messages_until(feed, known + 4) == changes(admin, event, known)
    with watching(server, event, "?after=0") as feed:
        assert messages_until(feed, known + 4) == changes(admin, event, 0)


def test_a_watcher_too_far_behind_or_ahead_gets_a_snapshot(server: Server, org: Org, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event, f"?after={version(admin, event) + 1}") as feed:
        assert next_message(feed)["type"] == "snapshot"
    wanted = {"user": "u-1", "items": [{"pool": "standing", "tariff": "full", "quantity": 1}]}
    loose = publish_event(
        admin,
        example_event(policy={"max_units_per_user": None}, pools=[{**example_event()["pools"][1], "capacity": 1100}]),
    )
    replies = send_all_at_once(
        server.port, [hold_request(org.keys["sales"], loose, f"k{n}", wanted) for n in range(1_050)], 20
    )
    assert {reply.status for reply in replies} == {201}
    newest = version(admin, loose)
    with watching(server, loose, "?after=1") as feed:
        assert next_message(feed)["version"] == newest
    with watching(server, loose, f"?after={newest - 1_000}") as feed:
        told = messages_until(feed, newest)
    assert [message["seq"] for message in told] == list(range(newest - 999, newest + 1))


def test_no_change_is_missed_on_any_process_while_all_of_them_sell(
    server: Server, org: Org, admin: httpx.Client
) -> None:
    event = publish_event(admin, example_event(policy={"avoid_orphans": False, "max_units_per_user": None}))
    labels = [f"{row}-{number}" for row in "AB" for number in range(1, 21)]
    asked = [
        hold_request(org.keys["sales"], event, f"{label} {round_}", {"user": "u-1", "items": [{"seat": label}]})
        for round_ in range(3)
        for label in labels
    ]
    with ExitStack() as stack:
        feeds = [stack.enter_context(watching(server, event)) for _ in range(8)]
        assert len({_process_of(server, feed) for feed in feeds}) == 2
        begins = [next_message(feed)["version"] for feed in feeds]
        send_all_at_once(server.port, asked, 16)
        newest = version(admin, event)
        assert newest == begins[0] + len(labels)
        for feed, begin in zip(feeds, begins, strict=True):
            told = messages_until(feed, newest)
            assert told == changes(admin, event, begin)
            states = {label: state for message in told for label, state in message["seats"].items()}
            assert states == seats_of(admin, event) == dict.fromkeys(labels, "held")


def _process_of(server: Server, feed: ClientConnection) -> int:
    port = feed.local_address[1]
    return next(
        pid
        for pid in server.api_pids()
        if any(c.raddr and c.raddr.port == port for c in psutil.Process(pid).net_connections("tcp"))
    )


def test_the_feed_reports_an_expired_hold(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event(policy={"hold_seconds": 1}))
    with watching(server, event) as feed:
        next_message(feed)
        take_seat(admin, event, "A-1")
        assert next_change(feed)["seats"] == {"A-1": "held"}
        wait_until(lambda: seats_of(admin, event) == {}, 15)
        take_seat(admin, event, "B-1", user="u-2")
        expired, held = next_change(feed), next_change(feed)
    assert (expired["kind"], expired["seats"], expired["pools"]["stalls"]["held"]) == ("expired", {"A-1": "free"}, 0)
    assert (held["kind"], held["seats"]) == ("held", {"B-1": "held"})


def test_changes_reveal_nothing_about_users_and_payments(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event) as feed:
        begin = next_message(feed)["version"]
        booking = take_seat(admin, event, "A-1", user="somebody")
        paid = admin.post(
            f"/v1/bookings/{booking}/payments",
            json={"provider": "sandbox"},
            headers={"Idempotency-Key": secrets.token_hex(8)},
        )
        assert paid.status_code == 201
        newest = version(admin, event)
        told = messages_until(feed, newest)
    assert len(told) == newest - begin >= 2
    assert "noted" in {message["kind"] for message in told}
    assert "somebody" not in json.dumps(told)
    assert "payment" not in json.dumps(told)


def refused(server: Server, event: str, query: str = "", token: str | None = None) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refusal, watching(server, event, query, token):
        pass
    response = refusal.value.response
    return response.status_code, json.loads(response.body or b"{}")["code"]


def test_a_caller_who_may_not_see_an_event_may_not_watch_it(server: Server, org: Org, admin: httpx.Client) -> None:
    draft = admin.post("/v1/events", json=example_event()).json()["id"]
    other = Org(server.database_url)
    assert refused(server, draft) == (404, "not_found")
    assert refused(server, draft, token=other.keys["admin"]) == (404, "not_found")
    assert refused(server, publish_event(admin, example_event()), token=other.keys["admin"]) == (404, "not_found")
    assert refused(server, draft, token="nonsense") == (401, "unauthorized")
    with watching(server, draft, token=org.keys["door"]) as feed:
        assert next_message(feed)["type"] == "snapshot"


def test_a_handshake_that_makes_no_sense_is_refused(server: Server, admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    assert refused(server, "ev_" + "0" * 32) == (404, "not_found")
    assert refused(server, "nonsense") == (404, "not_found")
    for query in ("?after=-1", "?after=x", "?since=1"):
        assert refused(server, event, query) == (422, "invalid_request")


@pytest.mark.parametrize("said", [["x"] * 101, ["x" * 5_000]], ids=["often", "at length"])
def test_a_watcher_that_talks_too_much_is_sent_away(server: Server, admin: httpx.Client, said: list[str]) -> None:
    event = publish_event(admin, example_event())
    with watching(server, event) as patient, watching(server, event) as feed:
        next_message(patient), next_message(feed)
        for text in said:
            feed.send(text)
        assert closed_with(feed) == 1008
        patient.send("hello")
        take_seat(admin, event, "A-1")
        assert next_change(patient)["seats"] == {"A-1": "held"}


def closed_with(feed: ClientConnection) -> int | None:
    """How the server closed the connection, if it did so in form."""
    with pytest.raises(ConnectionClosed) as closed:
        next_change(feed)
    return closed.value.rcvd.code if closed.value.rcvd else None


def test_a_watcher_that_stops_reading_is_dropped_and_others_do_not_notice(server: Server, admin: httpx.Client) -> None:
    # The longest labels there are, four bytes a character, so that few changes fill the buffers of the system.
    first, *labels = [f"{number:🎭>64}" for number in range(2_500)]
    seats = [{"label": label} for label in (first, *labels)]
    event = publish_event(admin, example_event(pools=[{**example_event()["pools"][0], "seats": seats}]))
    with watching(server, event) as feed, watching_deaf(server, event) as port:
        begin = next_message(feed)["version"]
        changes_of_many = itertools.cycle(("block_seats", "unblock_seats"))
        give_up_at = time.monotonic() + 120
        # The system takes in some megabytes for somebody who does not read.
        while is_served(server, port):
            assert time.monotonic() < give_up_at, "it was not dropped"
            assert admin.patch(f"/v1/events/{event}", json={next(changes_of_many): labels}).status_code == 200
            assert len(next_change(feed)["seats"]) == len(labels)
        take_seat(admin, event, first)
        told = next_change(feed)
        assert (told["seats"], told["seq"]) == ({first: "held"}, version(admin, event))
        assert told["seq"] > begin + 5


@contextmanager
def watching_deaf(server: Server, event: str) -> Iterator[int]:
    """A watcher that reads nothing, and the port it watches from."""
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(
            f"GET /v1/events/{event}/live HTTP/1.1\r\nHost: holdfast\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            "c29tZWJvZHkgaXMgaGVyZQ==\r\n\r\n".encode()
        )
        assert deaf.recv(12) == b"HTTP/1.1 101"
        yield deaf.getsockname()[1]


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
            newest = next_message(first)["version"]
            with watching(server, event):
                assert refused(server, event) == (503, "busy")
            beat = next_message(first)
            assert beat.pop("server_time").endswith("Z")
            assert beat == {"type": "beat", "version": newest}
            wait_until(lambda: _fits(server, event), 10)


def _fits(server: Server, event: str) -> bool:
    try:
        with watching(server, event) as feed:
            return bool(next_message(feed)["type"] == "snapshot")
    except InvalidStatus:
        return False


def test_a_watcher_misses_nothing_when_the_server_is_started_again(postgres: str) -> None:
    with fresh_database(postgres) as url:
        org = Org(url)
        with running_server(url) as server, server.client(org.headers()) as admin:
            event = publish_event(admin, example_event())
            with watching(server, event) as feed:
                known = next_message(feed)["version"]
                take_seat(admin, event, "A-1")
                known = messages_until(feed, known + 1)[-1]["seq"]
                server.process.terminate()
                assert closed_with(feed) == 1012
            assert server.stop() == 0
        with running_server(url) as server, server.client(org.headers()) as admin:
            take_seat(admin, event, "A-2")
            take_seat(admin, event, "A-3")
            with watching(server, event, f"?after={known}") as feed:
                assert messages_until(feed, known + 2) == changes(admin, event, known)
