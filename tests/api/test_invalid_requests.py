"""A bad request gets a problem document that names the mistake, writes nothing, and ends no server process."""

import base64
import json
import re
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from holdfast.api.call import Operation, Resource
from holdfast.api.endpoint import check_raw_details
from holdfast.api.operations import OPERATIONS
from holdfast.core.refusals import RefusedError
from holdfast.runtime import ids
from tests.support.cases import case
from tests.support.harness import Org, Server, example_event, post_hold, publish_event
from tests.support.http_assertions import expect_error, expect_ok, expect_problem
from tests.support.raw_http import ANSWER_SECONDS, chunked_body, read_response, request_head, send_bytes
from tests.support.resources import create_resource

MEBIBYTE: Final = 1024 * 1024
DEEP: Final = 100_000
# Some accepted depths, and those around the recursion limit of the interpreter.
DEPTHS: Final = (*range(50, 940, 100), *range(940, 970), 980, 1000)
JSON: Final = {"Content-Type": "application/json"}
# Well-formed ids of resources that do not exist.
NO_EVENT: Final = ids.format_event_id(bytes(16))
NO_BOOKING: Final = ids.format_booking_id(bytes(16), bytes(16))
NO_ORG: Final = ids.format_org_id(bytes(16))

Body = dict[str, Any]
IdsByResource = dict[Resource, str]

WITH_BODY: Final = [operation for operation in OPERATIONS if operation.body_type not in (None, bytes)]
WITH_QUERY: Final = [operation for operation in OPERATIONS if operation.query_type]
WITH_ID: Final = [operation for operation in OPERATIONS if "{id}" in operation.path]

BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}


def name_of(operation: Operation) -> str:
    return operation.name


def as_params(table: dict[str, Any]) -> Any:
    """The rows of a table as parameters, with their names."""
    return [pytest.param(value, id=name) for name, value in table.items()]


@pytest.fixture(scope="module", autouse=True)
def _the_same_processes_serve_every_case(server: Server, admin: httpx.Client) -> Iterator[None]:
    before = server.api_pids()
    yield
    assert server.api_pids() == before
    assert len(before) == 2
    event = publish_event(admin, example_event())
    assert post_hold(admin, event, items=[{"seat": "A-1"}]).status_code == 201


@pytest.fixture(scope="module")
def event(admin: httpx.Client) -> Iterator[str]:
    """An event that never changes, because every request is refused."""
    id_ = publish_event(admin, example_event())
    yield id_
    kinds = [entry["kind"] for entry in admin.get(f"/v1/events/{id_}/journal").json()["items"]]
    assert kinds == ["event_created", "event_published"]


@pytest.fixture(scope="module")
def booking(admin: httpx.Client) -> Iterator[str]:
    """A held booking that never changes."""
    created = expect_ok(post_hold(admin, publish_event(admin, example_event()), items=[{"seat": "A-1"}]), 201)
    yield created["id"]
    now = expect_ok(admin.get(f"/v1/bookings/{created['id']}"))
    assert (now["status"], now["version"]) == ("held", created["version"])


@pytest.fixture(scope="module")
def ids_by_resource(admin: httpx.Client, event: str, booking: str) -> IdsByResource:
    created = {
        resource: create_resource(admin, resource)
        for resource in (
            Resource.PAYMENT,
            Resource.RECEIPT,
            Resource.TICKET,
            Resource.ENDPOINT,
            Resource.SERIES,
            Resource.SERIES_JOB,
        )
    }
    return {
        **created,
        Resource.EVENT: event,
        Resource.BOOKING: booking,
        Resource.PROVIDER: "sandbox",
        Resource.ORG: "",
        Resource.NOTHING: "",
    }


def path_of(operation: Operation, ids_by_resource: IdsByResource) -> str:
    return re.sub(r"{\w+}", ids_by_resource[operation.resource], operation.path)


def call_operation(client: httpx.Client, operation: Operation, path: str, content: bytes | str = b"") -> httpx.Response:
    headers = {**JSON, "Idempotency-Key": secrets.token_hex(8)} if operation.needs_idempotency_key else JSON
    return client.request(operation.method, path, content=content, headers=headers)


MALFORMED_BODIES: Final = {
    "an_array": b"[]",
    "a_string": b'"text"',
    "a_number": b"1",
    "a_null": b"null",
    "a_boolean": b"true",
    "only_spaces": b"   ",
    "half_a_document": b'{"reason":',
    "two_documents": b"{}{}",
    "text_after_the_document": b"{} and more",
    "single_quotes": b"{'reason': 'x'}",
    "a_comment": b"{/* x */}",
    "a_form": b"user=u-1&reason=x",
    "a_raw_nul": b"\x00",
    "a_raw_nul_in_text": b'{"reason": "a\x00b", "user": "a\x00b", "title": "a\x00b"}',
    "an_escaped_nul_as_a_key": b'{"\\u0000": 1}',
    "an_escaped_nul_in_text": b'{"reason": "a\\u0000b", "user": "a\\u0000b", "title": "a\\u0000b"}',
    "a_control_character": b'{"reason": "a\x01b"}',
    "a_byte_that_is_not_utf_8": b'{"\xff": 1}',
    "an_overlong_nul": b'{"\xc0\x80": 1}',
    "a_surrogate_in_utf_8": b'{"\xed\xa0\x80": 1}',
    "a_lone_surrogate": b'{"\\ud800": 1}',
    "a_byte_order_mark": b"\xef\xbb\xbf{}",
    "utf_16": "{}".encode("utf-16"),
    "nan": b"NaN",
    "infinity": b'{"ttl_seconds": Infinity}',
    "a_number_of_5000_digits": b'{"details": {"a": 1' + b"0" * 5000 + b"}}",
    "a_number_beyond_the_floats": b'{"details": {"a": 1e999}}',
    "arrays_100000_deep": b"[" * DEEP + b"]" * DEEP,
    "objects_100000_deep": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "details_100000_deep": b'{"details": {"a": ' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "never_closed_100000_deep": b'{"details": ' + b'{"a":' * DEEP,
    "an_unknown_field": b'{"surprise": 1}',
    "a_field_in_other_case": b'{"User": "u-1", "Reason": "x", "Title": "x"}',
}


# One function reads the body of every operation and passes it to the decoder of the operation's type. So each malformed
# body goes to one type with required fields and to one without, and each type gets the bodies that its decoder judges.
@pytest.mark.parametrize("content", as_params(MALFORMED_BODIES))
def test_a_malformed_body_is_refused(admin: httpx.Client, ids_by_resource: IdsByResource, content: bytes) -> None:
    for name in ("place_hold", "cancel_booking"):
        with case(name):
            operation = BY_NAME[name]
            expect_error(
                call_operation(admin, operation, path_of(operation, ids_by_resource), content), 422, "invalid_request"
            )


@pytest.mark.parametrize("operation", WITH_BODY, ids=name_of)
def test_every_operation_refuses_a_malformed_body(
    admin: httpx.Client, ids_by_resource: IdsByResource, operation: Operation
) -> None:
    for form in (
        "an_array",
        "a_null",
        "half_a_document",
        "an_escaped_nul_in_text",
        "an_unknown_field",
    ):
        with case(form):
            expect_error(
                call_operation(admin, operation, path_of(operation, ids_by_resource), MALFORMED_BODIES[form]),
                422,
                "invalid_request",
            )


