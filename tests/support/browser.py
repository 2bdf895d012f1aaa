"""A real browser for tests: the machine's own Chromium, driven by Playwright."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.programs import ensure_installed, is_root

P = ParamSpec("P")
T = TypeVar("T")

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The shell is Chromium without the parts of a desktop browser, and opens a page three times as fast.
BROWSERS = ("chromium-headless-shell", "chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skip the test if there is no browser and none can be installed."""
    path = _path()
    # Chromium's own sandbox does not work for root.
    flags = ["--no-sandbox", *FLAGS] if is_root() else FLAGS
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in another thread. While a browser is open, Playwright keeps an event loop running in the test's own
    thread, where `asyncio.run` (and with it `harness.query`) cannot start a second one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work, *args, **kwargs).result()


def _path() -> str:
    for browser in BROWSERS:
        if (path := shutil.which(browser)) is not None:
            return path
    for browser in BROWSERS:
        if (path := ensure_installed(browser, browser)) is not None:
            return path
    pytest.skip(f"needs Chromium: install it with `apt-get install {BROWSERS[0]}`")
