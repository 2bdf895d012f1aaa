"""The OpenAPI document has everything a client generator needs: a server, tags, and a schema for every body."""

from typing import Any, Final

import pytest
from msgspec import json

from holdfast.api.call import Operation, Tag
from holdfast.api.openapi import openapi_document
from holdfast.api.operations import OPERATIONS
from holdfast.api.webhook_endpoint_handlers import KINDS
from holdfast.core.refusals import Refusal
from holdfast.core.request_types import RequestModel

DOCUMENT: Final[dict[str, Any]] = json.decode(openapi_document(OPERATIONS))
DESCRIBED: Final = [operation for methods in DOCUMENT["paths"].values() for operation in methods.values()]


def schema_of(path: str, method: str, media_type: str) -> Any:
    content = DOCUMENT["paths"][path][method]["requestBody"]["content"][media_type]["schema"]
    reference = content.get("$ref", "").rpartition("/")[2]
    return DOCUMENT["components"]["schemas"][reference] if reference else content


@pytest.mark.parametrize(
    ("public_url", "server"),
    [
        ("https://tickets.example", "https://tickets.example"),
        ("http://localhost:8000", "/"),
        ("http://127.0.0.1:8000", "/"),
        ("http://[::1]:8000", "/"),
    ],
)
def test_the_server_is_the_public_url_unless_that_names_this_machine(public_url: str, server: str) -> None:
    document = json.decode(openapi_document(OPERATIONS, public_url))
    assert document["servers"] == [{"url": server}]


def test_every_kind_of_webhook_is_described() -> None:
    assert set(DOCUMENT["webhooks"]) == KINDS
    names = [webhook["post"]["operationId"] for webhook in DOCUMENT["webhooks"].values()]
    assert len({*names, *(operation["operationId"] for operation in DESCRIBED)}) == len(names) + len(DESCRIBED)


def test_every_operation_has_one_tag_and_every_tag_is_described() -> None:
    tags = {tag["name"]: tag["description"] for tag in DOCUMENT["tags"]}
    assert list(tags) == [tag.title for tag in Tag]
    assert all(tags.values())
    assert [operation["tags"] for operation in DESCRIBED if len(operation["tags"]) != 1] == []
    assert {operation["tags"][0] for operation in DESCRIBED} == set(tags)


def test_every_body_has_a_schema() -> None:
    contents = [operation["requestBody"]["content"] for operation in DESCRIBED if "requestBody" in operation]
    assert len(contents) > 20
    assert [content for content in contents if not all(media.get("schema") for media in content.values())] == []


def test_the_document_describes_a_receipt_as_a_file_or_a_reference() -> None:
    upload = schema_of("/v1/bookings/{id}/receipt", "post", "multipart/form-data")
    assert upload["properties"]["file"] == {"type": "string", "format": "binary"}
    assert upload["required"] == ["file"]
    reference = schema_of("/v1/bookings/{id}/receipt", "post", "application/json")
    assert set(reference["properties"]) == {"file_ref", "message_ref"}


def test_the_document_describes_a_logo_as_a_file_and_a_notice_as_json() -> None:
    assert schema_of("/v1/org/logo", "put", "image/png") == {"type": "string", "format": "binary"}
    webhook = schema_of("/v1/webhooks/{provider}", "post", "application/json")
    assert set(webhook["properties"]) == {"type", "data"}


def test_every_parameter_in_a_path_and_every_header_is_described() -> None:
    parameters = [parameter for operation in DESCRIBED for parameter in operation["parameters"]]
    missing = [p for p in parameters if p["in"] in ("path", "header") and not p.get("description")]
    assert missing == []


def test_only_a_path_with_an_id_documents_404() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            assert ("404" in operation["responses"]) is ("{" in path), path


def test_handlers_and_operations_agree_on_the_type_of_a_body() -> None:
    def has_valid_body(operation: Operation) -> bool:
        kind = operation.body_type
        if operation.body_content:
            return kind is bytes
        return kind is None or issubclass(kind, RequestModel)

    assert [operation.name for operation in OPERATIONS if not has_valid_body(operation)] == []


def test_every_refusal_that_an_operation_declares_is_in_its_responses() -> None:
    by_name = {operation["operationId"]: operation for operation in DESCRIBED}
    for operation in OPERATIONS:
        documented = {
            code
            for response in by_name[operation.name]["responses"].values()
            for code in response["description"].split(" · ")
        }
        assert {refusal.code for refusal in (*operation.refusals, Refusal.BUSY)} <= documented