@pytest.mark.parametrize("name", ["place_hold", "create_event", "create_customer_token"])
def test_an_empty_body_is_refused_if_a_field_is_required(
    admin: httpx.Client, ids_by_resource: IdsByResource, name: str
) -> None:
    operation = BY_NAME[name]
    expect_error(call_operation(admin, operation, path_of(operation, ids_by_resource)), 422, "invalid_request")


def hold_body(**changes: Any) -> Body:
    return {"user": "u-1", "items": [{"pool": "standing", "tariff": "full"}], **changes}


def hold_of_item(**fields: Any) -> Body:
    return hold_body(items=[fields])


def hold_of_standing(**fields: Any) -> Body:
    return hold_of_item(**{"pool": "standing", "tariff": "full", **fields})


def hold_of_best(**fields: Any) -> Body:
    return {"user": "u-1", "best_available": {"pool": "stalls", "quantity": 2, **fields}}


MALFORMED_HOLDS: Final[dict[str, Body]] = {
    "no_user": {"items": [{"seat": "A-1"}]},
    "user_null": hold_body(user=None),
    "user_empty": hold_body(user=""),
    "user_number": hold_body(user=7),
    "user_boolean": hold_body(user=True),
    "user_list": hold_body(user=["u-1"]),
    "user_too_long": hold_body(user="u" * 201),
    "user_very_long": hold_body(user="u" * 500_000),
    "user_with_nul": hold_body(user="u\0"),
    "user_lone_surrogate": hold_body(user="\ud800"),
    "neither_items_nor_best_available": {"user": "u-1"},
    "items_and_best_available": {**hold_body(), **hold_of_best()},
    "items_null": hold_body(items=None),
    "items_empty": hold_body(items=[]),
    "items_object": hold_body(items={"seat": "A-1"}),
    "items_text": hold_body(items="A-1"),
    "items_of_text": hold_body(items=["A-1"]),
    "items_of_null": hold_body(items=[None]),
    "items_of_arrays": hold_body(items=[["A-1"]]),
    "too_many_items": hold_body(items=[{"seat": f"A-{n}"} for n in range(201)]),
    "item_of_nothing": hold_of_item(),
    "item_of_a_tariff_only": hold_of_item(tariff="full"),
    "item_with_a_price": hold_of_standing(unit_price=1),
    "seat_and_pool": hold_of_item(seat="A-1", pool="stalls"),
    "seat_and_quantity": hold_of_item(seat="A-1", quantity=2),
    "seat_empty": hold_of_item(seat=""),
    "seat_number": hold_of_item(seat=1),
    "seat_too_long": hold_of_item(seat="A" * 65),
    "seat_with_nul": hold_of_item(seat="A-1\0"),
    "seat_twice": hold_body(items=[{"seat": "A-1"}, {"seat": "A-1"}]),
    "seat_twice_among_others": hold_body(items=[{"seat": "A-1"}, {"seat": "A-2"}, {"seat": "A-1"}]),
    "pool_empty": hold_of_standing(pool=""),
    "pool_with_space": hold_of_standing(pool="standing room"),
    "pool_with_newline": hold_of_standing(pool="standing\n"),
    "pool_number": hold_of_standing(pool=1),
    "pool_too_long": hold_of_standing(pool="p" * 65),
    "pool_of_seats_by_quantity": hold_of_item(pool="stalls", quantity=1),
    "tariff_empty": hold_of_standing(tariff=""),
    "tariff_number": hold_of_standing(tariff=0),
    "quantity_zero": hold_of_standing(quantity=0),
    "quantity_negative": hold_of_standing(quantity=-1),
    "quantity_over_the_limit": hold_of_standing(quantity=1001),
    "quantity_of_32_bits": hold_of_standing(quantity=2**31),
    "quantity_of_63_bits": hold_of_standing(quantity=2**63),
    "quantity_of_1000_bits": hold_of_standing(quantity=2**1000),
    "quantity_float": hold_of_standing(quantity=1.0),
    "quantity_fraction": hold_of_standing(quantity=0.5),
    "quantity_boolean": hold_of_standing(quantity=True),
    "quantity_text": hold_of_standing(quantity="1"),
    "quantity_nan": hold_of_standing(quantity=float("nan")),
    "quantity_infinite": hold_of_standing(quantity=float("inf")),
    "best_of_no_pool": {"user": "u-1", "best_available": {"quantity": 1}},
    "best_of_no_quantity": {"user": "u-1", "best_available": {"pool": "stalls"}},
    "best_more_than_a_hundred": hold_of_best(quantity=101),
    "best_list": {"user": "u-1", "best_available": []},
    "best_of_a_pool_without_seats": hold_of_best(pool="standing", tariff="full"),
    "best_quantity_zero": hold_of_best(quantity=0),
    "best_quantity_negative": hold_of_best(quantity=-1),
    "best_quantity_huge": hold_of_best(quantity=2**63),
    "best_quantity_float": hold_of_best(quantity=2.0),
    "best_quantity_boolean": hold_of_best(quantity=True),
    "best_adjacent_text": hold_of_best(adjacent="yes"),
    "best_adjacent_number": hold_of_best(adjacent=1),
    "best_unknown_field": hold_of_best(row="A"),
    "cart_token_empty": hold_body(cart_token=""),
    "cart_token_number": hold_body(cart_token=1),
    "cart_token_too_long": hold_body(cart_token="c" * 201),
    "details_list": hold_body(details=[]),
    "details_text": hold_body(details="vip"),
    "details_with_nul": hold_body(details={"a": ["\0"]}),
    "details_with_nul_key": hold_body(details={"\0": 1}),
    "details_lone_surrogate": hold_body(details={"a": "\udfff"}),
    "details_nan": hold_body(details={"a": float("nan")}),
    "a_total": hold_body(total=0),
    "a_status": hold_body(status="confirmed"),
    "an_unknown_field": hold_body(seats=["A-1"]),
}

HOLDS_OF_UNKNOWN_THINGS: Final[dict[str, tuple[Body, str]]] = {
    "seat_of_no_row": (hold_of_item(seat="Z-99"), "unknown_seat"),
    "seat_beyond_the_row": (hold_of_item(seat="A-21"), "unknown_seat"),
    "seat_in_other_case": (hold_of_item(seat="a-1"), "unknown_seat"),
    "seat_with_a_space": (hold_of_item(seat="A-1 "), "unknown_seat"),
    "seat_with_an_emoji": (hold_of_item(seat="\N{GRINNING FACE}"), "unknown_seat"),
    "seat_of_sql": (hold_of_item(seat="'; DROP TABLE seat; --"), "unknown_seat"),
    "seat_among_known_ones": (hold_body(items=[{"seat": "A-1"}, {"seat": "Z-1"}]), "unknown_seat"),
    "pool": (hold_of_standing(pool="balcony"), "unknown_pool"),
    "pool_in_other_case": (hold_of_standing(pool="Standing"), "unknown_pool"),
    "best_of_a_pool": (hold_of_best(pool="balcony"), "unknown_pool"),
    "tariff": (hold_of_standing(tariff="senior"), "unknown_tariff"),
    "tariff_of_another_pool": (hold_of_item(seat="A-1", tariff="child"), "unknown_tariff"),
    "no_tariff_where_there_are_two": (hold_of_item(pool="standing"), "unknown_tariff"),
    "best_of_a_tariff": (hold_of_best(tariff="child"), "unknown_tariff"),
}


@pytest.mark.parametrize("body", as_params(MALFORMED_HOLDS))
def test_a_malformed_hold_is_refused(admin: httpx.Client, event: str, body: Body) -> None:
    path = f"/v1/events/{event}/holds"
    expect_error(call_operation(admin, BY_NAME["place_hold"], path, json.dumps(body)), 422, "invalid_request")


