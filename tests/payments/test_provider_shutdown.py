"""A process that stops closes its connections to payment providers."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from holdfast.api import app
from holdfast.runtime.settings import Settings
from holdfast.worker import runner
from holdfast.worker.job import JobLoop
from tests.support.engine_harness import async_test
from tests.support.payment_harness import FakeGateway


@async_test
async def test_a_stopping_api_process_closes_its_providers(database: str) -> None:
    gateway = FakeGateway()
    sent: list[str] = []
    lifespan_messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "lifespan.startup.complete":
            assert not gateway.is_closed
            lifespan_messages.put_nowait({"type": "lifespan.shutdown"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "make_providers", lambda *_: {"gateway": gateway})
        # The test process is no child of a server, and keeps its own garbage collection.
        patch.setattr(app, "end_with_parent", lambda _: None)
        patch.setattr(app, "_tune_interpreter", lambda: None)
        lifespan_messages.put_nowait({"type": "lifespan.startup"})
        await app.App(Settings(database_url=database))({"type": "lifespan"}, lifespan_messages.get, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert gateway.is_closed


@async_test
async def test_a_stopping_worker_closes_its_providers(database: str) -> None:
    gateway = FakeGateway()

    async def stop_at_once(loop: JobLoop, stopping: asyncio.Event) -> None:
        assert not gateway.is_closed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "make_providers", lambda *_: {"gateway": gateway})
        patch.setattr(JobLoop, "run", stop_at_once)
        await runner.run_worker(Settings(database_url=database))
    assert gateway.is_closed
