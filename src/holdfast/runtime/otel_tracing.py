"""Traces with OpenTelemetry, over OTLP. The standard variables OTEL_… configure it.

No attribute contains personal data. Paths and errors may, so spans have neither: only the route, and the type of an
error.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import structlog
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from holdfast import __version__
from holdfast.runtime.tracing import Attribute

log = structlog.get_logger()

SERVICE: Final = "holdfast"
# How long a process that stops waits for the collector.
CLOSE_SECONDS: Final = 5.0
# As many as a batch has commands. OpenTelemetry keeps 128 links of a span by default.
LINKS_MAX: Final = 256
# OpenTelemetry logs every failed attempt to send.
FAILURE_SECONDS: Final = 60.0


class LinkedSampler(Sampler):
    """Samples a batch if one of its requests is sampled. Otherwise, a sampled request would rarely find its batch."""

    def __init__(self, others: Sampler) -> None:
        self._others = others

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        if not links:
            return self._others.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)
        is_sampled = any(link.context.trace_flags.sampled for link in links)
        return SamplingResult(Decision.RECORD_AND_SAMPLE if is_sampled else Decision.DROP, attributes, trace_state)

    def get_description(self) -> str:
        return f"Linked({self._others.get_description()})"


class OtelTracing:
    def __init__(self, provider: TracerProvider, *, trust_callers: bool = False) -> None:
        provider.sampler = LinkedSampler(provider.sampler)
        self._provider = provider
        self._trust_callers = trust_callers
        self._tracer = provider.get_tracer(SERVICE, __version__)

    def current_span(self) -> SpanContext | None:
        context = trace.get_current_span().get_span_context()
        return context if context.is_valid else None

    def span(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Span]:
        return self._run(self._tracer.start_span(name, attributes=dict(attributes)))

    def batch_span(self, requests: Iterable[SpanContext | None]) -> AbstractContextManager[Span]:
        spans = list(requests)
        # Several commands of a batch may belong to one request.
        distinct = {context.span_id: context for context in spans if context is not None}
        sampled = [context for context in distinct.values() if context.trace_flags.sampled]
        # One that is not sampled says that the batch is not sampled either.
        links = [Link(context) for context in sampled or list(distinct.values())[:1]]
        attributes = {"holdfast.commands": len(spans)}
        return self._run(self._tracer.start_span("batch", Context(), links=links, attributes=attributes))

    def request_span(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Attribute]
    ) -> AbstractContextManager[Span]:
        """A span for an HTTP request. It continues the trace of a trusted caller, who then decides what is sampled."""
        parent = propagate.extract(headers, context=Context()) if self._trust_callers else Context()
        return self._run(self._tracer.start_span(name, parent, SpanKind.SERVER, dict(attributes)))

    def record_job(self, job: str, started_at: float, items: int, error: Exception | None) -> None:
        """Make a span of a run of a job that has ended. Most runs find nothing to do, so a run gets its span
        afterwards, and only if it did something. `started_at` is in seconds since the epoch."""
        if not items and error is None:
            return
        attributes: dict[str, Attribute] = {"holdfast.job": job, "holdfast.items": items}
        span = self._tracer.start_span(f"job {job}", Context(), attributes=attributes, start_time=int(started_at * 1e9))
        if error is not None:
            set_error(span, type(error).__name__)
        span.end()

    async def close(self) -> None:
        """A collector that does not answer must not keep the process from stopping."""
        thread = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        thread.start()
        give_up_at = time.monotonic() + CLOSE_SECONDS
        while thread.is_alive() and time.monotonic() < give_up_at:
            await asyncio.sleep(0.01)

    @contextmanager
    def _run(self, span: Span) -> Iterator[Span]:
        """The span's own way of recording exceptions would export their messages, which may be about a buyer."""
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                set_error(span, type(error).__name__)
                raise


def set_error(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def open_tracing(process: str, *, trust_callers: bool) -> OtelTracing:
    os.environ.setdefault("OTEL_SPAN_LINK_COUNT_LIMIT", str(LINKS_MAX))
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", SERVICE)
    resource = Resource.create({"service.version": __version__, "holdfast.process": process})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _log_failures(lambda error: log.warning("traces_not_sent", error=error))
    return OtelTracing(provider, trust_callers=trust_callers)


def _log_failures(report: Callable[[str], object]) -> None:
    """Pass on that traces could not be sent, at most once a minute. The library would write its own lines, as text."""
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    library.handlers = [_FailureHandler(report)]


class _FailureHandler(logging.Handler):
    def __init__(self, report: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._report = report
        self._quiet_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """The template of the message has no values, such as URLs with passwords."""
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + FAILURE_SECONDS
            self._report(str(record.msg))