@pytest.mark.parametrize(("body", "code"), [pytest.param(*v, id=k) for k, v in HOLDS_OF_UNKNOWN_THINGS.items()])
def test_a_hold_of_an_unknown_seat_pool_or_tariff_is_refused_by_name(
    admin: httpx.Client, event: str, body: Body, code: str
) -> None:
    document = expect_error(
        call_operation(admin, BY_NAME["place_hold"], f"/v1/events/{event}/holds", json.dumps(body)), 422, code
    )
    assert document["conflicts"]


INVALID_KEYS: Final = {
    "missing": None,
    "empty": b"",
    "only_spaces": b"   ",
    "of_256_characters": b"k" * 256,
    "of_5000_characters": b"k" * 5000,
}


@pytest.mark.parametrize("key", as_params(INVALID_KEYS))
def test_a_hold_needs_an_idempotency_key_of_1_to_255_characters(
    server: Server, org: Org, event: str, key: bytes | None
) -> None:
    content = json.dumps(hold_body()).encode()
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), b"Content-Length: %d" % len(content)]
    headers += [b"Idempotency-Key: " + key] if key is not None else []
    answer = send_bytes(server.port, request_head("POST", f"/v1/events/{event}/holds".encode(), headers), content)
    assert answer is not None
    expect_error(answer, 400, "idempotency_key_missing")


@pytest.mark.parametrize(
    "key", [b"k", b"k" * 255, b"\xe9\xff", b'"quoted, and more"'], ids=["1", "255", "bytes", "text"]
)
def test_any_idempotency_key_of_1_to_255_characters_is_accepted(
    server: Server, org: Org, admin: httpx.Client, key: bytes
) -> None:
    content = json.dumps(hold_body()).encode()
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), b"Content-Length: %d" % len(content)]
    path = f"/v1/events/{publish_event(admin, example_event())}/holds".encode()
    answer = send_bytes(server.port, request_head("POST", path, [*headers, b"Idempotency-Key: " + key]), content)
    assert answer is not None
    assert answer.status_code == 201, answer.text


def event_with_pools(*pools: Body) -> Body:
    return example_event(pools=list(pools))


def event_with_pool(**fields: Any) -> Body:
    return event_with_pools({"code": "hall", **fields})


def event_with_seats(*seats: Body) -> Body:
    return event_with_pool(seats=list(seats))


def event_with_grid(rows: Any, numbers: Any) -> Body:
    return event_with_pool(seats={"rows": rows, "numbers": numbers})


def event_with_tariff(**fields: Any) -> Body:
    return event_with_pool(capacity=5, tariffs=[{"code": "full", "price": 100, **fields}])


def event_without(name: str) -> Body:
    return {key: value for key, value in example_event().items() if key != name}


MALFORMED_POLICIES: Final[dict[str, Body]] = {
    "policy_null": {"policy": None},
    "policy_list": {"policy": []},
    "policy_unknown_field": {"policy": {"hold_minutes": 1}},
    "hold_seconds_zero": {"policy": {"hold_seconds": 0}},
    "hold_seconds_negative": {"policy": {"hold_seconds": -1}},
    "hold_seconds_null": {"policy": {"hold_seconds": None}},
    "hold_seconds_float": {"policy": {"hold_seconds": 1.5}},
    "hold_seconds_boolean": {"policy": {"hold_seconds": True}},
    "hold_seconds_huge": {"policy": {"hold_seconds": 2**63}},
    "hold_seconds_nan": {"policy": {"hold_seconds": float("nan")}},
    "extend_seconds_negative": {"policy": {"extend_seconds": -1}},
    "max_hold_seconds_zero": {"policy": {"max_hold_seconds": 0}},
    "late_grace_seconds_negative": {"policy": {"late_grace_seconds": -1}},
    "review_unknown": {"policy": {"review": "maybe"}},
    "review_boolean": {"policy": {"review": True}},
    "review_seconds_text": {"policy": {"review_seconds": "1"}},
    "max_units_per_user_zero": {"policy": {"max_units_per_user": 0}},
    "max_units_per_user_negative": {"policy": {"max_units_per_user": -3}},
    "one_booking_per_user_number": {"policy": {"one_booking_per_user": 1}},
    "confirm_at_once_text": {"policy": {"confirm_at_once": "true"}},
    "avoid_orphans_null": {"policy": {"avoid_orphans": None}},
}

MALFORMED_FIELDS: Final[dict[str, Body]] = {
    "title_null": {"title": None},
    "title_empty": {"title": ""},
    "title_number": {"title": 5},
    "title_too_long": {"title": "t" * 201},
    "title_with_nul": {"title": "a\0b"},
    "title_lone_surrogate": {"title": "\ud83d"},
    "starts_at_null": {"starts_at": None},
    "starts_at_empty": {"starts_at": ""},
    "starts_at_naive": {"starts_at": "2027-03-05T19:00:00"},
    "starts_at_date_only": {"starts_at": "2027-03-05"},
    "starts_at_words": {"starts_at": "next friday"},
    "starts_at_number": {"starts_at": 1_800_000_000},
    "starts_at_of_month_13": {"starts_at": "2027-13-05T19:00:00Z"},
    "starts_at_of_february_30": {"starts_at": "2027-02-30T19:00:00Z"},
    "starts_at_of_hour_25": {"starts_at": "2027-03-05T25:00:00Z"},
    "starts_at_of_offset_99": {"starts_at": "2027-03-05T19:00:00+99:00"},
    "starts_at_year_0001": {"starts_at": "0001-01-01T00:00:00Z"},
    "starts_at_before_year_0001": {"starts_at": "0001-01-01T00:00:00+14:00"},
    "starts_at_year_9999": {"starts_at": "9999-12-31T23:59:59Z"},
    "starts_at_after_year_9999": {"starts_at": "9999-12-31T23:59:59-12:00"},
    "starts_at_year_10000": {"starts_at": "10000-01-01T00:00:00Z"},
    "tax_negative": {"tax_bps": -1},
    "tax_over_100_percent": {"tax_bps": 10_001},
    "tax_float": {"tax_bps": 19.0},
    "tax_boolean": {"tax_bps": True},
    "tax_text": {"tax_bps": "1900"},
    "details_null": {"details": None},
    "details_list": {"details": [1]},
    "details_with_nul": {"details": {"address": "\0"}},
    "an_unknown_field": {"colour": "red"},
    "an_id": {"id": "ev_1"},
    "a_version": {"version": 1},
    **MALFORMED_POLICIES,
}

