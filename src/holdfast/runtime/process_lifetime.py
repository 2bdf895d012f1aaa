"""Child processes that exit when their parent dies, even if it was killed."""

import os
import signal
import threading
import time
from typing import Final

CHECK_SECONDS: Final = 0.5
# How long a process may take to finish what it has begun, before it is killed. Longer than an API process drains.
END_SECONDS: Final = 25

# A parent sets this before it starts children. A child that asked for its parent's pid might ask after it has died.
_PARENT_PID: Final = "HOLDFAST_PARENT_PID"

_watching = threading.Event()


def set_parent_pid() -> None:
    """Make this process the parent of all children that it starts from now on."""
    os.environ[_PARENT_PID] = str(os.getpid())


def end_with_parent(stop: signal.Signals = signal.SIGTERM) -> None:
    """Send this process the signal `stop` once its parent is gone.

    A thread watches, because a process that hangs while it starts or stops must end, too."""
    if not _watching.is_set():
        _watching.set()
        parent_pid = int(os.environ.get(_PARENT_PID, os.getppid()))
        threading.Thread(target=_watch, args=(parent_pid, stop), name="parent", daemon=True).start()


def _watch(parent_pid: int, stop: signal.Signals) -> None:
    while os.getppid() == parent_pid:
        time.sleep(CHECK_SECONDS)
    # The kernel ends the process at the alarm, even if a thread hangs and lets no other one run.
    signal.alarm(END_SECONDS)
    os.kill(os.getpid(), stop)
