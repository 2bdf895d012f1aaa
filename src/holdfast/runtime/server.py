"""`holdfast serve`: API processes behind one port, and a worker beside them, on one machine."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Final

from granian.constants import Interfaces, Loops
from granian.server.mp import MPServer

from holdfast.runtime.process_lifetime import set_parent_pid

BACKLOG: Final = 16_384
DRAIN_SECONDS: Final = 17
KILL_SECONDS: Final = 3
RESTART_SECONDS: Final = 0.2
INSIST_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.01


def is_free(host: str, port: int) -> bool:
    """Whether nobody listens there yet. Granian shares its port with its like, so it would not notice."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def serve(
    host: str, port: int, workers: int, *, with_worker: bool, app: str = "holdfast.runtime.application:create_app"
) -> None:
    """Serve until asked to stop. The settings are in the environment, where child processes find them."""
    set_parent_pid()
    _allow_many_files()
    background = _Background() if with_worker else None
    try:
        while not _Server.was_asked_to_stop:
            _serve_once(host, port, workers, app)
            if not _Server.was_asked_to_stop:
                time.sleep(RESTART_SECONDS)
    finally:
        if background:
            background.stop()


def _allow_many_files() -> None:
    """Every watcher of the live feed is an open file, and the limit to start with is often 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Server(MPServer):
    """A process of Granian's that is asked to stop while it still starts may hang, and one that serves cuts off those
    who watch the live feed. So we interrupt it first, which our application hears at any time, and stops in order."""

    # Of all of them: a signal may come after one has given up and before the next has begun.
    was_asked_to_stop = False

    def signal_handler_interrupt(self, *args: object, **kwargs: object) -> None:
        _Server.was_asked_to_stop = True
        super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _stop_workers(self) -> None:
        self._interrupt_workers()
        super()._stop_workers()  # type: ignore[no-untyped-call]

    def _interrupt_workers(self) -> None:
        """Again and again, because nothing is heard before there is an application."""
        give_up_at = time.monotonic() + DRAIN_SECONDS
        ask_at = 0.0
        for worker in self.wrks:
            worker.interrupt_by_parent = True
        while (running := [w.inner for w in self.wrks if w.inner.is_alive()]) and time.monotonic() < give_up_at:
            if time.monotonic() >= ask_at:
                ask_at = time.monotonic() + INSIST_SECONDS
                for process in running:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGINT)
            time.sleep(LOOK_SECONDS)


def _serve_once(host: str, port: int, workers: int, app: str) -> None:
    """Until it is asked to stop. Granian also gives up when a process dies soon after its start."""
    server = _Server(
        app,
        factory=True,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=workers,
        loop=Loops.uvloop,
        backlog=BACKLOG,
        # Requests over this would wait unseen; the lanes have a bounded queue of their own, and say when it is full.
        backpressure=BACKLOG,
        respawn_failed_workers=True,
        workers_kill_timeout=KILL_SECONDS,
        log_access=False,
    )
    try:
        server.serve()
    except SystemExit:
        if server.interrupt_signal:
            raise


class _Background:
    """The worker process, started again whenever it ends."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep_running, daemon=True)
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

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            self._process.wait()
            if not self._stopping.is_set():
                time.sleep(RESTART_SECONDS)
                self._process = self._start()
