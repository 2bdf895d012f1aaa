"""The documented commands restore a database to a moment, with everything that was acknowledged before it."""

import asyncio
import secrets
import threading
from collections.abc import Iterator

import httpx
import pytest

from holdfast.runtime import embedded
from tests.support.command_line import call_holdfast, run_audit
from tests.support.harness import (
    Org,
    example_event,
    post_hold,
    publish_event,
    query,
    running_server,
    temporary_folder,
    wait_until,
)
from tests.support.postgres_cluster import Cluster
from tests.support.shell_examples import read_example

POOLS = [{"code": "places", "capacity": 1_000_000, "tariffs": [{"code": "full", "price": 100}]}]
SECONDS = 60


class Seller:
    """Sells places until it is stopped, and remembers what was acknowledged."""

    def __init__(self, client: httpx.Client, event: str) -> None:
        self._client = client
        self._event = event
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sell)
        self.bookings: list[str] = []

    def __enter__(self) -> "Seller":
        self._thread.start()
        self.wait_for_more(5)
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_for_more(5)
        self._stopping.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        enough = len(self.bookings) + count
        wait_until(lambda: len(self.bookings) >= enough or not self._thread.is_alive(), SECONDS)

    def _sell(self) -> None:
        while not self._stopping.wait(0.01):
            answer = post_hold(self._client, self._event, user=secrets.token_hex(6), items=[{"pool": "places"}])
            assert answer.status_code == 201, answer.text
            self.bookings.append(answer.json()["id"])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with temporary_folder() as folder:
        yield Cluster(folder)


def test_a_restore_has_what_was_sold_before_a_moment_and_nothing_after_it(cluster: Cluster) -> None:
    places = {name: str(cluster.folder / name.lower()) for name in ("ARCHIVE", "BASE", "RESTORED")}
    assert all(f"export {name}=" in read_example("deployment.md", "export ARCHIVE=") for name in places)
    cluster.create()
    cluster.start()
    cluster.run(read_example("deployment.md", "# on the server, as the user postgres"), places)
    cluster.stop(cluster.data)
    cluster.start()
    running = cluster.data
    try:
        asyncio.run(embedded.create_application_role(cluster.url))
        assert call_holdfast(cluster.url, "migrate").returncode == 0
        org = Org(cluster.url)
        with running_server(cluster.url, workers=1) as server, server.client(org.headers()) as client:
            event = publish_event(client, example_event(pools=POOLS))
            with Seller(client, event) as early:
                cluster.run(read_example("deployment.md", "# every night"), places)
            target = str(query(cluster.url, "SELECT clock_timestamp()")[0][0])
            with Seller(client, event) as late:
                pass
        query(cluster.url, "DELETE FROM line")
        assert not run_audit(database_url=cluster.url)["ok"]
        cluster.archive_everything()
        cluster.stop(cluster.data)
        cluster.run(read_example("deployment.md", "# to the state at $TARGET"), {**places, "TARGET": target})
        running = cluster.folder / "restored"
        wait_until(lambda: not query(cluster.url, "SELECT pg_is_in_recovery()")[0][0], SECONDS)
        report = run_audit(database_url=cluster.url)
        assert (report["ok"], report["events"]) == (True, 1)
        with running_server(cluster.url, workers=1) as server, server.client(org.headers()) as client:
            statuses = {booking: client.get(f"/v1/bookings/{booking}").status_code for booking in early.bookings}
            assert set(statuses.values()) == {200}, "a booking that was acknowledged before the moment is missing"
            assert client.get(f"/v1/bookings/{late.bookings[0]}").status_code == 404
            assert post_hold(client, event, items=[{"pool": "places"}]).status_code == 201
    finally:
        cluster.stop(running)
