"""Logs on standard error, without personal data of buyers: JSON lines for programs, or text for people in a terminal.

Logging never raises and never waits. A thread writes the lines, so a full disk or a log collector that has stopped
reading costs log lines, not sales.
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import structlog
from structlog.typing import Processor

from holdfast.runtime.log_lines import log_lines
from holdfast.runtime.logged_errors import format_as_dicts, format_as_text
from holdfast.runtime.request_ids import current_request_id
from holdfast.runtime.settings import LogFormat, Settings

STANDARD_OUTPUT: Final = 1
STANDARD_ERROR: Final = 2
# How much may wait to be written.
BYTES_MAX: Final = 8 * 1024 * 1024
FLUSH_SECONDS: Final = 1.0
# How long the thread collects lines before it writes them. Every time it wakes up, it interrupts the event loop.
COLLECT_SECONDS: Final = 0.1
# The most that one system call takes.
PIECES_MAX: Final = os.sysconf("SC_IOV_MAX")


def _add_request_id(_logger: object, _method: str, event: Any) -> Any:
    request_id = current_request_id()
    if request_id is not None:
        event.setdefault("request_id", request_id)
    return event


class BackgroundStream:
    """A stream that a thread writes. It drops lines that it cannot write, and later says how many."""

    def __init__(self, descriptor: int, bytes_max: int = BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._bytes_max = bytes_max
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_writing = False
        self._dropped = 0
        # Guards the counts. Nobody holds it while writing.
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._is_urgent = threading.Event()
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        self.write_lines(text.encode(errors="backslashreplace"))

    def write_lines(self, data: bytes) -> None:
        """Write one or more whole lines."""
        with self._lock:
            if self._waiting_bytes + len(data) > self._bytes_max:
                self._dropped += data.count(b"\n")
                return
            self._waiting_bytes += len(data)
            self._waiting.append(data)
        if not self._arrived.is_set():
            self._arrived.set()

    def flush(self) -> None:
        """Nothing to do: the thread writes everything soon."""

    def drain(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until all lines are written, up to a limit."""
        give_up_at = time.monotonic() + seconds
        self._is_urgent.set()
        while (self._waiting or self._is_writing) and time.monotonic() < give_up_at:
            time.sleep(0.001)

    def _write_lines(self) -> None:
        while True:
            self._arrived.wait()
            self._is_urgent.wait(COLLECT_SECONDS)
            self._is_writing = True
            self._arrived.clear()
            self._write_waiting()
            self._is_writing = False

    def _write_waiting(self) -> None:
        with self._lock:
            pieces, self._waiting = self._waiting, deque()
            dropped, self._waiting_bytes = self._dropped, 0
        lines = list(pieces)
        if dropped:
            lines.insert(0, b'{"event":"log_lines_dropped","level":"warning","lines":%d}\n' % dropped)
        try:
            for start in range(0, len(lines), PIECES_MAX):
                self._write(lines[start : start + PIECES_MAX])
        except OSError:
            dropped = -sum(piece.count(b"\n") for piece in pieces)
        with self._lock:
            self._dropped -= dropped

    def _write(self, pieces: Sequence[bytes]) -> None:
        """Without joining them, because a second of a rush has megabytes."""
        written = os.writev(self._descriptor, pieces)
        if written < sum(map(len, pieces)):
            rest = b"".join(pieces)[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


class SafeLogger(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]
    """A log call must not break the code that makes it, not even with a value that cannot be rendered."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *values: Any, **fields: Any) -> Any:
        try:
            return super()._proxy_to_logger(method_name, event, *values, **fields)
        except structlog.DropEvent:
            return None
        except Exception as error:
            try:
                self._logger.msg(f'{{"event":"log_line_failed","level":"error","error":"{type(error).__name__}"}}')
            except Exception:
                return None


def server_log_handler() -> logging.Handler:
    """For the server library, which logs in plain text to standard output. Clients can cause some of its lines."""
    stream = BackgroundStream(STANDARD_OUTPUT)
    atexit.register(stream.drain)
    return logging.StreamHandler(stream)


def is_for_people(settings: Settings) -> bool:
    """Whether the log is text. Without a setting, it is if a terminal shows it."""
    if settings.log_format is None:
        return sys.stderr is not None and sys.stderr.isatty()
    return settings.log_format is LogFormat.CONSOLE


def configure_command_logs() -> None:
    """For commands that people and scripts read: only what needs attention, and on standard error."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def configure_logs(settings: Settings) -> None:
    stream = BackgroundStream(STANDARD_ERROR)
    atexit.register(stream.drain)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_request_id,
            *_renderers(settings),
        ],
        wrapper_class=SafeLogger,
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    log_lines.set_json_stream(None if is_for_people(settings) else stream.write_lines)


def _renderers(settings: Settings) -> list[Processor]:
    if is_for_people(settings):
        has_colors = sys.stderr is not None and sys.stderr.isatty()
        return [
            structlog.processors.ExceptionRenderer(format_as_text),
            structlog.dev.ConsoleRenderer(colors=has_colors),
        ]
    return [
        structlog.processors.ExceptionRenderer(format_as_dicts),
        structlog.processors.JSONRenderer(separators=(",", ":")),
    ]
