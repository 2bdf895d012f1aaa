"""With Redis, processes wake each other's watchers, and stop asking PostgreSQL many times a second."""

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.live.test_feed import read_change, read_message, read_until, watching
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
from tests.support.redis_process import RedisServer

QUIET_SECONDS = 2


class Watched:
    """Two servers, each with one process, on one database."""

    def __init__(self, servers: list[Server]) -> None:
        self.first, self.second = servers
        self.org = Org(self.first.database_url)
        with self.first.client(self.org.headers()) as admin:
            self.event = publish_event(admin, example_event())

    def hold(self, label: str) -> int:
        """Hold a seat at the first server, and return the version."""
        with self.first.client(self.org.headers()) as client:
            answer = post_hold(client, self.event, user=secrets.token_hex(4), items=[{"seat": label}])
            assert answer.status_code == 201
            version: int = answer.json()["version"]
            return version

    def transactions(self) -> int:
        """How many transactions the database has seen."""
        (row,) = query(
            self.first.database_url,
            "SELECT pg_stat_force_next_flush(), xact_commit FROM pg_stat_database WHERE datname = current_database()",
        )
        count: int = row["xact_commit"]
        return count


@contextmanager
def watched_event(postgres: str, **environment: str) -> Iterator[Watched]:
    with fresh_database(postgres) as url, ExitStack() as stack:
        yield Watched(
            [stack.enter_context(running_server(url, workers=1, worker=False, **environment)) for _ in range(2)]
        )


def count_polls(watched: Watched) -> int:
    before = watched.transactions()
    time.sleep(QUIET_SECONDS)
    return watched.transactions() - before


def test_a_watcher_sees_changes_of_another_server_without_polling(postgres: str, shared_redis: RedisServer) -> None:
    with watched_event(postgres) as watched, watching(watched.second, watched.event) as feed:
        read_message(feed)
        polls_without = count_polls(watched)
    with watched_event(postgres, HOLDFAST_REDIS_URL=shared_redis.url) as watched:
        with watching(watched.second, watched.event) as feed:
            read_message(feed)
            wait_until(lambda: count_polls(watched) < polls_without / 3, 60)
            for number in range(1, 6):
                version = watched.hold(f"A-{number}")
                assert read_change(feed)["seq"] == version


def test_a_watcher_misses_nothing_while_redis_is_gone(postgres: str, redis: RedisServer) -> None:
    with watched_event(postgres, HOLDFAST_REDIS_URL=redis.url) as watched:
        with watching(watched.second, watched.event) as feed:
            after = read_message(feed)["version"]
            versions = [watched.hold("A-1")]
            redis.kill()
            versions += [watched.hold(f"A-{number}") for number in range(2, 6)]
            redis.start()
            versions += [watched.hold(f"A-{number}") for number in range(6, 9)]
            seen = read_until(feed, versions[-1])
            covered = [
                number for each in seen for number in range(each.get("from", each["seq"] - 1) + 1, each["seq"] + 1)
            ]
            assert covered == list(range(after + 1, versions[-1] + 1))


def test_an_edit_of_the_event_wakes_watchers_too(postgres: str, shared_redis: RedisServer) -> None:
    with watched_event(postgres, HOLDFAST_REDIS_URL=shared_redis.url) as watched:
        with watching(watched.second, watched.event) as feed, watched.first.client(watched.org.headers()) as admin:
            read_message(feed)
            assert admin.patch(f"/v1/events/{watched.event}", json={"block_seats": ["A-9"]}).status_code == 200
            assert read_change(feed)["kind"] == "event_changed"
