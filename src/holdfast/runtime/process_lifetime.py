"""Child processes that end when their parent has died, however it died."""

import asyncio
import os
import signal
from typing import Final

CHECK_SECONDS: Final = 0.5

# The process to end with. Whoever starts children says so before, because a child may look for its parent too late.
_PARENT: Final = "HOLDFAST_PARENT_PID"

_tasks: set[asyncio.Task[None]] = set()


def set_parent_pid() -> None:
    """Children started from now on end with this process."""
    os.environ[_PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """Watch over the parent from the running loop; without it, stop as if asked to."""
    task = asyncio.create_task(_watch(int(os.environ.get(_PARENT, os.getppid()))))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _watch(parent: int) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(CHECK_SECONDS)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(CHECK_SECONDS)
