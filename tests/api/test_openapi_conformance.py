"""The API conforms to its own OpenAPI document, whatever a client sends."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any, Final

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.api.call import Operation, Resource
from holdfast.api.openapi import openapi_document
from holdfast.api.operations import OPERATIONS
from tests.support import resources
from tests.support.harness import IS_LONG, Org, Server, example_event, post_hold, publish_event
from tests.support.http_assertions import expect_ok
from tests.support.resources import create_resource

EXAMPLES: Final = 25 if IS_LONG else 3
CONFORMANCE: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

# Operations that may be repeated on the same resource.
REPEATABLE: Final = ("place_hold", "change_event", "publish_event", "extend_booking")

DOCUMENT: Final[dict[str, Any]] = json.loads(openapi_document(OPERATIONS))
schema = schemathesis.openapi.from_dict(DOCUMENT)

AnyCase = schemathesis.Case[Any]

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
bounded = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class ResourceSupply:
    """A real resource for each id in a path, reused until an operation ends it."""

    def __init__(self, admin: httpx.Client) -> None:
        self._admin = admin
        self._reusable = {resource: create_resource(admin, resource) for resource in Resource}

    def id_for(self, operation: Operation) -> str:
        if operation.method == "GET" or operation.name in REPEATABLE:
            return self._reusable[operation.resource]
        return create_resource(self._admin, operation.resource)


@pytest.fixture(scope="module")
def resource_supply(admin: httpx.Client) -> ResourceSupply:
    return ResourceSupply(admin)


@cache
def cases(path: str, method: str, *modes: GenerationMode) -> strategies.SearchStrategy[AnyCase]:
    return strategies.one_of([schema[path][method].as_strategy(generation_mode=mode) for mode in modes])


@each_operation
@bounded
@given(data=strategies.data())
def test_any_request_gets_a_documented_answer_and_an_invalid_one_is_refused(
    server: Server, org: Org, operation: Operation, data: strategies.DataObject
) -> None:
    case = data.draw(cases(operation.path, operation.method, *GenerationMode))
    answer = case.call(base_url=server.url, headers=org.headers("admin"))
    case.validate_response(answer, checks=[*CONFORMANCE, negative_data_rejection])


# Any resource refuses an invalid request, so requests about real resources are all valid.
@pytest.mark.parametrize(
    "operation", [o for o in OPERATIONS if o.path_parameter == "id"], ids=lambda operation: operation.name
)
@bounded
@given(data=strategies.data())
def test_a_valid_request_about_a_real_resource_gets_a_documented_answer(
    server: Server, org: Org, resource_supply: ResourceSupply, operation: Operation, data: strategies.DataObject
) -> None:
    case = data.draw(cases(operation.path, operation.method, GenerationMode.POSITIVE))
    case.path_parameters = {"id": resource_supply.id_for(operation)}
    answer = case.call(base_url=server.url, headers=org.headers("admin"))
    case.validate_response(answer, checks=CONFORMANCE)


def test_boundary_values_get_documented_answers(server: Server, org: Org) -> None:
    """Schemathesis derives about 2,000 requests from the bounds in the document. Its pytest plugin would build
    them in every test process during collection; the command builds them once."""
    checks = ",".join(check.__name__ for check in [*CONFORMANCE, negative_data_rejection])
    headers = [f"--header={name}: {value}" for name, value in org.headers("admin").items()]
    options = ["--phases=coverage", f"--checks={checks}", "--warnings=off", "--no-color", *headers]
    command = [sys.executable, "-m", "schemathesis.cli", "run", *options, f"{server.url}/openapi.json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


SuccessCall = Callable[[httpx.Client, str, str], httpx.Response]

# A call that gets each operation's documented success, from a client, an event on sale and a held booking.
SUCCESSES: Final[dict[str, SuccessCall]] = {
    "place_hold": lambda client, event, _: post_hold(
        client, event, items=[{"pool": "standing", "tariff": "child", "quantity": 2}], details={"a": [1, None]}
    ),
    "get_booking": lambda client, _, booking: client.get(f"/v1/bookings/{booking}"),
    "extend_booking": lambda client, _, booking: client.post(f"/v1/bookings/{booking}/extend"),
    "confirm_booking": lambda client, _, booking: client.post(f"/v1/bookings/{booking}/confirm"),
    "cancel_booking": lambda client, _, booking: client.post(f"/v1/bookings/{booking}/cancel", json={"reason": "x"}),
    "refund_booking": lambda client, _, booking: (
        client.post(f"/v1/bookings/{booking}/confirm") and client.post(f"/v1/bookings/{booking}/refund")
    ),
    "list_bookings": lambda client, event, _: client.get("/v1/bookings", params={"event": event}),
    "export_bookings": lambda client, event, _: client.get(f"/v1/events/{event}/bookings.csv"),
    "get_availability": lambda client, event, _: client.get(f"/v1/events/{event}/availability"),
    "get_seats": lambda client, event, _: client.get(f"/v1/events/{event}/seats"),
    "list_changes": lambda client, event, _: client.get(f"/v1/events/{event}/changes"),
    "list_journal": lambda client, event, _: client.get(f"/v1/events/{event}/journal"),
    "create_event": lambda client, *_: client.post(
        "/v1/events", json=example_event(preset="show", details={"a": {"b": 1.5}})
    ),
    "list_events": lambda client, *_: client.get("/v1/events"),
    "get_event": lambda client, event, _: client.get(f"/v1/events/{event}"),
    "change_event": lambda client, event, _: client.patch(f"/v1/events/{event}", json={"block_seats": ["B-1"]}),
    "publish_event": lambda client, event, _: client.post(f"/v1/events/{event}/publish"),
    "complete_event": lambda client, event, _: client.post(f"/v1/events/{event}/complete"),
    "cancel_event": lambda client, event, _: client.post(f"/v1/events/{event}/cancel"),
    "create_customer_token": lambda client, *_: client.post("/v1/customer-tokens", json={"user": "u-1"}),
    "transfer_booking": lambda client, *_: client.post(
        f"/v1/bookings/{resources.create_confirmed_booking(client)}/transfer",
        json={"user": "u-2", "email": "u-2@example.com"},
    ),
    "start_payment": lambda client, _, booking: resources.post_payment(client, booking),
    "get_payment": lambda client, *_: client.get(f"/v1/payments/{resources.start_payment(client)['id']}"),
    "refund_payment": lambda client, *_: client.post(
        f"/v1/payments/{resources.create_payment_in_review(client)}/refund"
    ),
    "receive_notice": lambda client, *_: resources.post_notice(client, resources.start_payment(client)),
    "submit_receipt": lambda client, *_: client.post(
        f"/v1/bookings/{resources.create_held_booking(client)}/receipt", json={"file_ref": "a file"}
    ),
    "list_receipts": lambda client, *_: client.get(
        f"/v1/bookings/{resources.create_submitted_booking(client)}/receipts"
    ),
    "get_receipt": lambda client, *_: client.get(f"/v1/receipts/{resources.create_receipt(client)}"),
    "approve_booking": lambda client, *_: client.post(
        f"/v1/bookings/{resources.create_submitted_booking(client)}/approve"
    ),
    "reject_booking": lambda client, *_: client.post(
        f"/v1/bookings/{resources.create_submitted_booking(client)}/reject", json={"reason": "blurred"}
    ),
    "list_tickets": lambda client, *_: client.get(f"/v1/bookings/{resources.create_confirmed_booking(client)}/tickets"),
    "get_qr_svg": lambda client, *_: client.get(f"/v1/tickets/{resources.create_ticket(client)}/qr.svg"),
    "get_qr_png": lambda client, *_: client.get(f"/v1/tickets/{resources.create_ticket(client)}/qr.png"),
    "get_ticket_pdf": lambda client, *_: client.get(f"/v1/tickets/{resources.create_ticket(client)}/ticket.pdf"),
    "check_in": lambda client, *_: client.post(
        "/v1/checkins",
        json={
            "code": resources.list_tickets(client, resources.create_confirmed_booking(client))[0]["code"],
            "gate": "North",
        },
    ),
    "get_ticket_key": lambda client, event, _: client.get(f"/v1/events/{event}/ticket-key"),
    "rotate_ticket_key": lambda client, event, _: client.post(f"/v1/events/{event}/ticket-key/rotate"),
    "get_progress": lambda client, event, _: client.get(f"/v1/events/{event}/progress"),
    "create_endpoint": lambda client, *_: resources.post_endpoint(client),
    "list_endpoints": lambda client, *_: client.get("/v1/webhook-endpoints"),
    "get_endpoint": lambda client, *_: client.get(f"/v1/webhook-endpoints/{resources.create_endpoint(client)}"),
    "change_endpoint": lambda client, *_: client.patch(
        f"/v1/webhook-endpoints/{resources.create_endpoint(client)}", json={"kinds": ["booking.confirmed"]}
    ),
    "rotate_endpoint": lambda client, *_: client.post(
        f"/v1/webhook-endpoints/{resources.create_endpoint(client)}/rotate"
    ),
    "delete_endpoint": lambda client, *_: client.delete(f"/v1/webhook-endpoints/{resources.create_endpoint(client)}"),
    "list_deliveries": lambda client, *_: client.get(
        f"/v1/webhook-endpoints/{resources.create_endpoint(client)}/deliveries"
    ),
    "create_series": lambda client, *_: client.post("/v1/series", json={"title": "Casablanca", "description": "1942"}),
    "list_series": lambda client, *_: client.get("/v1/series"),
    "get_series": lambda client, *_: client.get(f"/v1/series/{resources.create_series(client)}"),
    "change_series": lambda client, *_: client.patch(
        f"/v1/series/{resources.create_series(client)}", json={"description": None}
    ),
    "create_series_events": lambda client, *_: resources.post_series_events(client, resources.create_series(client)),
    "get_series_job": lambda client, *_: client.get(f"/v1/series-jobs/{resources.create_series_job(client)}"),
    "get_org": lambda client, *_: client.get("/v1/org"),
    "change_org": lambda client, *_: client.patch(
        "/v1/org", json={"name": "Acme", "colour": "#1f6feb", "frame_origins": ["https://shop.example"]}
    ),
    "set_logo": lambda client, *_: client.put("/v1/org/logo", content=resources.TINY_PNG),
    "delete_logo": lambda client, *_: client.delete("/v1/org/logo"),
    "healthz": lambda client, *_: client.get("/healthz"),
    "readyz": lambda client, *_: client.get("/readyz"),
}


def test_every_operation_has_a_success_to_check() -> None:
    assert set(SUCCESSES) == {operation.name for operation in OPERATIONS}


@each_operation
def test_a_success_is_answered_as_documented(admin: httpx.Client, operation: Operation) -> None:
    event = publish_event(admin, example_event())
    booking = expect_ok(post_hold(admin, event, items=[{"seat": "A-1"}]), 201)["id"]
    answer = SUCCESSES[operation.name](admin, event, booking)
    assert answer.status_code == operation.status, answer.text
    schema[operation.path][operation.method].validate_response(answer)


def test_the_check_finds_an_undocumented_answer(admin: httpx.Client) -> None:
    valid = admin.get("/healthz")
    schema["/healthz"]["GET"].validate_response(valid)
    wrong = httpx.Response(200, json={"status": 1}, request=valid.request)
    wrong.elapsed = timedelta()
    with pytest.raises(Failure):
        schema["/healthz"]["GET"].validate_response(wrong)


def test_the_served_document_matches_the_table_of_operations(admin: httpx.Client) -> None:
    assert expect_ok(admin.get("/openapi.json")) == DOCUMENT
    described = {(path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(operation.path, operation.method) for operation in OPERATIONS}


def test_the_document_is_openapi_3_1() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    schema.validate()
    broken = schemathesis.openapi.from_dict({**DOCUMENT, "info": {"title": "No version"}})
    with pytest.raises(jsonschema_rs.ValidationError):
        broken.validate()


def every_schema() -> Iterator[tuple[str, Any]]:
    yield from DOCUMENT["components"]["schemas"].items()
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            for parameter in operation["parameters"]:
                yield f"{method} {path} {parameter['name']}", parameter["schema"]


def every_node(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from every_node(child)


def test_every_schema_in_the_document_is_a_json_schema() -> None:
    for _, found in every_schema():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **found})


def test_every_reference_in_the_document_resolves() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    used = {node["$ref"] for node in every_node(DOCUMENT) if "$ref" in node}
    assert used <= known
    assert used


def test_operations_in_the_document_have_unique_names() -> None:
    names = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert sorted(names) == sorted({operation.name for operation in OPERATIONS})


def test_parameters_of_paths_are_all_described() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            described = {p["name"] for p in operation["parameters"] if p["in"] == "path" and p["required"]}
            assert described == set(re.findall(r"{(\w+)}", path)), path


def test_patterns_in_the_document_use_only_portable_syntax() -> None:
    """JSON Schema uses ECMAScript's regular expressions, in which Python's anchors are plain letters."""
    patterns = {node["pattern"] for node in every_node(DOCUMENT) if isinstance(node.get("pattern"), str)}
    assert patterns
    assert not [pattern for pattern in patterns if re.search(r"\\[AZz]", pattern)]


def test_times_in_the_document_have_the_format_date_time() -> None:
    for name, found in DOCUMENT["components"]["schemas"].items():
        for field, kind in found.get("properties", {}).items():
            if field.endswith("_at") or field in ("at", "server_time"):
                formats = {node.get("format") for node in every_node(kind) if node.get("type") == "string"}
                assert formats == {"date-time"}, f"{name}.{field}"
