"""Checks that every success and every problem document must pass."""

from typing import Any, Final

import httpx

FIELDS: Final = {"type": str, "title": str, "status": int, "code": str, "detail": str, "retryable": bool}
OPTIONAL: Final = {"conflicts", "errors", "booking", "sales_open_at"}
# Traces of the implementation that must never reach a client.
INTERNALS: Final = ("Traceback", "asyncpg", "msgspec", "SELECT ", "INSERT ", 'File "')


def expect_problem(response: httpx.Response) -> dict[str, Any]:
    """Check that the response is a well-formed 4xx problem document, and return it."""
    assert 400 <= response.status_code < 500, f"{response.status_code}: {response.text[:500]}"
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert {name: type(document.get(name)) for name in FIELDS} == FIELDS, document
    assert set(document) <= {*FIELDS, *OPTIONAL}, document
    assert document["status"] == response.status_code
    assert document["title"]
    assert document["detail"]
    assert not [trace for trace in INTERNALS if trace in response.text], document
    return document


def expect_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    document = expect_problem(response)
    assert (response.status_code, document["code"]) == (status, code), document
    return document


def expect_ok(response: httpx.Response, status: int = 200) -> dict[str, Any]:
    """Check that the response is a success, and return its document."""
    assert response.status_code == status, f"{response.status_code}: {response.text[:500]}"
    assert response.headers["content-type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document
