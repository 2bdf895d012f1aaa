"""Sends updates to webhooks. Updates of one lane (messages of one chat, button presses of one person) go out one after
the other, and different lanes in parallel, as Telegram does it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, MultipartReader

from tests.support.telegram.parameters import Parameters, read_multipart
from tests.support.telegram.people import BotAccount
from tests.support.telegram.update_queue import Update, Webhook
from tests.support.telegram.world import World

SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0

Call = Callable[[BotAccount, str, Parameters], Awaitable[object]]


class WebhookDelivery:
    def __init__(self, world: World, call: Call) -> None:
        self.targets: list[str] = []
        self.timeout_seconds = 60.0
        self._world = world
        self._call = call
        self._session: ClientSession | None = None
        self._under_way: dict[Update, asyncio.Task[None]] = {}
        self._turn = itertools.count()

    def open(self) -> None:
        self._session = ClientSession()

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def start(self, bot: BotAccount) -> None:
        """Start as many deliveries as the webhook takes at once."""
        webhook = bot.webhook
        if webhook is None:
            return
        mine = {update for update in self._under_way if update in bot.queue.pending}
        lanes = {update.lane for update in mine}
        waiting = [update for update in bot.queue.pending if update not in self._under_way]
        if self._world.shuffle:
            self._world.random.shuffle(waiting)
        for update in waiting:
            if len(mine) >= webhook.max_connections:
                break
            # Shuffled updates overtake each other within a lane.
            if update.lane not in lanes or self._world.shuffle:
                lanes.add(update.lane)
                mine.add(update)
                self._under_way[update] = asyncio.create_task(self._deliver(bot, webhook, update))

    async def _deliver(self, bot: BotAccount, webhook: Webhook, update: Update) -> None:
        try:
            # The second copy goes to the next target, which is another instance of the bot.
            turn, copies = next(self._turn), 2 if self._world.duplicate else 1
            turns = range(turn, turn + copies)
            await asyncio.gather(*(self._send_until_accepted(bot, webhook, update, turn) for turn in turns))
        finally:
            self._under_way.pop(update, None)
        if bot.webhook is webhook:
            bot.queue.remove(update)
        self.start(bot)

    async def _send_until_accepted(self, bot: BotAccount, webhook: Webhook, update: Update, turn: int) -> None:
        """Give up only if the bot replaces or deletes the webhook."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while bot.webhook is webhook:
            error = await self._send(bot, webhook, update, turn)
            if error is None:
                return
            webhook.last_error_date, webhook.last_error_message = int(time.time()), error
            await asyncio.sleep(pause_seconds)
            turn += 1
            pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)

    async def _send(self, bot: BotAccount, webhook: Webhook, update: Update, turn: int) -> str | None:
        """Return why it failed, if it did."""
        assert self._session is not None
        headers = {SECRET_HEADER: webhook.secret_token} if webhook.secret_token else {}
        url = self.targets[turn % len(self.targets)] if self.targets else webhook.url
        timeout = ClientTimeout(total=self.timeout_seconds)
        try:
            async with self._session.post(url, json=update.to_wire(), headers=headers, timeout=timeout) as response:
                if not 200 <= response.status < 300:
                    phrase = HTTPStatus(response.status).phrase if response.status in set(HTTPStatus) else ""
                    return f"Wrong response from the webhook: {response.status} {phrase}".rstrip()
                reply = await _read_reply(response)
        except TimeoutError:
            return "Read timeout expired"
        except ClientError:
            return "Connection refused"
        if reply is not None and (method := reply.text("method")):
            # A bot may call one method in its answer, and never learns the result.
            await self._call(bot, method, reply)
        return None


async def _read_reply(response: ClientResponse) -> Parameters | None:
    if response.content_type == "multipart/form-data":
        reader: Any = MultipartReader.from_response(response)
        return await read_multipart(reader.stream if hasattr(reader, "stream") else reader, {})
    if response.content_type == "application/json":
        body = await response.json()
        return Parameters(body) if isinstance(body, dict) else None
    return None
