"""Child processes that exit when their parent dies, even if it was killed."""

import asyncio
import os
import signal
from typing import Final

CHECK_SECONDS: Final = 0.5

# A parent sets this before it starts children. A child that asked for its parent's pid might ask after it has died.
_PARENT_PID: Final = "HOLDFAST_PARENT_PID"

_tasks: set[asyncio.Task[None]] = set()


def set_parent_pid() -> None:
    """Make this process the parent of all children that it starts from now on."""
    os.environ[_PARENT_PID] = str(os.getpid())


def end_with_parent() -> None:
    """Watch the parent from the running event loop, and send SIGTERM to this process once the parent is gone."""
    task = asyncio.create_task(_watch(int(os.environ.get(_PARENT_PID, os.getppid()))))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        await asyncio.sleep(CHECK_SECONDS)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(CHECK_SECONDS)
