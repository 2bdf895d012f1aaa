"""How fast a bot may send. Telegram refuses bots that send more, and says how long the chat has to wait.

Only one process sends the messages of a bot, so these counts need not be shared.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct


class Limit(Struct, frozen=True):
    """At most so many messages within any period of so many seconds."""

    messages: int
    seconds: float


# A little below what Telegram documents: 30 a second in all, one a second in a chat, 20 a minute in a group or channel.
BOT: Final = Limit(28, 1)
CHAT: Final = Limit(3, 3)
GROUP: Final = Limit(19, 60)
CHATS_MAX: Final = 10_000


class _Window:
    """When the last messages were sent."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._sent: deque[float] = deque(maxlen=limit.messages)

    def seconds_until_free(self, now: float) -> float:
        if len(self._sent) < self._limit.messages:
            return 0.0
        return max(0.0, self._sent[0] + self._limit.seconds - now)

    def free(self, now: float) -> int:
        return self._limit.messages - sum(at > now - self._limit.seconds for at in self._sent)

    def add(self, now: float) -> None:
        self._sent.append(now)


class FloodLimits:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bot = _Window(BOT)
        self._chats: dict[int, _Window] = {}
        self._paused: dict[int, float] = {}
        self._flooded: dict[int, float] = {}
        self._bot_paused_until = 0.0

    def free_turns(self) -> int:
        """How many messages the bot may send now, in all of its chats together."""
        now = self._clock()
        return 0 if self._bot_paused_until > now else self._bot.free(now)

    def take_turn(self, chat: int) -> bool:
        """Whether the bot may send a message to this chat now. If so, it counts."""
        now = self._clock()
        window = self._window(chat)
        is_paused = max(self._paused.get(chat, now), self._bot_paused_until) > now
        if is_paused or self._bot.seconds_until_free(now) > 0 or window.seconds_until_free(now) > 0:
            return False
        self._bot.add(now)
        window.add(now)
        return True

    def pause(self, chat: int, seconds: float) -> None:
        self._paused[chat] = self._clock() + seconds

    def pause_after_flood(self, chat: int, seconds: float) -> None:
        """Telegram asks to wait, and does not say whether it means the chat or the whole bot. If it asks in two chats
        at once, it means the bot."""
        now = self._clock()
        self._flooded = {other: until for other, until in self._flooded.items() if until > now}
        if self._flooded.keys() - {chat}:
            self._bot_paused_until = max(self._bot_paused_until, now + seconds)
        self._flooded[chat] = now + seconds
        self.pause(chat, seconds)

    def waiting_chats(self) -> list[int]:
        """The chats that have no turn right now."""
        now = self._clock()
        self._paused = {chat: until for chat, until in self._paused.items() if until > now}
        full = [chat for chat, window in self._chats.items() if window.seconds_until_free(now) > 0]
        return list({*self._paused, *full})

    def _window(self, chat: int) -> _Window:
        if chat not in self._chats:
            if len(self._chats) >= CHATS_MAX:
                self._chats.pop(next(iter(self._chats)))
            # Groups and channels have negative ids.
            self._chats[chat] = _Window(GROUP if chat < 0 else CHAT)
        return self._chats[chat]
