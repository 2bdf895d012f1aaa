"""Logs: one JSON object per line on standard error, without personal data of buyers.

Logging never raises and never waits. A thread writes the lines, so a full disk or a log collector that has stopped
reading costs log lines, not sales.
"""

import atexit
import logging
import os
import queue
import re
import threading
import time
from typing import Any, Final

import structlog
from structlog.tracebacks import ExceptionDictTransformer

STANDARD_OUTPUT: Final = 1
STANDARD_ERROR: Final = 2
LINES_MAX: Final = 10_000
FLUSH_SECONDS: Final = 1.0

# PostgreSQL and asyncpg quote the row or the value that caused an error.
_QUOTED_VALUES: Final = re.compile(r"(\n(DETAIL|CONTEXT):|(?<=query argument \$)\d+:).*", re.DOTALL)


def _remove_quoted_values(_logger: object, _method: str, event: Any) -> Any:
    """Drop values from error messages, because they may be about a buyer."""
    if isinstance(event.get("detail"), str):
        event["detail"] = _QUOTED_VALUES.sub("", event["detail"])
    for error in event.get("exception", ()):
        error["exc_value"] = _QUOTED_VALUES.sub("", error["exc_value"])
    return event


class BackgroundStream:
    """A text stream that a thread writes. It drops lines that it cannot write, and later says how many."""

    def __init__(self, descriptor: int, lines_max: int = LINES_MAX) -> None:
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(lines_max)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def flush(self) -> None:
        """Nothing to do: the thread does not buffer."""

    def drain(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until all lines are written, up to a limit."""
        give_up_at = time.monotonic() + seconds
        while self._lines.unfinished_tasks and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def _write_lines(self) -> None:
        while True:
            text = self._lines.get()
            dropped = self._dropped
            if dropped:
                text = f'{{"event": "log_lines_dropped", "level": "warning", "lines": {dropped}}}\n{text}'
            try:
                self._write(text.encode(errors="backslashreplace"))
                self._dropped -= dropped
            except OSError:
                self._dropped += 1
            finally:
                self._lines.task_done()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class SafeLogger(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]
    """A log call must not break the code that makes it, not even with a value that cannot be rendered."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *values: Any, **fields: Any) -> Any:
        try:
            return super()._proxy_to_logger(method_name, event, *values, **fields)
        except structlog.DropEvent:
            return None
        except Exception as error:
            try:
                self._logger.msg(f'{{"event": "log_line_failed", "level": "error", "error": "{type(error).__name__}"}}')
            except Exception:
                return None


def server_log_handler() -> logging.Handler:
    """For the server library, which logs in plain text to standard output. Clients can cause some of its lines."""
    stream = BackgroundStream(STANDARD_OUTPUT)
    atexit.register(stream.drain)
    return logging.StreamHandler(stream)


def configure_logs() -> None:
    stream = BackgroundStream(STANDARD_ERROR)
    atexit.register(stream.drain)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            _remove_quoted_values,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=SafeLogger,
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
