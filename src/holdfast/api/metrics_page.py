"""`GET /metrics`: the metrics of all processes of this `holdfast serve`, for Prometheus."""

import asyncio
from typing import Final

from starlette.types import Receive, Scope, Send

from holdfast.api.call import ApiResponse
from holdfast.api.endpoint import NO_STORE, Limits, send_response
from holdfast.api.problems import problem
from holdfast.core.refusals import Refusal, Refused, RefusedError
from holdfast.runtime.exporter import CONTENT_TYPE, Exporter
from holdfast.runtime.metrics_access import refusal
from holdfast.runtime.settings import Settings

PATH: Final = "/metrics"


class MetricsPage:
    """Without an exporter there are no metrics."""

    def __init__(self, exporter: Exporter | None, limits: Limits, settings: Settings) -> None:
        self._exporter = exporter
        self._limits = limits
        self._token = settings.metrics_token
        self._behind_proxy = settings.proxies > 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._respond(scope)
        except RefusedError as error:
            response = problem(error.refused)
        await send_response(send, response, NO_STORE)

    async def _respond(self, scope: Scope) -> ApiResponse[object]:
        if self._exporter is None:
            self._spend(scope)
            raise RefusedError(Refusal.NOT_FOUND)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        peer = scope.get("client") or ("", 0)
        authorization = headers.get("authorization", "")
        reason = refusal(self._token, authorization, peer[0], headers.keys(), behind_proxy=self._behind_proxy)
        if reason is not None:
            self._spend(scope)
            return problem(Refused(Refusal.FORBIDDEN if self._token is None else Refusal.UNAUTHORIZED, reason))
        self._exporter.flush()
        body = await asyncio.to_thread(self._exporter.render)
        return ApiResponse(body, content_type=CONTENT_TYPE.encode())

    def _spend(self, scope: Scope) -> None:
        """Count a request that is refused. Others do not count: Prometheus may share its address with buyers, who must
        not keep it from reading the metrics."""
        self._limits.per_address.spend(self._limits.address(scope))