MALFORMED_EVENTS: Final[dict[str, Body]] = {
    **{name: example_event(**change) for name, change in MALFORMED_FIELDS.items()},
    "no_title": event_without("title"),
    "no_starts_at": event_without("starts_at"),
    "no_currency": event_without("currency"),
    "no_pools": event_without("pools"),
    "currency_null": example_event(currency=None),
    "currency_lower_case": example_event(currency="eur"),
    "currency_too_short": example_event(currency="EU"),
    "currency_too_long": example_event(currency="EURO"),
    "currency_with_newline": example_event(currency="EUR\n"),
    "currency_number": example_event(currency=978),
    "preset_unknown": example_event(preset="opera"),
    "preset_empty": example_event(preset=""),
    "preset_number": example_event(preset=1),
    "a_status": example_event(status="active"),
    "pools_null": example_event(pools=None),
    "pools_empty": event_with_pools(),
    "pools_object": example_event(pools={"code": "hall", "capacity": 1}),
    "pools_of_text": example_event(pools=["hall"]),
    "too_many_pools": event_with_pools(*({"code": f"p{n}", "capacity": 1} for n in range(1001))),
    "pool_without_a_code": event_with_pools({"capacity": 5}),
    "pool_code_empty": event_with_pools({"code": "", "capacity": 5}),
    "pool_code_with_space": event_with_pools({"code": "a b", "capacity": 5}),
    "pool_code_with_newline": event_with_pools({"code": "a\n", "capacity": 5}),
    "pool_code_not_ascii": event_with_pools({"code": "pärkett", "capacity": 5}),
    "pool_code_too_long": event_with_pools({"code": "p" * 65, "capacity": 5}),
    "pool_code_number": event_with_pools({"code": 1, "capacity": 5}),
    "pool_code_twice": event_with_pools({"code": "a", "capacity": 5}, {"code": "a", "capacity": 6}),
    "pool_name_empty": event_with_pool(capacity=5, name=""),
    "pool_unknown_field": event_with_pool(capacity=5, sold=0),
    "pool_of_nothing": event_with_pool(),
    "capacity_negative": event_with_pool(capacity=-1),
    "capacity_over_the_limit": event_with_pool(capacity=10_000_001),
    "capacity_of_31_bits": event_with_pool(capacity=2**31),
    "capacity_of_1000_bits": event_with_pool(capacity=2**1000),
    "capacity_float": event_with_pool(capacity=5.0),
    "capacity_boolean": event_with_pool(capacity=True),
    "capacity_text": event_with_pool(capacity="5"),
    "capacity_infinite": event_with_pool(capacity=float("inf")),
    "capacity_less_than_seats": event_with_pool(capacity=1, seats={"rows": ["A"], "numbers": 2}),
    "capacity_more_than_seats": event_with_pool(capacity=3, seats={"rows": ["A"], "numbers": 2}),
    "capacity_zero_and_seats": event_with_pool(capacity=0, seats={"rows": ["A"], "numbers": 2}),
    "tariffs_empty": event_with_pool(capacity=5, tariffs=[]),
    "tariffs_object": event_with_pool(capacity=5, tariffs={"code": "full", "price": 1}),
    "tariff_without_a_price": event_with_pool(capacity=5, tariffs=[{"code": "full"}]),
    "tariff_code_twice": event_with_pool(capacity=5, tariffs=[{"code": "a", "price": 1}, {"code": "a", "price": 2}]),
    "price_negative": event_with_tariff(price=-1),
    "price_over_the_limit": event_with_tariff(price=10**11 + 1),
    "price_of_64_bits": event_with_tariff(price=2**64),
    "price_float": event_with_tariff(price=10.0),
    "price_fraction": event_with_tariff(price=9.99),
    "price_boolean": event_with_tariff(price=False),
    "price_text": event_with_tariff(price="100"),
    "price_null": event_with_tariff(price=None),
    "price_nan": event_with_tariff(price=float("nan")),
    "tariff_unknown_field": event_with_tariff(currency="USD"),
    "seats_empty": event_with_seats(),
    "seats_text": event_with_pool(seats="A-1"),
    "seats_number": event_with_pool(seats=20),
    "seat_without_a_label": event_with_seats({"row": "A", "number": 1}),
    "seat_label_empty": event_with_seats({"label": ""}),
    "seat_label_too_long": event_with_seats({"label": "A" * 65}),
    "seat_label_number": event_with_seats({"label": 1}),
    "seat_label_with_nul": event_with_seats({"label": "A\0"}),
    "seat_label_twice": event_with_seats({"label": "A-1"}, {"label": "A-1"}),
    "seat_label_twice_in_two_pools": event_with_pools(
        {"code": "a", "seats": [{"label": "A-1"}]}, {"code": "b", "seats": {"rows": ["A"], "numbers": 1}}
    ),
    "seat_number_float": event_with_seats({"label": "A-1", "number": 1.0}),
    "seat_number_huge": event_with_seats({"label": "A-1", "number": 2**31}),
    "seat_number_text": event_with_seats({"label": "A-1", "number": "1"}),
    "seat_x_text": event_with_seats({"label": "A-1", "x": "left"}),
    "seat_x_nan": event_with_seats({"label": "A-1", "x": float("nan")}),
    "seat_x_infinite": event_with_seats({"label": "A-1", "x": float("inf")}),
    "seat_x_huge": event_with_seats({"label": "A-1", "x": 1e300}),
    "seat_y_boolean": event_with_seats({"label": "A-1", "y": True}),
    "seat_unknown_field": event_with_seats({"label": "A-1", "state": "sold"}),
    "grid_without_rows": event_with_pool(seats={"numbers": 5}),
    "grid_without_numbers": event_with_pool(seats={"rows": ["A"]}),
    "row_of_more_than_32_bytes": event_with_pool(seats={"rows": ["é" * 17], "numbers": 1}),
    "seat_in_a_row_of_more_than_32_bytes": event_with_pool(seats=[{"label": "A", "row": "é" * 17}]),
    "label_of_more_than_64_bytes": event_with_pool(seats=[{"label": "é" * 33}]),
    "grid_of_no_rows": event_with_grid([], 5),
    "grid_of_one_text": event_with_grid("AB", 5),
    "grid_of_an_empty_row": event_with_grid([""], 5),
    "grid_of_a_row_twice": event_with_grid(["A", "A"], 5),
    "grid_of_zero_numbers": event_with_grid(["A"], 0),
    "grid_of_negative_numbers": event_with_grid(["A"], -5),
    "grid_of_float_numbers": event_with_grid(["A"], 5.0),
    "grid_of_boolean_numbers": event_with_grid(["A"], True),
    "grid_of_a_list_of_numbers": event_with_grid(["A"], [1, 2]),
    "grid_row_too_long": event_with_grid(["A" * 33], 5),
    "grid_row_too_wide": event_with_grid(["A"], 1001),
    "grid_of_a_million_seats": event_with_grid([str(n) for n in range(1000)], 1000),
}


@pytest.mark.parametrize("body", as_params(MALFORMED_EVENTS))
def test_a_malformed_event_is_refused(admin: httpx.Client, body: Body) -> None:
    before = admin.get("/v1/events", params={"limit": 1}).json()
    expect_error(call_operation(admin, BY_NAME["create_event"], "/v1/events", json.dumps(body)), 422, "invalid_request")
    assert admin.get("/v1/events", params={"limit": 1}).json() == before


def pool_change(**fields: Any) -> Body:
    return {"pools": [{"code": "standing", **fields}]}


