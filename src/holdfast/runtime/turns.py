"""Spreads work that blocks the event loop for a moment over many turns of the loop."""

import asyncio


class Turns:
    """`take` returns to one caller after the other, and the loop does everything else in between."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)
