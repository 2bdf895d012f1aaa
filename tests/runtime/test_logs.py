"""Logging never breaks the code that logs, and never makes it wait."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.runtime.logs import PIECES_MAX, BackgroundStream
from tests.support.harness import running_server
from tests.support.raw_http import request_head

LOG_THEN_PRINT = textwrap.dedent(
    """
    import structlog
    from holdfast.runtime.logs import configure_logs
    from holdfast.runtime.settings import Settings

    class Unprintable:
        def __repr__(self):
            raise RuntimeError

    configure_logs(Settings())
    log = structlog.get_logger()
    for number in range(20_000):
        log.error("still_here", number=number)
    log.error("unprintable", value=Unprintable())
    print("done", flush=True)
    """
)


def _run(stderr: int) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", LOG_THEN_PRINT],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stdout


def test_a_full_disk_stops_nobody() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert _run(full) == "done\n"
    finally:
        os.close(full)


def test_a_log_collector_that_does_not_read_stops_nobody() -> None:
    unread, written = os.pipe()
    try:
        assert _run(written) == "done\n"
    finally:
        os.close(unread)
        os.close(written)


def test_a_closed_log_stops_nobody() -> None:
    unread, written = os.pipe()
    os.close(unread)
    try:
        assert _run(written) == "done\n"
    finally:
        os.close(written)


def test_a_value_that_cannot_be_rendered_leaves_a_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOG_THEN_PRINT.replace("20_000", "1")], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert lines == ["still_here", "log_line_failed"]


FORMATS = textwrap.dedent(
    """
    import os, structlog
    from holdfast.runtime.logs import configure_logs
    from holdfast.runtime.settings import Settings

    configure_logs(Settings.from_environment(os.environ))
    log = structlog.get_logger()
    try:
        raise ValueError("the row\\nDETAIL: of Ana")
    except ValueError:
        log.exception("it_failed", number=1)
    """
)


QUOTING_ERRORS = textwrap.dedent(
    """
    import os, asyncpg, structlog
    from holdfast.runtime.logs import configure_logs
    from holdfast.runtime.settings import Settings

    configure_logs(Settings.from_environment(os.environ))
    log = structlog.get_logger()

    def fail():
        syntax = asyncpg.InvalidTextRepresentationError('invalid input syntax for type integer: "ana@example.org"')
        syntax.add_note("the row of ana@example.org")
        unique = asyncpg.UniqueViolationError(
            'duplicate key value violates unique constraint "booking_request"\\nDETAIL:  Key is ana@example.org'
        )
        inner = ExceptionGroup("inner", [unique, ValueError("ana@example.org"), KeyError("ana@example.org")])
        try:
            raise ExceptionGroup("two tasks failed", [syntax, inner])
        except ExceptionGroup as error:
            raise RuntimeError("no row was written") from error

    try:
        fail()
    except RuntimeError:
        log.exception("it_failed")
    """
)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_errors_keep_what_operators_need_and_quote_nobody(log_format: str) -> None:
    environment = {**os.environ, "HOLDFAST_LOG_FORMAT": log_format}
    done = subprocess.run(
        [sys.executable, "-c", QUOTING_ERRORS], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "it_failed" in done.stderr
    shown = [
        "RuntimeError",
        "no row was written",
        "two tasks failed",
        "InvalidTextRepresentationError",
        "invalid input syntax for type integer",
        "booking_request",
        "ValueError",
        "KeyError",
        "in fail" if log_format == "console" else '"name":"fail"',
    ]
    assert [text for text in shown if text not in done.stderr] == []
    # A terminal also shows the lines of the code, which contain our address.
    quoted = [line for line in done.stderr.splitlines() if "ana@example.org" in line]
    assert quoted == []


@pytest.mark.parametrize(
    ("setting", "is_terminal", "is_text"),
    [(None, True, True), (None, False, False), ("json", True, False), ("console", False, True)],
)
def test_a_terminal_shows_text_unless_the_settings_say_otherwise(
    setting: str | None, is_terminal: bool, is_text: bool
) -> None:
    read, written = os.openpty() if is_terminal else os.pipe()
    environment = {**os.environ, **({"HOLDFAST_LOG_FORMAT": setting} if setting else {})}
    subprocess.run([sys.executable, "-c", FORMATS], stderr=written, env=environment, timeout=60, check=True)
    text = os.read(read, 65_536).decode()
    os.close(written)
    os.close(read)
    assert "it_failed" in text
    assert "ValueError" in text
    assert "Ana" not in text, "errors of the database quote rows"
    assert text.startswith("{") is not is_text


@pytest.mark.parametrize("accepted_bytes", [None, 100], ids=["all at once", "in pieces"])
def test_more_lines_than_one_system_call_takes_arrive_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted_bytes: int | None
) -> None:
    if accepted_bytes is not None:
        monkeypatch.setattr(os, "writev", lambda file, lines: os.write(file, b"".join(lines)[:accepted_bytes]))
    with (tmp_path / "log").open("w+b") as file:
        stream = BackgroundStream(file.fileno())
        texts = [f"line {number}\n" for number in range(3 * PIECES_MAX + 7)]
        for text in texts:
            stream.write(text)
        stream.drain(10)
        file.seek(0)
        assert file.read().decode() == "".join(texts)


def test_lines_that_were_dropped_are_counted_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = BackgroundStream(descriptor)
    for _ in range(3):
        stream.write("lost\n")
    stream.drain(10)
    with path.open("wb") as file:
        os.dup2(file.fileno(), descriptor)
    stream.write("written\n")
    stream.drain(10)
    dropped, written = path.read_text().splitlines()
    assert json.loads(dropped)["lines"] == 3
    assert written == "written"
    os.close(descriptor)


def test_a_server_serves_and_stops_although_nobody_reads_its_standard_output(database: str) -> None:
    """The server library logs there, and clients can cause lines: for example, by leaving before the response."""
    with _full_standard_output(), running_server(database, workers=1) as server, server.client() as client:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as leaving:
                leaving.sendall(request_head("GET", b"/openapi.json", []))
        assert client.get("/readyz").status_code == 200
        assert server.stop() == 0


@contextmanager
def _full_standard_output() -> Iterator[None]:
    """Processes that start meanwhile have a full pipe for standard output."""
    unread, written = os.pipe()
    os.set_blocking(written, False)
    with suppress(BlockingIOError):
        while os.write(written, bytes(65_536)):
            pass
    os.set_blocking(written, True)
    kept = os.dup(1)
    os.dup2(written, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        for descriptor in (kept, unread, written):
            os.close(descriptor)
