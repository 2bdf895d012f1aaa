"""Logs: one JSON object a line on standard error, without anything about buyers."""

import logging
import re
import sys
from typing import Any, Final

import structlog
from structlog.tracebacks import ExceptionDictTransformer

# PostgreSQL and its driver quote the row or the value that they did not like.
_VALUES: Final = re.compile(r"(\n(DETAIL|CONTEXT):|(?<=query argument \$)\d+:).*", re.DOTALL)


def _without_values(_logger: object, _method: str, event: Any) -> Any:
    """Errors without what they quote, which may be about a buyer."""
    if isinstance(event.get("detail"), str):
        event["detail"] = _VALUES.sub("", event["detail"])
    for error in event.get("exception", ()):
        error["exc_value"] = _VALUES.sub("", error["exc_value"])
    return event


def configure_logs() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            _without_values,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