MALFORMED_CHANGES: Final[dict[str, Body]] = {
    **MALFORMED_FIELDS,
    "a_currency": {"currency": "USD"},
    "a_preset": {"preset": "arena"},
    "a_status": {"status": "cancelled"},
    "pools_null": {"pools": None},
    "pools_object": {"pools": {"code": "standing", "capacity": 1}},
    "pool_without_a_code": {"pools": [{"capacity": 5}]},
    "pool_unknown_field": pool_change(held=0),
    "pool_twice": {"pools": [{"code": "standing", "capacity": 600}, {"code": "standing", "name": "Floor"}]},
    "new_pool_twice": {"pools": [{"code": "new", "capacity": 1}, {"code": "new", "capacity": 2}]},
    "new_pool_of_nothing": {"pools": [{"code": "new"}]},
    "new_pool_with_a_label_in_use": {"pools": [{"code": "new", "seats": [{"label": "A-1"}]}]},
    "new_pool_with_a_label_twice": {"pools": [{"code": "new", "seats": [{"label": "N-1"}, {"label": "N-1"}]}]},
    "capacity_negative": pool_change(capacity=-1),
    "capacity_null": pool_change(capacity=None),
    "capacity_float": pool_change(capacity=5.5),
    "capacity_huge": pool_change(capacity=2**40),
    "capacity_of_a_seated_pool": {"pools": [{"code": "stalls", "capacity": 39}]},
    "seats_of_a_pool_that_has_none": pool_change(seats={"rows": ["C"], "numbers": 5}),
    "seats_of_a_pool_that_has_some": {"pools": [{"code": "stalls", "seats": {"rows": ["C"], "numbers": 5}}]},
    "tariffs_empty": pool_change(tariffs=[]),
    "tariff_twice": pool_change(tariffs=[{"code": "full", "price": 1}, {"code": "full", "price": 2}]),
    "new_tariff_twice": pool_change(tariffs=[{"code": "new", "price": 1}, {"code": "new", "price": 2}]),
    "price_negative": pool_change(tariffs=[{"code": "full", "price": -1}]),
    "price_float": pool_change(tariffs=[{"code": "full", "price": 1.5}]),
    "block_text": {"block_seats": "A-1"},
    "block_null": {"block_seats": None},
    "block_numbers": {"block_seats": [1]},
    "block_empty_label": {"block_seats": [""]},
    "block_long_label": {"block_seats": ["A" * 65]},
    "block_nul": {"block_seats": ["A-1\0"]},
    "unblock_object": {"unblock_seats": {"A-1": True}},
}


@pytest.mark.parametrize("body", as_params(MALFORMED_CHANGES))
def test_a_malformed_change_is_refused(admin: httpx.Client, event: str, body: Body) -> None:
    before = admin.get(f"/v1/events/{event}").json()
    answer = call_operation(admin, BY_NAME["change_event"], f"/v1/events/{event}", json.dumps(body))
    assert admin.get(f"/v1/events/{event}").json() == before
    expect_error(answer, 422, "invalid_request")


@pytest.mark.parametrize("field", ["block_seats", "unblock_seats"])
def test_unknown_seats_can_be_neither_blocked_nor_unblocked(admin: httpx.Client, event: str, field: str) -> None:
    answer = admin.patch(f"/v1/events/{event}", json={field: ["A-1", "Z-1"], "title": "Changed"})
    assert expect_error(answer, 422, "unknown_seat")["conflicts"] == ["Z-1"]
    assert admin.get(f"/v1/events/{event}").json()["title"] == example_event()["title"]


@pytest.mark.parametrize("name", ["create_event", "change_event"])
def test_an_event_with_details_of_any_depth_is_refused_or_can_be_read_again(server: Server, name: str) -> None:
    deep = Org(server.database_url, f"deep-{secrets.token_hex(4)}")
    with server.client(deep.headers()) as client:
        event = publish_event(client, example_event())
        for depth in DEPTHS:
            details = '{"a": ' + "[" * depth + "]" * depth + "}"
            if name == "create_event":
                content = json.dumps(example_event())[:-1] + f', "details": {details}}}'
                answer = call_operation(client, BY_NAME[name], "/v1/events", content)
            else:
                answer = call_operation(client, BY_NAME[name], f"/v1/events/{event}", f'{{"details": {details}}}')
            assert answer.status_code in (200, 201, 422), f"{depth} deep: {answer.text[:200]}"
        for path in (f"/v1/events/{event}", "/v1/events", "/v1/events?limit=200"):
            assert client.get(path).status_code == 200


def test_a_hold_with_details_of_any_depth_is_refused_or_can_be_read_again(admin: httpx.Client) -> None:
    event = publish_event(admin, example_event())
    for depth in DEPTHS:
        details = '{"a": ' + "[" * depth + "]" * depth + "}"
        content = json.dumps(hold_body())[:-1] + f', "details": {details}}}'
        answer = call_operation(admin, BY_NAME["place_hold"], f"/v1/events/{event}/holds", content)
        assert answer.status_code in (201, 422), f"{depth} deep: {answer.text[:200]}"
    assert admin.get("/v1/bookings", params={"event": event, "limit": 200}).status_code == 200


MALFORMED_REASONS: Final[dict[str, Body]] = {
    "number": {"reason": 1},
    "list": {"reason": ["late"]},
    "boolean": {"reason": False},
    "too_long": {"reason": "r" * 1001},
    "with_nul": {"reason": "a\0"},
    "lone_surrogate": {"reason": "\ude00"},
    "unknown_field": {"reason": "late", "refund": True},
}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        *(pytest.param("cancel_booking", body, id=f"cancel-{name}") for name, body in MALFORMED_REASONS.items()),
        pytest.param("refund_booking", MALFORMED_REASONS["number"], id="refund-number"),
    ],
)
def test_a_malformed_reason_is_refused(
    admin: httpx.Client, ids_by_resource: IdsByResource, name: str, body: Body
) -> None:
    operation = BY_NAME[name]
    expect_error(
        call_operation(admin, operation, path_of(operation, ids_by_resource), json.dumps(body)), 422, "invalid_request"
    )


MALFORMED_TOKEN_REQUESTS: Final[dict[str, Body]] = {
    "no_user": {},
    "user_null": {"user": None},
    "user_empty": {"user": ""},
    "user_number": {"user": 1},
    "user_too_long": {"user": "u" * 201},
    "user_with_nul": {"user": "\0"},
    "user_lone_surrogate": {"user": "\ud800"},
    "ttl_zero": {"user": "u-1", "ttl_seconds": 0},
    "ttl_negative": {"user": "u-1", "ttl_seconds": -60},
    "ttl_over_a_day": {"user": "u-1", "ttl_seconds": 86_401},
    "ttl_huge": {"user": "u-1", "ttl_seconds": 2**80},
    "ttl_float": {"user": "u-1", "ttl_seconds": 60.0},
    "ttl_boolean": {"user": "u-1", "ttl_seconds": True},
    "ttl_text": {"user": "u-1", "ttl_seconds": "60"},
    "ttl_null": {"user": "u-1", "ttl_seconds": None},
    "ttl_nan": {"user": "u-1", "ttl_seconds": float("nan")},
    "a_role": {"user": "u-1", "role": "admin"},
}


@pytest.mark.parametrize("body", as_params(MALFORMED_TOKEN_REQUESTS))
def test_a_malformed_customer_token_request_is_refused(admin: httpx.Client, body: Body) -> None:
    answer = call_operation(admin, BY_NAME["create_customer_token"], "/v1/customer-tokens", json.dumps(body))
    expect_error(answer, 422, "invalid_request")


MALFORMED_QUERIES: Final = {
    "unknown_field": "surprise=1",
    "field_in_other_case": "Limit=1",
    "field_with_brackets": "limit[]=1",
    "limit_zero": "limit=0",
    "limit_negative": "limit=-1",
    "limit_over_200": "limit=201",
    "limit_huge": "limit=99999999999999999999999999",
    "limit_fraction": "limit=1.5",
    "limit_word": "limit=all",
    "limit_boolean": "limit=true",
    "limit_nan": "limit=NaN",
    "limit_null": "limit=null",
    "limit_signed": "limit=%2B5",
    "limit_spaced": "limit=%205",
    "limit_not_ascii": "limit=%EF%BC%95",
    "nul": "after=%00",
    "nul_as_a_name": "%00=1",
    "not_utf_8": "after=%ff",
    "surrogate": "after=%ED%A0%80",
    "after_invalid": "after=nothing",
    "after_very_long": f"after={'a' * 5000}",
    "too_many_fields": "&".join(f"f{n}=1" for n in range(100)),
}

