"""The API as the pages call it: in this process, as the customer whose browser asks."""

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from msgspec import ValidationError, json

from holdfast.runtime.credentials import sign_customer_token
from holdfast.runtime.db import Database, Pool
from holdfast.web.api_types import Problem

T = TypeVar("T")
TOKEN_SECONDS = 60


class ApiError(Exception):
    """The API said no."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


class ApiClient:
    """Calls of one request of a browser. They count against the limits of the browser's own address."""

    def __init__(self, transport: httpx.ASGITransport, headers: dict[str, str]) -> None:
        self._transport = transport
        self._headers = headers

    async def speaking_for(self, pool: Pool, org: bytes, user: str) -> "ApiClient":
        """The same, as a customer of the org."""
        token, _ = await sign_customer_token(Database(pool), org, user, TOKEN_SECONDS)
        return ApiClient(self._transport, {**self._headers, "authorization": f"Bearer {token}"})

    async def get(self, path: str, kind: type[T], **query: str | int) -> T:
        return json.decode((await self.call("GET", path, params=query)).content, type=kind)

    async def post(self, path: str, kind: type[T], body: object = None, key: str | None = None) -> T:
        content = json.encode(body if body is not None else {})
        headers = {"idempotency-key": key} if key else {}
        return json.decode((await self.call("POST", path, content=content, headers=headers)).content, type=kind)

    async def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {**self._headers, **request.pop("headers", {})}
        sent = httpx.Request(method, f"http://api{path}", headers=headers, **request)
        response = await self._transport.handle_async_request(sent)
        await response.aread()
        if response.status_code >= 400:
            raise ApiError(_problem(response))
        return response


def key_of(form: Mapping[str, str], body: object) -> str:
    """The same form with the same choice is the same request, however often it is sent; another choice is another."""
    return hashlib.sha256(form.get("key", "").encode() + b"\0" + json.encode(body)).hexdigest()


def _problem(response: httpx.Response) -> Problem:
    try:
        return json.decode(response.content, type=Problem)
    except ValidationError:
        return Problem(response.status_code, "internal")
