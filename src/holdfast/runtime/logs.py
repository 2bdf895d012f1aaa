"""Logs: one JSON object per line on standard error, without personal data of buyers."""

import logging
import re
import sys
from typing import Any, Final

import structlog
from structlog.tracebacks import ExceptionDictTransformer

# PostgreSQL and asyncpg quote the row or the value that caused an error.
_QUOTED_VALUES: Final = re.compile(r"(\n(DETAIL|CONTEXT):|(?<=query argument \$)\d+:).*", re.DOTALL)


def _remove_quoted_values(_logger: object, _method: str, event: Any) -> Any:
    """Drop values from error messages, because they may be about a buyer."""
    if isinstance(event.get("detail"), str):
        event["detail"] = _QUOTED_VALUES.sub("", event["detail"])
    for error in event.get("exception", ()):
        error["exc_value"] = _QUOTED_VALUES.sub("", error["exc_value"])
    return event


def configure_logs() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            _remove_quoted_values,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