MALFORMED_QUERIES_BY_OPERATION: Final = {
    "export_bookings": {"status_unknown": "status=paid", "status_in_other_case": "status=Held"},
    "list_events": {
        "status_unknown": "status=open",
        "status_of_a_booking": "status=held",
        "org_too_long": f"org={'o' * 64}",
        "org_with_nul": "org=%00",
        "after_of_a_booking": f"after={NO_BOOKING}",
        "after_of_an_event": f"after={NO_EVENT}",
        "after_too_short": f"after={'A' * 28}",
        "after_with_a_stray_character": f"after={'A' * 31}*",
        "after_in_the_year_9999": f"after={'_' * 32}",
        "after_not_ascii": f"after={'%D9%A1' * 32}",
        "from_a_day": "from=2027-03-05",
        "from_without_a_time_zone": "from=2027-03-05T19:00:00",
        "to_a_word": "to=tomorrow",
        "to_a_number": "to=0.5",
        "series_too_long": f"series={'s' * 101}",
        "q_too_long": f"q={'q' * 101}",
        "q_with_nul": "q=%00",
    },
    "list_series": {
        "org_too_long": f"org={'o' * 64}",
        "after_of_an_event": f"after={NO_EVENT}",
        "after_with_a_stray_character": f"after=se_{'0' * 31}*",
    },
    "list_bookings": {
        "status_unknown": "status=paid",
        "status_in_other_case": "status=Held",
        "user_too_long": f"user={'u' * 201}",
        "user_with_nul": "user=u%00",
        "user_not_utf_8": "user=%ff",
        "event_too_long": f"event={'e' * 101}",
        "event_with_nul": "event=%00",
        "after_of_an_event": f"after={NO_EVENT}",
        "after_of_another_kind": f"after=xx{NO_BOOKING[2:]}",
        "after_with_a_stray_character": f"after={NO_BOOKING[:-1]}*",
    },
    "list_deliveries": {
        "status_unknown": "status=sent",
        "after_of_an_event_alone": f"after={NO_EVENT}",
        "after_without_a_number": f"after={NO_EVENT}:",
        "after_with_a_word": f"after={NO_EVENT}:one",
        "after_with_other_digits": f"after={NO_EVENT}:%D9%A1",
        "after_too_large": f"after={NO_EVENT}:{'9' * 19}",
    },
    "list_changes": {
        "after_negative": "after=-1",
        "after_fraction": "after=1.5",
        "after_of_64_bits": "after=18446744073709551616",
        "after_infinite": "after=Infinity",
    },
    "list_journal": {
        "after_negative": "after=-1",
        "after_fraction": "after=1.5",
        "after_of_64_bits": "after=18446744073709551616",
        "after_infinite": "after=Infinity",
    },
}


def test_a_malformed_query_is_refused(admin: httpx.Client) -> None:
    for name, query in MALFORMED_QUERIES.items():
        with case(name):
            answer = call_operation(admin, BY_NAME["list_bookings"], f"/v1/bookings?{query}")
            expect_error(answer, 422, "invalid_request")


@pytest.mark.parametrize("operation", WITH_QUERY, ids=name_of)
def test_every_operation_refuses_a_malformed_query(
    admin: httpx.Client, ids_by_resource: IdsByResource, operation: Operation
) -> None:
    common = {name: MALFORMED_QUERIES[name] for name in ("unknown_field", "limit_over_200", "nul", "after_invalid")}
    for name, query in {**common, **MALFORMED_QUERIES_BY_OPERATION[operation.name]}.items():
        with case(name):
            answer = call_operation(admin, operation, f"{path_of(operation, ids_by_resource)}?{query}")
            expect_error(answer, 422, "invalid_request")


@pytest.mark.parametrize(
    "id_", ["nothing", NO_EVENT, NO_BOOKING, f"xx{NO_EVENT[2:]}", f"{NO_EVENT[:-1]}*", "ev_\N{SNOWMAN}"]
)
def test_an_impossible_event_id_lists_no_bookings(admin: httpx.Client, id_: str) -> None:
    assert expect_ok(admin.get("/v1/bookings", params={"event": id_})) == {"items": [], "next": None}


MALFORMED_IDS: Final = {
    "a_word": "nothing",
    "a_number": "1",
    "spaces": "%20%20",
    "a_dot": "%2e",
    "two_dots": "%2e%2e",
    "a_slash": "a%2Fb",
    "nul": "%00",
    "nul_after_a_prefix": "ev_%00",
    "not_utf_8": "%ff%fe",
    "an_emoji": "%F0%9F%98%80",
    "sql": "'%20OR%201=1--",
    "very_long": "e" * 5000,
    "an_unknown_event": NO_EVENT,
    "an_event_too_short": NO_EVENT[:-1],
    "an_event_too_long": f"{NO_EVENT}0",
    "an_event_of_another_kind": f"xx{NO_EVENT[2:]}",
    "an_event_without_a_prefix": f"000{NO_EVENT[3:]}",
    "an_event_with_a_stray_character": f"{NO_EVENT[:-1]}*",
    "an_event_with_padding": f"{NO_EVENT[:-2]}==",
    "an_event_with_spaces": f"{NO_EVENT[:-2]}%20%20",
    "an_event_in_capitals": f"ev_{'AB' * 16}",
    "an_event_of_emojis": "ev_" + "%F0%9F%98%80" * 32,
    "an_event_of_other_digits": "ev_" + "%D9%A1" * 32,
    "an_unknown_booking": NO_BOOKING,
    "a_booking_too_short": NO_BOOKING[:-1],
    "a_booking_of_another_kind": f"xx{NO_BOOKING[2:]}",
    "a_booking_without_a_prefix": f"000{NO_BOOKING[3:]}",
    "a_booking_with_a_stray_character": f"{NO_BOOKING[:-1]}*",
    "a_booking_with_padding": f"{NO_BOOKING[:-2]}==",
    "a_booking_in_capitals": f"bk_{'AB' * 32}",
    "an_org": NO_ORG,
}


@pytest.fixture(scope="module")
def absent(admin: httpx.Client) -> Body:
    return expect_error(admin.get(f"/v1/events/{NO_EVENT}"), 404, "not_found")


# Each kind of id has one parser, which all operations on that kind share. `place_hold` calls it directly.
@pytest.mark.parametrize(
    "name",
    [
        "get_event",
        "place_hold",
        "get_booking",
        "get_payment",
        "get_receipt",
        "get_qr_svg",
        "get_endpoint",
        "get_series",
    ],
)
def test_a_malformed_id_is_not_found(admin: httpx.Client, absent: Body, name: str) -> None:
    for id_name, id_ in MALFORMED_IDS.items():
        with case(id_name):
            assert expect_error(call_with_id(admin, BY_NAME[name], id_), 404, "not_found") == absent


@pytest.mark.parametrize("operation", WITH_ID, ids=name_of)
def test_every_operation_answers_an_unknown_id_with_not_found(
    admin: httpx.Client, absent: Body, operation: Operation
) -> None:
    for id_name in ("a_word", "nul", "an_unknown_event", "an_unknown_booking"):
        with case(id_name):
            assert expect_error(call_with_id(admin, operation, MALFORMED_IDS[id_name]), 404, "not_found") == absent


