"""All addresses of one subscriber are one client."""

import tracemalloc

import pytest
from starlette.types import Scope

from holdfast.api.client_address import ADDRESS_CHARS_MAX, client_address, normalize

SAME_SUBSCRIBER = [
    ("192.0.2.1", "192.0.2.1"),
    ("192.0.2.1", "192.0.2.1:4711"),
    ("192.0.2.1", "::ffff:192.0.2.1"),
    ("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"),
    ("2001:db8:1:2::1", "[2001:db8:1:2::1]:4711"),
    ("2001:db8:1:2::1", "2001:DB8:1:2:0::7%eth0"),
    ("unknown", "unknown"),
]
DIFFERENT_SUBSCRIBERS = [
    ("192.0.2.1", "192.0.2.2"),
    ("2001:db8:1:2::1", "2001:db8:1:3::1"),
    ("unknown", ""),
    ("192.0.2.1", "192.0.2.1x"),
    ("not:an:address", "another:address"),
]


@pytest.mark.parametrize(("one", "other"), SAME_SUBSCRIBER)
def test_all_addresses_of_a_subscriber_are_the_same_client(one: str, other: str) -> None:
    assert normalize(one) == normalize(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT_SUBSCRIBERS)
def test_two_subscribers_are_two_clients(one: str, other: str) -> None:
    assert normalize(one) != normalize(other)


def test_a_text_that_is_no_address_is_cut() -> None:
    assert normalize("x" * 1000) == "x" * ADDRESS_CHARS_MAX


def _scope(*forwarded_for: str) -> Scope:
    return {
        "type": "http",
        "client": ("192.0.2.1", 4711),
        "headers": [(b"x-forwarded-for", line.encode()) for line in forwarded_for],
    }


@pytest.mark.parametrize(
    ("proxies", "lines", "address"),
    [
        (0, ["203.0.113.1"], "192.0.2.1"),
        (1, [], "192.0.2.1"),
        (1, ["203.0.113.1"], "203.0.113.1"),
        (1, ["203.0.113.1, 203.0.113.2"], "203.0.113.2"),
        (2, ["203.0.113.1, 203.0.113.2"], "203.0.113.1"),
        (2, ["203.0.113.1", "203.0.113.2"], "203.0.113.1"),
        (2, ["203.0.113.2"], "192.0.2.1"),
        (2, [" 198.51.100.1 , 203.0.113.1 ,203.0.113.2"], "203.0.113.1"),
    ],
)
def test_the_address_is_what_the_outermost_proxy_saw(proxies: int, lines: list[str], address: str) -> None:
    assert client_address(_scope(*lines), proxies) == address


def test_a_long_list_of_hops_is_not_taken_apart() -> None:
    """This happens before any rate limit, and a list of 64 KB would take milliseconds."""
    scope = _scope("," * 64_000 + "203.0.113.1, 203.0.113.2")
    tracemalloc.start()
    try:
        assert client_address(scope, 2) == "203.0.113.1"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * 64_000
