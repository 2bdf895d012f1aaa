"""`holdfast serve`: API processes that share one port, and a background worker beside them."""

import contextlib
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Final

from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.server.mp import MPServer

from holdfast.runtime.exporter import FOLDER_VARIABLE
from holdfast.runtime.process_lifetime import set_parent_pid

BACKLOG: Final = 16_384
HEADER_BYTES_MAX: Final = 64 * 1024
DRAIN_SECONDS: Final = 17
KILL_SECONDS: Final = 3
RESTART_SECONDS: Final = 0.2
INTERRUPT_INTERVAL_SECONDS: Final = 0.5
POLL_SECONDS: Final = 0.01
# By default, Granian logs to standard output and blocks if nobody reads it.
LOG_CONFIG: Final = {
    "handlers": {
        "console": {"()": "holdfast.runtime.logs.server_log_handler", "formatter": "generic"},
        "access": {"class": "logging.NullHandler"},
    }
}


def is_port_free(host: str, port: int) -> bool:
    """Granian binds with SO_REUSEPORT, so a second server on the port would start without an error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def serve(
    host: str,
    port: int,
    workers: int,
    *,
    with_worker: bool,
    idle_seconds: float = 65,
    app: str = "holdfast.runtime.asgi:create_app",
) -> None:
    """Serve until SIGINT or SIGTERM. Child processes read the settings from the environment."""
    set_parent_pid()
    _raise_open_file_limit()
    with _shared_metrics():
        worker = _WorkerProcess() if with_worker else None
        try:
            while not _Server.stop_requested:
                _run_server(host, port, workers, app, idle_seconds)
                if not _Server.stop_requested:
                    time.sleep(RESTART_SECONDS)
        finally:
            if worker:
                worker.stop()


@contextlib.contextmanager
def _shared_metrics() -> Iterator[None]:
    """A folder in which all child processes gather their metrics, so that each can report those of all."""
    with tempfile.TemporaryDirectory(prefix="holdfast-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER_VARIABLE] = folder
        yield


def _raise_open_file_limit() -> None:
    """Every WebSocket of the live feed is an open file, and the soft limit is often 1024."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


class _Server(MPServer):
    """Interrupts its processes before Granian terminates them. SIGTERM may hang a process that is starting, and it cuts
    off live feeds. Our application handles SIGINT at any time and shuts down in order."""

    # Shared by all instances: a signal may arrive after one has given up and before the next has started.
    stop_requested = False

    def signal_handler_interrupt(self, *args: object, **kwargs: object) -> None:
        _Server.stop_requested = True
        super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _stop_workers(self) -> None:
        self._interrupt_workers()
        super()._stop_workers()  # type: ignore[no-untyped-call]

    def _interrupt_workers(self) -> None:
        """Send SIGINT repeatedly, because a process ignores it until it has loaded the application."""
        deadline = time.monotonic() + DRAIN_SECONDS
        interrupt_at = 0.0
        for worker in self.wrks:
            worker.interrupt_by_parent = True
        while (running := [w.inner for w in self.wrks if w.inner.is_alive()]) and time.monotonic() < deadline:
            if time.monotonic() >= interrupt_at:
                interrupt_at = time.monotonic() + INTERRUPT_INTERVAL_SECONDS
                for process in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGINT)
            time.sleep(POLL_SECONDS)


def _run_server(host: str, port: int, workers: int, app: str, idle_seconds: float) -> None:
    """Returns when a signal stops the server, and when Granian gives up because a process died soon after its start."""
    server = _Server(
        app,
        factory=True,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=workers,
        loop=Loops.uvloop,
        # Granian puts no time limit on a connection that has yet to show which version of HTTP it speaks.
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(
            header_read_timeout=math.ceil(idle_seconds * 1000), max_buffer_size=HEADER_BYTES_MAX
        ),
        backlog=BACKLOG,
        # Granian would queue requests above this number silently. The lanes have a bounded queue and answer "busy".
        backpressure=BACKLOG,
        respawn_failed_workers=True,
        workers_kill_timeout=KILL_SECONDS,
        log_access=False,
        log_dictconfig=LOG_CONFIG,
    )
    # Granian exits with 1 if a process has died, even if a signal stops the server at that moment.
    with contextlib.suppress(SystemExit):
        server.serve()


class _WorkerProcess:
    """Runs `holdfast worker` and restarts it whenever it exits."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._restart_on_exit, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._process.terminate()
        try:
            self._process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-m", "holdfast", "worker", "--child"], env=os.environ)

    def _restart_on_exit(self) -> None:
        while not self._stopping.is_set():
            self._process.wait()
            if not self._stopping.wait(RESTART_SECONDS):
                self._process = self._start()
