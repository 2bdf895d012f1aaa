"""A real browser for tests: the machine's own Chromium, driven by Playwright."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from playwright.sync_api import Browser, sync_playwright

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
INSTALL_SECONDS = 600
LOCK = Path(tempfile.gettempdir()) / "holdfast-install.lock"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skip the test if there is no browser and none can be installed."""
    path = _path()
    # Chromium's own sandbox does not work for root.
    flags = ["--no-sandbox", *FLAGS] if _is_root() else FLAGS
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
    for find in (shutil.which, ensure_installed):
        for browser in BROWSERS:
            if (path := find(browser)) is not None:
                return path
    pytest.skip(f"needs Chromium: install it with `apt-get install {BROWSERS[0]}`")


def ensure_installed(program: str) -> str | None:
    """The path of the program, installed if necessary. One process installs at a time, because the package manager
    refuses to run twice."""
    path = shutil.which(program)
    if path is not None or not _is_root() or shutil.which("apt-get") is None:
        return path
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return shutil.which(program) or _install(program)


def _install(program: str) -> str | None:
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", program]):
        subprocess.run(command, capture_output=True, timeout=INSTALL_SECONDS, check=False)
    return shutil.which(program)


def _is_root() -> bool:
    return os.geteuid() == 0
