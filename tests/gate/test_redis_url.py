"""HOLDFAST_REDIS_URL names one server, a service behind sentinels, or a cluster."""

import pytest

from holdfast.gate.redis_client import RedisUrl


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://localhost", RedisUrl("", (("localhost", 6379),))),
        ("redis://10.0.0.1:7000/3", RedisUrl("", (("10.0.0.1", 7000),), db=3)),
        (
            "rediss://app:p%40ss@cache.example:6380",
            RedisUrl("", (("cache.example", 6380),), username="app", password="p@ss", is_encrypted=True),
        ),
        ("redis://:secret@[::1]:6379", RedisUrl("", (("::1", 6379),), password="secret")),
        (
            "redis+sentinel://:secret@a,b:26380/sales/2",
            RedisUrl("sentinel", (("a", 26379), ("b", 26380)), db=2, service="sales", password="secret"),
        ),
        ("redis+cluster://a:7001,b:7002", RedisUrl("cluster", (("a", 7001), ("b", 7002)))),
        ("rediss+cluster://a", RedisUrl("cluster", (("a", 6379),), is_encrypted=True)),
    ],
)
def test_urls(text: str, expected: RedisUrl) -> None:
    assert RedisUrl.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost:6379", "must start with"),
        ("http://localhost", "must start with"),
        ("redis+proxy://localhost", "must start with"),
        ("redis://", "host is missing"),
        ("redis://a,b", "several hosts"),
        ("redis://a/b", "must be a number"),
        ("redis://a/1/2", "must be a number"),
        ("redis://a?db=1", "query string"),
        ("redis+sentinel://a:26379", "name the service"),
        ("redis+cluster://a/1", "no databases"),
        ("redis://a:port", "Port"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RedisUrl.parse(text)
