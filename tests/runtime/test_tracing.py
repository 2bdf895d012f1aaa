"""Traces lead from a request to the batch that served it, contain nothing about buyers, and are free when off."""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags

from holdfast.core.commands import Command
from holdfast.engine import batch
from holdfast.engine.batch_runner import BATCH_MAX
from holdfast.engine.lane import Lane
from holdfast.engine.load import LoadedBatch
from holdfast.runtime import db, tracing
from holdfast.runtime.otel_tracing import OtelTracing, open_tracing
from holdfast.worker.job import Job, JobLoop
from tests.support.engine_harness import async_test, lane_connection, new_event, new_hold_command, one_pool
from tests.support.harness import Org, example_event, free_port, publish_event, running_server, wait_until
from tests.support.http_assertions import expect_ok
from tests.support.lane_harness import running_lane
from tests.support.trace_collector import TraceCollector, attributes_of, running_trace_collector

WAIT_SECONDS = 60
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NOT_SAMPLED, SAMPLED = 0, 1


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "active", OtelTracing(provider, trust_callers=True))
    return exporter


def _named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def _request(lane: Lane, command: Command, flags: int = SAMPLED) -> int:
    """Submit the command as a request with a trace of its own, and return the id of its trace."""
    assert tracing.active is not None
    headers = {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{flags:02x}"}
    with tracing.active.request_span("request", headers, {}) as span:
        await lane.submit(command)
    return span.get_span_context().trace_id


@async_test
async def test_a_batch_links_to_all_its_requests_and_has_its_steps_inside(
    database: str, exported: InMemorySpanExporter
) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(9))
        async with running_lane(partial(db.connect_lane, database)) as lane:
            traces = await asyncio.gather(
                *[asyncio.create_task(_request(lane, new_hold_command(event))) for _ in range(3)]
            )
    batches = _named(exported, "batch")
    assert sorted(link.context.trace_id for span in batches for link in span.links) == sorted(traces)
    for span in batches:
        assert span.parent is None
        assert span.context is not None
        inside = [each for each in exported.get_finished_spans() if each.parent and each.parent == span.context]
        assert [each.name for each in inside] == ["load", "decide", "save", "commit"]


def test_a_batch_is_sampled_if_one_of_its_requests_is(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "active", OtelTracing(provider))
    for flags, count in ((NOT_SAMPLED, 0), (SAMPLED, 1)):
        request = SpanContext(int(TRACE_ID, 16), int(PARENT_ID, 16), is_remote=True, trace_flags=TraceFlags(flags))
        with tracing.batch_span([None, request]):
            pass
        assert len(_named(exporter, "batch")) == count


def test_a_full_batch_links_to_every_sampled_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SPAN_LINK_COUNT_LIMIT", raising=False)
    traced = open_tracing("api", trust_callers=False)
    contexts = [
        SpanContext(number, number, is_remote=True, trace_flags=TraceFlags(SAMPLED if number % 2 else NOT_SAMPLED))
        for number in range(1, 2 * BATCH_MAX + 1)
    ]
    with traced.batch_span(contexts) as span:
        assert isinstance(span, ReadableSpan)
        assert [link.context.trace_id for link in span.links] == list(range(1, 2 * BATCH_MAX, 2))


@pytest.mark.parametrize("trust_callers", [False, True])
def test_only_a_trusted_caller_decides_what_is_sampled(trust_callers: bool) -> None:
    provider = TracerProvider(shutdown_on_exit=False, sampler=ParentBased(ALWAYS_OFF))
    traced = OtelTracing(provider, trust_callers=trust_callers)
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    with traced.request_span("request", headers, {}) as span:
        assert span.is_recording() is trust_callers


@async_test
async def test_an_error_has_its_type_and_no_message(
    database: str, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: db.Connection, __: LoadedBatch) -> None:
        raise RuntimeError("DETAIL: the row of Ana")

    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=one_pool(9))
        async with running_lane(partial(db.connect_lane, database)) as lane:
            monkeypatch.setattr(batch, "save", fail)
            await _request(lane, new_hold_command(event))
    for name in ("save", "batch"):
        (span,) = _named(exported, name)
        assert span.status.status_code is StatusCode.ERROR
        assert dict(span.attributes or {})["error.type"] == "RuntimeError"
    assert "Ana" not in "".join(span.to_json() for span in exported.get_finished_spans())


@async_test
async def test_a_job_has_a_span_for_each_run_that_did_something(exported: InMemorySpanExporter) -> None:
    stopping = asyncio.Event()
    results = iter([0, 5, 0])

    async def run() -> int:
        items = next(results, None)
        if items is None:
            stopping.set()
            raise TimeoutError("of Ana")
        return items

    await JobLoop([Job(name="sweeper", run=run, interval_seconds=0.01)]).run(stopping)
    first, second = _named(exported, "job sweeper")
    assert dict(first.attributes or {})["holdfast.items"] == 5
    assert dict(second.attributes or {})["error.type"] == "TimeoutError"


def test_nothing_loads_opentelemetry_while_tracing_is_off() -> None:
    program = """
import sys
import holdfast.runtime.cli, holdfast.runtime.asgi, holdfast.worker.runner
from holdfast.runtime import tracing
from holdfast.runtime.settings import Settings
tracing.configure_tracing(Settings(), "api")
with tracing.span("load"), tracing.batch_span([None]):
    assert tracing.current_span() is None
sys.exit(any(name.partition(".")[0] == "opentelemetry" for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.fixture(scope="module")
def collector() -> Iterator[TraceCollector]:
    with running_trace_collector() as collector:
        yield collector


def test_a_traced_server_joins_the_trace_of_a_trusted_caller(database: str, collector: TraceCollector) -> None:
    environment = {
        "HOLDFAST_TRACING": "true",
        "HOLDFAST_TRACE_CALLERS": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
    }
    user = f"ana-{secrets.token_hex(4)}"
    with running_server(database, workers=1, worker=False, **environment) as server:
        with server.client(Org(database).headers()) as admin:
            event = publish_event(admin, example_event())
            headers = {
                "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01",
                "Idempotency-Key": "k-1",
                "X-Request-ID": "traced-1",
            }
            body = {"user": user, "items": [{"pool": "standing", "tariff": "full"}]}
            expect_ok(admin.post(f"/v1/events/{event}/holds", json=body, headers=headers), 201)
            admin.get("/", headers={"traceparent": "nonsense"})
        assert server.stop() == 0
    wait_until(lambda: bool(collector.named("GET page")), WAIT_SECONDS)
    (hold,) = collector.named("POST /v1/events/{id}/holds")
    assert (hold.trace_id.hex(), hold.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert attributes_of(hold) == {
        "http.request.method": "POST",
        "http.route": "/v1/events/{id}/holds",
        "http.response.status_code": 201,
        "holdfast.request_id": "traced-1",
    }
    (served,) = [span for span in collector.named("batch") if any(link.span_id == hold.span_id for link in span.links)]
    steps = {span.name for span in collector.spans if span.parent_span_id == served.span_id}
    assert steps == {"load", "decide", "save", "commit"}
    assert user.encode() not in collector.raw
    assert {(each["service.name"], each["holdfast.process"]) for each in collector.resources} == {("holdfast", "api")}


def test_a_collector_that_is_gone_stops_nobody(database: str) -> None:
    environment = {"HOLDFAST_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    with running_server(database, workers=1, worker=False, **environment) as server:
        with server.client(Org(database).headers()) as admin:
            publish_event(admin, example_event())
        assert server.stop() == 0
