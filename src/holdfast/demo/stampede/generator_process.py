"""One process of buyers as it is seen by the process that started it."""

import asyncio
import sys
from typing import Final

from msgspec import json

from holdfast.demo.stampede.report import Tally, Tidings, Told
from holdfast.demo.stampede.rush import Orders

# A process tells something four times a second. One that is silent for so long hangs.
SILENT_SECONDS: Final = 30.0
LINE_MAX: Final = 1 << 24


class Herd:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self.tally = Tally()
        self.told: list[Told] = []
        self.unanswered: list[str] = []
        self.trouble: str | None = None

    async def run(self) -> None:
        """It is over when the process says so, or has died: then nobody knows what its buyers have got."""
        # A session of its own: what is typed at the terminal reaches the parent alone, which ends its children.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.demo.stampede.rush"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_MAX,
            start_new_session=True,
        )
        try:
            if not await self._converse(process):
                self.trouble = "A process of buyers died or fell silent before its end."
                self.unanswered = [visitor.name for visitor in self._orders.visitors]
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _converse(self, process: asyncio.subprocess.Process) -> bool:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.encode(self._orders))
            await process.stdin.drain()
            process.stdin.close()
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    line = await process.stdout.readline()
                if not line.endswith(b"\n") or self._is_over(line):
                    return bool(line)
        except OSError:
            return False

    def _is_over(self, line: bytes) -> bool:
        tidings = json.decode(line, type=Tidings)
        self.tally = tidings.tally
        self.told += tidings.told
        self.unanswered += tidings.unanswered
        return tidings.is_over
