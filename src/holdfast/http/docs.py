"""The readable docs of the API, made from the table of operations."""

from collections.abc import Sequence

from holdfast.http.operation import Operation


def docs_page(operations: Sequence[Operation]) -> bytes:
    return b""
