"""The documentation is true: the README session works, and every setting, refusal and command is described."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.api.call import Operation
from holdfast.api.operations import OPERATIONS
from holdfast.core.notification_rules import EMAIL, PUSH, SMS, WEBHOOK
from holdfast.core.policy import PRESETS, Policy
from holdfast.core.refusals import Refusal
from holdfast.demo.data import SHOWINGS
from holdfast.runtime.cli import app
from holdfast.runtime.cli_bot import bot
from holdfast.runtime.cli_keys import keys
from holdfast.runtime.cli_orgs import orgs
from holdfast.runtime.cli_secrets import secrets
from holdfast.runtime.settings import Settings
from holdfast.web.api_docs import render_api_docs
from tests.support.harness import Server, query, running_server

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def readme_session() -> str:
    """The shell session of the README without the two make commands."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "make run" in blocks[0]
    assert "make test" in blocks[0]
    return "\n".join(blocks[1:])


def test_the_session_in_the_readme_works(database: str) -> None:
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": database}
    subprocess.run([BIN / "holdfast", "demo"], env=environment, check=True, capture_output=True)
    with running_server(database, worker=True) as server:
        script = readme_session().replace("http://127.0.0.1:8000", server.url).replace(".venv/bin", str(BIN))
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"status": "held"' in done.stdout
    assert '"code": "seat_taken"' in done.stdout
    assert '"status": "confirmed"' in done.stdout
    assert '"ok": true' in done.stdout
    assert '"status": "active"' in done.stdout
    assert "confirmed fulfilled" in done.stdout
    assert '"result": "admitted"' in done.stdout
    assert '"code": "already_checked_in"' in done.stdout
    rows = query(database, "SELECT user_id, status FROM booking ORDER BY id")
    assert [tuple(row) for row in rows] == [("ada", "held"), ("bob", "confirmed"), ("eve", "confirmed")]


def test_demo_data_has_an_event_for_each_preset_and_a_hall_of_2000_seats(database: str) -> None:
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": database}
    for _ in range(2):
        subprocess.run([BIN / "holdfast", "demo"], env=environment, check=True, capture_output=True)
    rows = query(
        database,
        "SELECT preset, (SELECT count(*) FROM seat WHERE event_id = event.id) FROM event WHERE series_id IS NULL",
    )
    seats = dict(rows)
    assert set(seats) == {"arena", "experience", "registration", "shift", "show"}
    assert len(rows) == 5
    assert seats["show"] == 2000
    assert query(database, "SELECT count(*) FROM event WHERE series_id IS NOT NULL")[0][0] == SHOWINGS


def test_no_page_and_no_message_installs_the_stranger_of_the_same_name_from_pypi() -> None:
    """`pip install` with a name asks PyPI, where `holdfast` is a different project. With a path, it does not."""
    folders = [ROOT / name for name in ("docs", "src", "deploy", "bench", "scripts")]
    shown = [*ROOT.glob("*.md"), ROOT / "Dockerfile", *(path for folder in folders for path in folder.rglob("*"))]
    by_name = re.compile(r"pip3? install\s+(?:-\S+\s+)*[\"']?holdfast\b")
    texts = {path: path.read_text(errors="replace") for path in shown if path.is_file() and path.suffix != ".pyc"}
    assert [str(path) for path, text in texts.items() if by_name.search(text)] == []
    assert "is a different project" in texts[ROOT / "README.md"]


# Settings whose default depends on something else.
DEFAULTS_IN_WORDS = {
    "public_url": "where `serve` listens",
    "stripe_api": "Stripe's own",
    "push_services": "the services of Chrome, Edge, Firefox and Safari",
}


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_every_setting_is_described_with_its_default(name: str) -> None:
    default = getattr(Settings(), name)
    shown = "\u2013" if default is None else f"`{str(default).lower()}`"
    row = f"| `HOLDFAST_{name.upper()}` | {DEFAULTS_IN_WORDS.get(name, shown)} |"
    assert row in (ROOT / "docs" / "settings.md").read_text()


@pytest.mark.parametrize("channel", [EMAIL, SMS, PUSH, WEBHOOK])
def test_the_page_about_traces_names_the_span_of_every_channel(channel: str) -> None:
    assert f"`deliver {channel}`" in (ROOT / "docs" / "tracing.md").read_text()


@pytest.fixture(scope="module")
def api_docs() -> str:
    return render_api_docs(OPERATIONS).decode()


@pytest.mark.parametrize("refusal", Refusal, ids=lambda refusal: refusal.code)
def test_the_page_that_a_refusal_links_to_describes_it(refusal: Refusal, api_docs: str) -> None:
    assert f'id="{refusal.code}"' in api_docs


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_is_described(operation: Operation, api_docs: str) -> None:
    assert f'id="{operation.name}"' in api_docs


@pytest.mark.parametrize("group", [app, bot, orgs, keys, secrets])
def test_every_command_has_a_description(group: typer.Typer) -> None:
    for command in group.registered_commands:
        assert command.callback is not None
        assert command.callback.__doc__


def test_the_settings_page_shows_every_policy_of_every_preset() -> None:
    def shown(value: Any) -> str:
        return (
            {None: "\u2013", True: "yes", False: "no"}.get(value, str(value)) if type(value) is not int else str(value)
        )

    text = (ROOT / "docs" / "settings.md").read_text()
    for name in Policy.__struct_fields__:
        values = [shown(getattr(policy, name)) for policy in (Policy(), *PRESETS.values())]
        assert f"| `{name}` | {' | '.join(values)} |" in text


def test_the_start_page_is_served_as_html(server: Server) -> None:
    with server.client() as client:
        page = client.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
