"""`holdfast serve`: API processes behind one port, and a worker beside them, on one machine."""

import os
import socket
import subprocess
import sys
import threading
import time
from typing import Final

from granian.constants import Interfaces, Loops
from granian.server.mp import MPServer

from holdfast.orphans import be_a_parent

BACKLOG: Final = 16_384
DRAIN_SECONDS: Final = 20
RESTART_SECONDS: Final = 0.2
INSIST_SECONDS: Final = 0.5


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


def serve(host: str, port: int, workers: int, *, with_worker: bool, app: str = "holdfast.http.app:create_app") -> None:
    """Serve until asked to stop. The settings are in the environment, where child processes find them."""
    be_a_parent()
    background = _Background() if with_worker else None
    try:
        while not _serve_once(host, port, workers, app):
            time.sleep(RESTART_SECONDS)
    finally:
        if background:
            background.stop()


class _Server(MPServer):
    """Granian asks its processes to stop once, and one that is still starting does not hear it."""

    def _stop_workers(self) -> None:
        threading.Thread(target=self._insist, daemon=True).start()
        super()._stop_workers()  # type: ignore[no-untyped-call]

    def _insist(self) -> None:
        while self.wrks:
            time.sleep(INSIST_SECONDS)
            for worker in list(self.wrks):
                worker.terminate()  # type: ignore[no-untyped-call]


def _serve_once(host: str, port: int, workers: int, app: str) -> bool:
    """Whether it ended because it was asked to. Granian also gives up when a process dies soon after its start."""
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
        workers_kill_timeout=DRAIN_SECONDS,
        log_access=False,
    )
    try:
        server.serve()
    except SystemExit:
        if server.interrupt_signal:
            raise
    return server.interrupt_signal


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