def call_with_id(client: httpx.Client, operation: Operation, id_: str) -> httpx.Response:
    content = json.dumps(VALID_BODIES.get(operation.name, {}))
    return call_operation(client, operation, operation.path.replace("{id}", id_), content)


def unsigned_token(header: str) -> bytes:
    parts = (header, '{"sub": "u-1", "aud": "holdfast", "exp": 4000000000}', "signature")
    return b"Bearer " + b".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in parts)


MALFORMED_AUTHORIZATIONS: Final = {
    "empty": b"",
    "no_scheme": b"hf_sk_0123456789",
    "scheme_alone": b"Bearer",
    "scheme_and_a_space": b"Bearer ",
    "another_scheme": b"Basic aGY6c2s=",
    "a_tab_for_a_space": b"Bearer\thf_sk_0123456789",
    "garbage": b"Bearer garbage",
    "two_words": b"Bearer one two",
    "a_prefix_alone": b"Bearer hf_sk_",
    "an_unknown_key": b"Bearer hf_sk_0123456789012345678901234567890123456789012",
    "a_key_of_bytes": b"Bearer hf_sk_\xff\xfe",
    "bytes": b"Bearer \xff\xfe\x80",
    "utf_8": "Bearer žluťoučký".encode(),
    "long": b"Bearer " + b"x" * 7000,
    "dots": b"Bearer ..",
    "parts_of_nothing": b"Bearer e30.e30.e30",
    "header_null": b"Bearer bnVsbA.e30.e30",
    "header_array": b"Bearer W10.e30.e30",
    "no_org": unsigned_token('{"alg": "HS256"}'),
    "org_number": unsigned_token('{"alg": "HS256", "kid": 1}'),
    "org_unknown": unsigned_token(f'{{"alg": "HS256", "kid": "{NO_ORG}"}}'),
    "org_with_a_stray_character": unsigned_token(f'{{"alg": "HS256", "kid": "{NO_ORG[:-1]}*"}}'),
    "org_of_another_kind": unsigned_token(f'{{"alg": "HS256", "kid": "{"0" * len(NO_ORG)}"}}'),
}


# One function reads the header for every operation, before the operation's own code runs. So each header goes to an
# operation that needs a caller and to one that does not, and each operation gets one header.
@pytest.mark.parametrize("value", as_params(MALFORMED_AUTHORIZATIONS))
def test_a_malformed_authorization_is_refused(server: Server, ids_by_resource: IdsByResource, value: bytes) -> None:
    for name in ("place_hold", "list_events"):
        with case(name):
            expect_unauthorized(server, ids_by_resource, BY_NAME[name], value)


@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_every_operation_refuses_an_unknown_key(
    server: Server, ids_by_resource: IdsByResource, operation: Operation
) -> None:
    expect_unauthorized(server, ids_by_resource, operation, MALFORMED_AUTHORIZATIONS["an_unknown_key"])


def expect_unauthorized(
    server: Server, ids_by_resource: IdsByResource, operation: Operation, authorization: bytes
) -> None:
    content = json.dumps(VALID_BODIES.get(operation.name, {})).encode()
    headers = [b"Authorization: " + authorization, b"Idempotency-Key: k", b"Content-Length: %d" % len(content)]
    path = path_of(operation, ids_by_resource).encode()
    answer = send_bytes(server.port, request_head(operation.method, path, headers), content)
    assert answer is not None
    expect_error(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


VALID_BODIES: Final[dict[str, Body]] = {
    "place_hold": hold_body(),
    "create_event": example_event(),
    "create_customer_token": {"user": "u-1"},
    "start_payment": {"provider": "sandbox"},
    "submit_receipt": {"file_ref": "a file"},
    "transfer_booking": {"user": "u-2"},
    "check_in": {"code": "a code"},
    "create_endpoint": {"url": "http://127.0.0.1:9/"},
    "create_series": {"title": "Casablanca"},
    "create_series_events": {"template": example_event(), "rule": "FREQ=DAILY;COUNT=3"},
}


@pytest.mark.parametrize("operation", WITH_BODY, ids=name_of)
def test_a_body_of_10_megabytes_is_refused(
    admin: httpx.Client, ids_by_resource: IdsByResource, operation: Operation
) -> None:
    content = b'{"details": {"a": "' + b"x" * 10_000_000 + b'"}}'
    expect_error(
        call_operation(admin, operation, path_of(operation, ids_by_resource), content), 413, "payload_too_large"
    )


@pytest.mark.parametrize("operation", WITH_BODY, ids=name_of)
def test_a_body_announced_as_too_large_is_refused_before_it_is_sent(
    server: Server, org: Org, ids_by_resource: IdsByResource, operation: Operation
) -> None:
    headers = [f"Authorization: Bearer {org.keys['admin']}".encode(), b"Idempotency-Key: k"]
    length = b"Content-Length: %d" % (MEBIBYTE + 1)
    answer = send_bytes(
        server.port, request_head(operation.method, path_of(operation, ids_by_resource).encode(), [*headers, length])
    )
    assert answer is not None
    expect_error(answer, 413, "payload_too_large")
    assert answer.headers["connection"] == "close"


def hold_of_size(bytes_: int) -> bytes:
    """A hold whose body has exactly this many bytes, most of them spaces."""
    return json.dumps(hold_body()).encode().ljust(bytes_)


def test_a_body_of_one_mebibyte_is_accepted_and_one_byte_more_is_refused(admin: httpx.Client) -> None:
    path = f"/v1/events/{publish_event(admin, example_event())}/holds"
    assert call_operation(admin, BY_NAME["place_hold"], path, hold_of_size(MEBIBYTE)).status_code == 201
    expect_error(
        call_operation(admin, BY_NAME["place_hold"], path, hold_of_size(MEBIBYTE + 1)), 413, "payload_too_large"
    )


@pytest.mark.parametrize(
    ("size", "chunk"),
    [(MEBIBYTE + 1, 1000), (MEBIBYTE + 1, 65_536), (MEBIBYTE + 1, 2 * MEBIBYTE), (2 * MEBIBYTE, 65_536)],
)
def test_a_chunked_body_that_is_too_large_is_refused(
    server: Server, org: Org, event: str, size: int, chunk: int
) -> None:
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), b"Idempotency-Key: k"]
    request = request_head("POST", f"/v1/events/{event}/holds".encode(), [*headers, b"Transfer-Encoding: chunked"])
    for _ in range(10):
        answer = send_bytes(server.port, request, chunked_body(hold_of_size(size), chunk))
        assert answer is not None, "the connection was closed before the answer arrived"
        expect_error(answer, 413, "payload_too_large")


def test_a_client_that_sends_slightly_too_much_is_refused_and_keeps_its_connection(
    server: Server, org: Org, event: str
) -> None:
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), b"Idempotency-Key: k"]
    request = request_head("POST", f"/v1/events/{event}/holds".encode(), [*headers, b"Transfer-Encoding: chunked"])
    body = chunked_body(hold_of_size(MEBIBYTE + 1), MEBIBYTE)
    with socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_SECONDS) as connection:
        connection.sendall(request + body[:-5])
        # The server has read too much before the end arrives.
        time.sleep(0.2)
        connection.sendall(body[-5:])
        refused = read_response(connection)
        connection.sendall(request_head("GET", b"/healthz", []))
        healthy = read_response(connection)
    assert refused is not None
    expect_error(refused, 413, "payload_too_large")
    assert healthy is not None
    assert healthy.status_code == 200


