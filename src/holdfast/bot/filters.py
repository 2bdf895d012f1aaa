"""Which handler an update is for."""

from collections.abc import Callable

from aiogram.types import TelegramObject

from holdfast.bot.turn import Turn


async def is_staff(_: TelegramObject, turn: Turn) -> bool:
    return turn.is_staff


async def is_private(_: TelegramObject, turn: Turn) -> bool:
    """Private chats have the id of the person."""
    return turn.chat_id == turn.person.person_id


def at_step(prefix: str) -> Callable[..., object]:
    """In a dialogue that waits for this step, or for one that starts with `prefix` and a dot."""

    async def check(_: TelegramObject, turn: Turn) -> bool:
        step = turn.dialogue.step if turn.dialogue is not None else ""
        return step == prefix or step.startswith(f"{prefix}.")

    return check
