"""A load generator as the process that started it sees it."""

import asyncio
import sys
from typing import Final

from msgspec import json

from holdfast.demo.stampede.load_generator import Assignment
from holdfast.demo.stampede.report import GrantedHold, ProgressMessage, Tally

# A load generator sends four messages a second. One that stays silent for this long hangs.
SILENT_SECONDS: Final = 30.0
MESSAGE_BYTES_MAX: Final = 1 << 24


class GeneratorProcess:
    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self.tally = Tally()
        self.granted: list[GrantedHold] = []
        self.unanswered: list[str] = []
        self.has_died = False

    async def run(self) -> None:
        """Run the process until its last message. If it dies earlier, nobody knows what its buyers were granted."""
        # In a session of its own, it gets no Ctrl-C from the terminal. The parent does, and ends its children.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.demo.stampede.load_generator"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MESSAGE_BYTES_MAX,
            start_new_session=True,
        )
        try:
            self.has_died = not await self._run_to_end(process)
            if self.has_died:
                self.unanswered = [buyer.name for buyer in self._assignment.buyers]
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _run_to_end(self, process: asyncio.subprocess.Process) -> bool:
        """Send the assignment and read messages. False if the process ends or hangs before its last one."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.encode(self._assignment))
            await process.stdin.drain()
            process.stdin.close()
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    line = await process.stdout.readline()
                if not line.endswith(b"\n"):
                    return False
                if self._record_progress(line):
                    return True
        except OSError:
            return False

    def _record_progress(self, line: bytes) -> bool:
        """Returns whether this was the last message."""
        progress = json.decode(line, type=ProgressMessage)
        self.tally = progress.tally
        self.granted += progress.granted
        self.unanswered += progress.unanswered
        return progress.is_last