def test_a_chunked_body_is_accepted(server: Server, org: Org, admin: httpx.Client) -> None:
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), b"Idempotency-Key: k"]
    path = f"/v1/events/{publish_event(admin, example_event())}/holds".encode()
    request = request_head("POST", path, [*headers, b"Transfer-Encoding: chunked"])
    answer = send_bytes(server.port, request, chunked_body(json.dumps(hold_body()).encode(), 7))
    assert answer is not None
    assert answer.status_code == 201


REASON: Final = b'{"reason": "changed my mind"}'
CHUNKED: Final = b"Transfer-Encoding: chunked"
TRUNCATED_REQUESTS: Final = {
    "none_of_the_body": ("cancel", b"Content-Length: 29", b""),
    "half_of_the_body": ("cancel", b"Content-Length: 29", REASON[:12]),
    "a_document_but_less_than_promised": ("cancel", b"Content-Length: 100", REASON),
    "no_chunk": ("cancel", CHUNKED, b""),
    "half_a_chunk": ("cancel", CHUNKED, b"1d\r\n" + REASON[:12]),
    "no_last_chunk": ("cancel", CHUNKED, b"1d\r\n" + REASON + b"\r\n"),
    "nothing_of_an_action_without_fields": ("confirm", b"Content-Length: 2", b""),
    "no_chunk_of_an_action_without_fields": ("confirm", CHUNKED, b""),
}


@pytest.mark.parametrize(
    ("action", "framing", "sent"), [pytest.param(*value, id=name) for name, value in TRUNCATED_REQUESTS.items()]
)
def test_a_truncated_request_has_no_effect(
    server: Server, org: Org, admin: httpx.Client, action: str, framing: bytes, sent: bytes
) -> None:
    booking = expect_ok(post_hold(admin, publish_event(admin, example_event()), items=[{"seat": "A-1"}]), 201)
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), framing]
    path = f"/v1/bookings/{booking['id']}/{action}".encode()
    answer = send_bytes(server.port, request_head("POST", path, headers), sent, hang_up=True)
    assert answer is None or 400 <= answer.status_code < 500, answer.text
    assert expect_ok(admin.get(f"/v1/bookings/{booking['id']}"))["status"] == "held"


@pytest.mark.parametrize(
    "lines",
    as_params(
        {
            "length_negative": [b"Content-Length: -1"],
            "length_word": [b"Content-Length: many"],
            "length_huge": [b"Content-Length: 99999999999999999999999999"],
            "length_of_64_bits": [b"Content-Length: 18446744073709551615"],
            "length_twice": [b"Content-Length: 2", b"Content-Length: 29"],
            "chunk_of_no_size": [b"Transfer-Encoding: chunked"],
            "coding_unknown": [b"Transfer-Encoding: gzip"],
        }
    ),
)
def test_an_invalid_content_length_is_refused_and_has_no_effect(
    server: Server, org: Org, admin: httpx.Client, lines: list[bytes]
) -> None:
    booking = expect_ok(post_hold(admin, publish_event(admin, example_event()), items=[{"seat": "A-1"}]), 201)
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), *lines]
    path = f"/v1/bookings/{booking['id']}/cancel".encode()
    answer = send_bytes(
        server.port, request_head("POST", path, headers), b"zz\r\n" + REASON + b"\r\n0\r\n\r\n", hang_up=True
    )
    assert answer is None or 400 <= answer.status_code < 500, answer.text
    assert expect_ok(admin.get(f"/v1/bookings/{booking['id']}"))["status"] == "held"


def test_a_content_length_shorter_than_the_body_truncates_it(
    server: Server, org: Org, ids_by_resource: IdsByResource
) -> None:
    headers = [f"Authorization: Bearer {org.keys['sales']}".encode(), b"Content-Length: 12"]
    path = f"/v1/bookings/{ids_by_resource[Resource.BOOKING]}/cancel".encode()
    answer = send_bytes(server.port, request_head("POST", path, headers), REASON)
    assert answer is None or expect_problem(answer)["code"] == "invalid_request"


@pytest.mark.parametrize(
    "sent",
    as_params(
        {
            "no_http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            "another_version": b"GET /healthz HTTP/9.9\r\n\r\n",
            "nul_in_the_path": request_head("GET", b"/v1/events/a\0b", []),
            "nul_in_the_query": request_head("GET", b"/v1/events?org=a\0b", []),
            "bytes_in_the_query": request_head("GET", b"/v1/events?org=\xff", []),
            "nul_in_a_header": request_head("GET", b"/v1/bookings", [b"Authorization: Bearer a\0b"]),
            "control_character_in_a_header": request_head("GET", b"/v1/bookings", [b"Authorization: Bearer a\x01b"]),
            "a_header_without_a_colon": request_head("GET", b"/v1/bookings", [b"Authorization"]),
            "a_path_of_100_kilobytes": request_head("GET", b"/v1/events/" + b"e" * 100_000, []),
            "a_header_of_a_megabyte": request_head(
                "GET", b"/v1/bookings", [b"Authorization: Bearer " + b"x" * 1_000_000]
            ),
            "a_thousand_headers": request_head("GET", b"/v1/bookings", [b"X-%d: 1" % n for n in range(1000)]),
        }
    ),
)
def test_bytes_that_are_not_http_are_refused(server: Server, sent: bytes) -> None:
    answer = send_bytes(server.port, sent, hang_up=True)
    assert answer is None or 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v2/events", "/v1/event", "/v1/events/", "/v1//events", "/.env"])
def test_an_unknown_path_is_not_found(admin: httpx.Client, path: str) -> None:
    expect_error(admin.get(path), 404, "not_found")


@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_an_unsupported_method_gets_405_and_the_allowed_methods(
    admin: httpx.Client, ids_by_resource: IdsByResource, operation: Operation
) -> None:
    answer = admin.request("BREW", path_of(operation, ids_by_resource))
    expect_error(answer, 405, "method_not_allowed")
    assert operation.method in answer.headers["allow"].split(", ")


@pytest.mark.parametrize("body", [b"[]" * 500_000, b"[" * 1_000_000, b'"' + b"\\\\" * 500_000, b'{"a":' * 150_000])
def test_a_large_body_of_brackets_is_refused_like_a_small_one(admin: httpx.Client, body: bytes) -> None:
    """A thread decodes it; the answer is the same."""
    small = body[: len(body) // 2_000]
    responses = [admin.post("/v1/events", content=content) for content in (small, body)]
    assert [response.status_code for response in responses] == [422, 422]
    assert len({response.json()["code"] for response in responses}) == 1


def test_huge_details_are_refused_without_building_what_is_in_them(admin: httpx.Client, event: str) -> None:
    """A million bytes of brackets would keep the whole process busy."""
    content = json.dumps(hold_body())[:-1] + ', "details": {"a": [' + "[]," * 300_000 + "[]]}}"
    answer = call_operation(admin, BY_NAME["place_hold"], f"/v1/events/{event}/holds", content)
    assert "details" in expect_error(answer, 422, "invalid_request")["errors"][0]["field"]


def test_huge_details_are_refused_before_they_are_decoded() -> None:
    raw = b'{"details": {"a": [' + b"[]," * 100_000 + b"[]]}}"
    with pytest.raises(RefusedError, match="16 KiB"):
        check_raw_details(raw)


@pytest.mark.parametrize("raw", [b"{}", b'{"details": {"a": 1}}', b"[1, 2]", b"{", b'{"details": ' + b"[" * 100_000])
def test_other_bodies_are_left_to_the_decoder(raw: bytes) -> None:
    check_raw_details(raw)
