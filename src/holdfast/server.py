"""`holdfast serve`: API processes behind one port, and a worker beside them, on one machine."""

import os
import subprocess
import sys
import threading
import time
from typing import Final

from granian import Granian
from granian.constants import Interfaces, Loops

BACKLOG: Final = 16_384
DRAIN_SECONDS: Final = 20
RESTART_SECONDS: Final = 0.2


def serve(host: str, port: int, workers: int, *, with_worker: bool, app: str = "holdfast.http.app:create_app") -> None:
    """Serve until asked to stop. The settings are in the environment, where child processes find them."""
    background = _Background() if with_worker else None
    try:
        while not _serve_once(host, port, workers, app):
            time.sleep(RESTART_SECONDS)
    finally:
        if background:
            background.stop()


def _serve_once(host: str, port: int, workers: int, app: str) -> bool:
    """Whether it ended because it was asked to. Granian also gives up when a process dies soon after its start."""
    server = Granian(
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
