"""Reads single keys from a terminal while something else draws on it."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

QUIT_KEYS: Final = frozenset(b"qQ")


@contextmanager
def quit_key(on_quit: Callable[[], object]) -> Iterator[None]:
    """Call this function when somebody presses q. Afterwards the terminal is as it was. Does nothing without one."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def read_key() -> None:
        pressed = os.read(descriptor, 100)
        if not pressed or QUIT_KEYS & set(pressed):
            on_quit()

    # Keys arrive at once and are not shown. Ctrl-C still interrupts.
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read_key)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
