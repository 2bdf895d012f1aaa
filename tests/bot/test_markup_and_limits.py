"""Texts fit into a message, and messages into Telegram's limits."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bot.flood_limits import BOT, CHAT, GROUP, FloodLimits
from holdfast.bot.markup import bold, escape, fit_html
from tests.support.telegram.entities import parse_html, units

PARTS = st.lists(st.tuples(st.text(max_size=30), st.booleans()), max_size=8)


@given(PARTS, st.integers(min_value=1, max_value=60))
def test_a_text_is_cut_to_the_length_that_telegram_takes(parts: list[tuple[str, bool]], length_max: int) -> None:
    html_text = "".join(bold(escape(text)) if is_bold else escape(text) for text, is_bold in parts)
    visible = html.unescape(re.sub("</?b>", "", html_text))
    cut, _ = parse_html(fit_html(html_text, length_max))
    assert units(cut) <= length_max
    if units(visible) <= length_max:
        assert cut == visible
    else:
        assert cut.endswith("…")
        assert visible.startswith(cut[:-1].rstrip())


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("chat", "messages", "seconds"), [(7, CHAT.messages, CHAT.seconds), (-7, 19, 60.0)])
def test_a_chat_gets_no_more_than_its_share_in_any_period(chat: int, messages: int, seconds: float) -> None:
    clock = Clock()
    limits = FloodLimits(clock)
    sent: list[float] = []
    for _ in range(2_000):
        clock.now += 0.05
        if limits.take_turn(chat):
            sent.append(clock.now)
    assert len(sent) >= messages
    assert all(later - first >= seconds for first, later in zip(sent, sent[messages:], strict=False))
    assert GROUP.messages < 20


def test_all_chats_together_get_no_more_than_the_bot_may_send() -> None:
    clock = Clock()
    limits = FloodLimits(clock)
    assert sum(limits.take_turn(chat) for chat in range(1, 100)) == BOT.messages < 30
    assert limits.free_turns() == 0
    clock.now += 1.01
    assert limits.free_turns() == BOT.messages


def test_a_chat_that_has_to_wait_delays_no_other() -> None:
    clock = Clock()
    limits = FloodLimits(clock)
    limits.pause_after_flood(1, 5)
    assert not limits.take_turn(1)
    assert limits.take_turn(2)
    assert limits.waiting_chats() == [1]
    clock.now += 5.1
    assert limits.take_turn(1)


def test_the_whole_bot_waits_if_telegram_asks_in_two_chats() -> None:
    clock = Clock()
    limits = FloodLimits(clock)
    limits.pause_after_flood(1, 5)
    limits.pause_after_flood(2, 5)
    assert not limits.take_turn(3)
    assert limits.free_turns() == 0
    clock.now += 5.1
    assert limits.take_turn(3)
