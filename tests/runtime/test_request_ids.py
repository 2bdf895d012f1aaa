"""A request has one id, from the caller's header to the response."""

import pytest

from holdfast.runtime.request_ids import LENGTH_MAX, choose_request_id, new_request_id
from tests.support.harness import Server


@pytest.mark.parametrize(
    "sent",
    [
        "0f6e2b1c-7d1a-4f0e-9c52-2a8f4d1b7e33",
        "Root=1-67891233-abcdef012345678912345678",
        "a",
        "x" * LENGTH_MAX,
    ],
)
def test_an_acceptable_id_is_kept(sent: str) -> None:
    assert choose_request_id([(b"host", b"h"), (b"x-request-id", sent.encode())]) == sent


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"x" * (LENGTH_MAX + 1),
        b'a","level":"error',
        b"two words",
        b"line\nbreak",
        b"trailing\n",
        b"ana@example.org",
        "\u00e9".encode(),
        b"\xff",
    ],
)
def test_an_id_that_could_forge_a_line_or_name_a_person_is_replaced(sent: bytes) -> None:
    chosen = choose_request_id([(b"x-request-id", sent)])
    assert chosen.startswith("req_")
    assert sent.decode("latin-1") != chosen


def test_made_ids_differ() -> None:
    assert len({new_request_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/readyz", 200),  # the API
        ("/v1/bookings", 401),  # a problem
        ("/v1/nothing", 404),
        ("/", 200),  # a page
        ("/no-such-org", 404),  # the page of an error
        ("/openapi.json", 200),
        ("/?q=" + "x" * 9000, 422),  # refused before anything else
    ],
)
def test_every_response_has_the_id_of_its_request_once(server: Server, path: str, status: int) -> None:
    with server.client() as client:
        sent = client.get(path, headers={"X-Request-ID": "mine-1"})
        made = client.get(path), client.get(path)
    assert sent.status_code == status
    assert sent.headers.get_list("x-request-id") == ["mine-1"]
    ids = [each.headers["x-request-id"] for each in made]
    assert all(each.startswith("req_") for each in ids)
    assert ids[0] != ids[1]


def test_a_method_that_is_not_allowed_has_an_id(server: Server) -> None:
    with server.client() as client:
        answer = client.delete("/v1/orgs", headers={"X-Request-ID": "mine-2"})
    assert answer.headers["x-request-id"] == "mine-2"
