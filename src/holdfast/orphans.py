"""Child processes that end when their parent has died, however it died."""

import asyncio
import os
import signal
from typing import Final

CHECK_SECONDS: Final = 0.5

_tasks: set[asyncio.Task[None]] = set()


def end_with_parent() -> None:
    """Watch over the parent from the running loop; without it, stop as if asked to."""
    task = asyncio.create_task(_watch(os.getppid()))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _watch(parent: int) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
