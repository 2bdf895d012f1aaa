"""A merchant's server on loopback that receives the sandbox gateway's notices."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from granian.constants import Interfaces
from granian.server.embed import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.payments.provider import CheckoutRequest, Notice
from holdfast.payments.sandbox import Sandbox
from tests.support.engine_harness import poll_until
from tests.support.harness import free_port

KEY = b"a key of thirty-two bytes for us"


SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


PAYMENT = "pay_0190c7a1"


HOUR = 3600
# Verifying a notice reads nothing from the database.
NO_DATABASE: Any = None


class MerchantServer:
    """Receives notices and verifies them. `answers` replace its next replies."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.notices: list[Notice] = []
        self.bodies: list[bytes] = []
        self.answers: list[int] = []

    async def receive(self, request: Request) -> Response:
        body = await request.body()
        notice = Sandbox(NO_DATABASE, SECRET, self.url).verify(request.headers, body)
        if self.answers:
            return Response(status_code=self.answers.pop(0))
        self.bodies.append(body)
        self.notices.append(notice)
        return Response(status_code=204)

    @asynccontextmanager
    async def serve(self, routes: Sequence[BaseRoute] = ()) -> AsyncIterator[None]:
        inbox = Route("/v1/webhooks/sandbox", self.receive, methods=["POST"])
        server = Server(
            Starlette(routes=[inbox, *routes]), port=self.port, interface=Interfaces.ASGI, log_enabled=False
        )
        serving = asyncio.create_task(server.serve())
        try:
            await poll_until(self._is_up)
            yield
        finally:
            server.stop()  # type: ignore[no-untyped-call]
            await serving

    async def _is_up(self) -> bool:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as client:
            try:
                return (await client.get(self.url)).status_code == 404
            except httpx.TransportError:
                return False


def checkout_request(payment: str = PAYMENT, **changes: Any) -> CheckoutRequest:
    fields: dict[str, Any] = {
        "amount": 3000,
        "currency": "EUR",
        "description": "Friday night, 2 places",
        "return_url": "https://shop.example/thanks",
        "expires_at": datetime.now(UTC) + timedelta(seconds=HOUR),
    }
    return CheckoutRequest(payment=payment, **{**fields, **changes})
