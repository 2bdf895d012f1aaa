"""A collector for traces on loopback: receives OTLP over HTTP and keeps the spans."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class TraceCollector:
    """`resources` has the attributes of the processes that sent spans."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.raw = b""

    def receive(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.raw += body
        for resource_spans in request.resource_spans:
            found = {each.key: each.value.string_value for each in resource_spans.resource.attributes}
            self.resources.append(found)
            for scope_spans in resource_spans.scope_spans:
                self.spans.extend(scope_spans.spans)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def running_trace_collector() -> Iterator[TraceCollector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.receive(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (as in the base class)
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = TraceCollector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def attributes_of(span: Span) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}
