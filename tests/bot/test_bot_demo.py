"""`make bot-demo`: a shift is in the channel once the page is ready, and nothing is left after Ctrl-C."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.harness import free_port, wait_until
from tests.support.postgres_process import find_postmaster

PROJECT = Path(__file__).parent.parent.parent
# Only keeps the test from hanging.
PATIENCE_SECONDS = 60.0


def test_the_demo_publishes_a_shift_and_leaves_nothing_behind() -> None:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "scripts.bot_demo", "--port", str(port)], cwd=PROJECT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5, verify=False) as page:
            wait_until(lambda: shows_shift(page), PATIENCE_SECONDS, 0.2)
            assert "<title>" in page.get("/").text
        children = psutil.Process(process.pid).children(recursive=True)
        assert {"bot", "worker"} <= {argument for child in children for argument in child.cmdline()}
        folder = Path(children[0].environ()["HOLDFAST_DATA_DIR"])
        # PostgreSQL is a daemon, and no child of anybody.
        started = [*children, find_postmaster(folder)]
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(PATIENCE_SECONDS)
    assert status == 0
    assert [process for process in started if process.is_running()] == []
    assert not folder.exists()


def shows_shift(page: httpx.Client) -> bool:
    try:
        state: dict[str, Any] = page.get("/sim/state").json()
    except httpx.TransportError:
        return False
    posts = [chat["messages"] for chat in state["chats"] if chat["title"] == "Harbour shifts"]
    return any("3 of 3 places left" in message["html"] for messages in posts for message in messages)
