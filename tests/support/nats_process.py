"""A NATS server with JetStream, and a reader of its streams."""

import asyncio
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from tests.support.harness import free_port
from tests.support.programs import require_program

WAIT_SECONDS = 60


class NatsServer:
    def __init__(self, folder: Path, *options: str) -> None:
        self._program = require_program("nats-server", "nats-server")
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it with the messages that it had."""
        place = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder)]
        self._process = subprocess.Popen([self._program, *place, *self._options], stderr=subprocess.DEVNULL)
        give_up_at = time.monotonic() + WAIT_SECONDS
        while not self._listens():
            assert self._process.poll() is None, "nats-server ended"
            assert time.monotonic() < give_up_at, "nats-server does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(WAIT_SECONDS)
            self._process = None

    def pause(self) -> None:
        """It accepts connections, and never answers until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@contextmanager
def running_nats(*options: str) -> Iterator[NatsServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder), *options)
        try:
            server.start()
            yield server
        finally:
            server.stop()


class NatsReader:
    """Keeps every message of some subjects that a stream has stored, in the order of the stream."""

    def __init__(self, client: Client, subjects: str) -> None:
        self._client = client
        self._subjects = subjects
        self.messages: list[Msg] = []

    async def wait_for(self, count: int) -> list[Msg]:
        subscription = await self._subscribe()
        self.messages = []
        try:
            while len(self.messages) < count:
                self.messages.append(await subscription.next_msg(WAIT_SECONDS))
            # Whatever came too often.
            with suppress(NatsTimeoutError, asyncio.TimeoutError):
                while True:
                    self.messages.append(await subscription.next_msg(0.2))
        finally:
            await subscription.unsubscribe()
        return self.messages

    async def _subscribe(self) -> JetStreamContext.PushSubscription:
        """The first message creates the stream."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                with suppress(NotFoundError):
                    return await self._client.jetstream().subscribe(self._subjects, ordered_consumer=True)
                await asyncio.sleep(0.02)


@asynccontextmanager
async def reading(server: NatsServer, subjects: str) -> AsyncIterator[NatsReader]:
    client = Client()
    await client.connect(server.url)
    try:
        yield NatsReader(client, subjects)
    finally:
        await client.close()
