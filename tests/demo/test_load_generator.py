"""A load generator that dies before its last message has failed, and its buyers count as unanswered."""

import asyncio
from typing import Any

import pytest
from msgspec import json

from holdfast.demo.stampede.generator_process import GeneratorProcess
from holdfast.demo.stampede.load_generator import Assignment, BuyerArrival
from holdfast.demo.stampede.report import ProgressMessage, Tally

MESSAGE = json.encode(ProgressMessage(Tally(arrived=1), [], [])) + b"\n"
LAST = json.encode(ProgressMessage(Tally(arrived=1, done=1), [], [], is_last=True)) + b"\n"


class FakeProcess:
    """A process with a given output."""

    def __init__(self, output: bytes) -> None:
        self.stdin = self
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(output)
        self.stdout.feed_eof()
        self.returncode = 0

    def write(self, _: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...
    async def wait(self) -> None: ...


@pytest.fixture
def generator() -> GeneratorProcess:
    return GeneratorProcess(Assignment("http://127.0.0.1", "ev_1", 1, [BuyerArrival("somebody", "token", 0)]))


@pytest.mark.parametrize(
    ("output", "has_failed"),
    [
        (MESSAGE + LAST, False),
        (MESSAGE, True),
        (MESSAGE + LAST[:-10], True),
        (MESSAGE + LAST[:-1], True),
        (b"", True),
    ],
    ids=["whole", "no last message", "half a message", "no end of line", "nothing"],
)
def test_a_load_generator_succeeds_only_with_a_whole_last_message(
    generator: GeneratorProcess, monkeypatch: pytest.MonkeyPatch, output: bytes, has_failed: bool
) -> None:
    async def start(*_: object, **__: object) -> Any:
        return FakeProcess(output)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    asyncio.run(generator.run())
    assert generator.has_died is has_failed
    assert generator.unanswered == (["somebody"] if has_failed else [])
