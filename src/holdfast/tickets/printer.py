"""A few threads that only draw PDFs. A rush for PDFs must not occupy the threads for name lookups and file access, nor
keep more than a few drawings in memory."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from holdfast.core.refusals import Refusal, RefusedError

THREADS: Final = 2
# Drawings queued or in progress. A ticket takes about a tenth of a second.
QUEUE_MAX: Final = 50


class Printer:
    """Runs drawings in its threads."""

    def __init__(self, threads: int = THREADS, queue_max: int = QUEUE_MAX) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="printer")
        self._queue_max = queue_max
        self._queued = 0

    async def run(self, draw: Callable[[], bytes]) -> bytes:
        """Refuse the drawing as busy if too many are waiting."""
        if self._queued >= self._queue_max:
            raise RefusedError(Refusal.BUSY, "Too many tickets are waiting to be printed. Try again in a moment.")
        self._queued += 1
        drawing = self._threads.submit(draw)
        # A drawing cannot be interrupted, so it counts until it ends, even if nobody waits for it any more.
        loop = asyncio.get_running_loop()
        drawing.add_done_callback(lambda _: loop.call_soon_threadsafe(self._forget) if not loop.is_closed() else None)
        return await asyncio.wrap_future(drawing)

    def _forget(self) -> None:
        self._queued -= 1
