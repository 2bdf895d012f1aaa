"""A large audience watches one event while it sells. `python -m bench.live` measures it with five times as many."""

from bench.live import measure

from tests.support.harness import Org, Server

SOCKETS = 1_000
# The memory of a socket, and as much again for messages in transit.
MEGABYTES_PER_SOCKET = 0.35
MEGABYTES_OVERHEAD = 100


def test_a_thousand_watchers_get_every_change_while_two_hundred_holds_a_second_are_placed(
    server: Server, org: Org
) -> None:
    report = measure(server, org, SOCKETS, 200, 3)
    seen = report.seen
    assert (seen.sockets, seen.gaps, seen.lost, seen.behind) == (SOCKETS, 0, 0, 0)
    assert report.holds == 600
    assert seen.merged, "some messages must have been merged"
    with server.client() as client:
        listed = client.get(f"/v1/events/{report.event}/seats").json()["seats"]
    assert seen.states == {seat["label"]: seat["state"] for seat in listed if seat["state"] != "free"}
    assert len(seen.states) == report.holds
    growth = sum(report.megabytes) - sum(report.idle_megabytes)
    assert growth < SOCKETS * MEGABYTES_PER_SOCKET + MEGABYTES_OVERHEAD
