"""Traces, for the code that makes spans. Unless tracing is on, nothing here imports OpenTelemetry or does any work."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from holdfast.runtime.extras import optional_import
from holdfast.runtime.settings import Settings

if TYPE_CHECKING:
    # Its package is optional.
    from opentelemetry.trace import SpanContext

    from holdfast.runtime.otel_tracing import OtelTracing

Attribute = str | int

_NO_SPAN: Final = nullcontext()

# That of this process, if tracing is on.
active: "OtelTracing | None" = None


def configure_tracing(settings: Settings, process: str) -> None:
    """Turn tracing on if the settings ask for it. `process` says what kind of process this is."""
    global active
    if settings.tracing:
        check_tracing(settings)
        from holdfast.runtime.otel_tracing import open_tracing

        active = open_tracing(process, trust_callers=settings.trace_callers)


def check_tracing(settings: Settings) -> None:
    """Raises an error that says how to install what tracing needs, if it is on."""
    if not settings.tracing:
        return
    with optional_import("opentelemetry", extra="tracing"):
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk  # noqa: F401


async def close_tracing() -> None:
    """Send what is left."""
    if active is not None:
        await active.close()


def current_span() -> "SpanContext | None":
    return active.current_span() if active is not None else None


def span(name: str, **attributes: Attribute) -> AbstractContextManager[object]:
    """A span around a block, as a child of the current one."""
    return active.span(name, attributes) if active is not None else _NO_SPAN


def batch_span(requests: "Iterable[SpanContext | None]") -> AbstractContextManager[object]:
    """A span around a batch. It links to the spans of the requests that the batch serves."""
    return active.batch_span(requests) if active is not None else _NO_SPAN
