"""The option `--metrics` of processes that have no HTTP server of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from holdfast.runtime.cli_database import fail
from holdfast.runtime.metrics_server import CannotListenError, MetricsAddress

MetricsOption = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Address to serve /metrics on. Off by default.")
]


def parse_metrics_address(text: str | None) -> MetricsAddress | None:
    try:
        return MetricsAddress.parse(text) if text is not None else None
    except ValueError as error:
        fail(f"Cannot use --metrics: {error}")


@contextmanager
def report_unusable_address() -> Iterator[None]:
    """Exit with a sentence instead of a stack trace."""
    try:
        yield
    except CannotListenError as error:
        fail(f"{error} Choose another address with --metrics.")
