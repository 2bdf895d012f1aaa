"""The gate works the same on one server, on a cluster and behind sentinels, and survives the loss of a master."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from tests.support.harness import (
    Org,
    Server,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    query,
    running_server,
    wait_until,
)
from tests.support.redis_process import running_redis_of_kind, running_sentinels, wait_for_failover

PATIENCE_SECONDS = 60


class Sale:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._org = Org(server.database_url)
        with server.client(self._org.headers()) as admin:
            self.event = publish_event(admin, example_event())

    def hold(self, label: str, user: str = "") -> str:
        """The code of the answer."""
        with self._server.client(self._org.headers("sales")) as client:
            answer = post_hold(client, self.event, user=user or f"u-{time.time_ns()}", items=[{"seat": label}])
            return str(answer.json().get("code", answer.status_code))

    def is_refused_by_redis(self, label: str) -> bool:
        """Whether the seat is refused without a batch."""
        before = self._last_batch_at()
        assert self.hold(label) == "seat_taken"
        return self._last_batch_at() == before

    def _last_batch_at(self) -> datetime:
        (row,) = query(
            self._server.database_url,
            "SELECT max(query_start) AS at FROM pg_stat_activity"
            " WHERE application_name = 'holdfast-lane' AND datname = current_database()",
        )
        at: datetime = row["at"]
        return at

    def breaker(self) -> str:
        with self._server.client() as client:
            state: str = client.get("/readyz").json()["redis"]["state"]
            return state


@contextmanager
def running_sale(postgres: str, redis_url: str) -> Iterator[Sale]:
    with fresh_database(postgres) as url, running_server(url, workers=1, HOLDFAST_REDIS_URL=redis_url) as server:
        yield Sale(server)


@pytest.mark.parametrize("kind", ["server", "cluster", "sentinel"])
def test_a_taken_seat_is_refused_by_redis(postgres: str, kind: str) -> None:
    with running_redis_of_kind(kind) as redis_url, running_sale(postgres, redis_url) as sale:
        assert sale.hold("A-1", user="ann") == "201"
        wait_until(lambda: sale.is_refused_by_redis("A-1"), PATIENCE_SECONDS)
        assert sale.hold("A-1", user="ann") == "200"
        assert sale.hold("A-2") == "201"
        assert sale.breaker() == "closed"


def test_a_new_master_takes_over(postgres: str) -> None:
    with running_sentinels() as sentinels, running_sale(postgres, sentinels.url) as sale:
        assert sale.hold("A-1", user="ann") == "201"
        wait_until(lambda: sale.is_refused_by_redis("A-1"), PATIENCE_SECONDS)
        sentinels.master.kill()
        for number in range(2, 12):
            assert sale.hold(f"A-{number}") == "201"
            assert sale.hold("A-1") == "seat_taken"
        wait_for_failover(sentinels)
        wait_until(lambda: sale.hold("A-1") == "seat_taken" and sale.breaker() == "closed", PATIENCE_SECONDS)
        wait_until(lambda: sale.is_refused_by_redis("A-1"), PATIENCE_SECONDS)
        assert sale.hold("A-11", user="bob") == "seat_taken"
        assert sale.hold("A-12") == "201"
