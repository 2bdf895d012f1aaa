from collections.abc import Iterator

import pytest

from tests.support.redis_process import RedisServer, running_redis


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """A Redis for all tests that only look at their own keys."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis of the test's own, which it may stop, flush and kill."""
    with running_redis() as server:
        yield server
