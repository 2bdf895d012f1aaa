"""Commands and links of the deployment guide lead somewhere. `tests/deploy` runs the ones that restore a database."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from holdfast.runtime.cli import app
from holdfast.runtime.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "deployment.md").read_text()
COMMANDS = sorted(set(re.findall(r"(?:^|`|api1 |bin/)holdfast ([a-z][^`\n]*)", TEXT, re.MULTILINE)))


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("text", COMMANDS)
def test_every_command_exists(text: str) -> None:
    command: Any = typer.main.get_command(app)
    arguments = shlex.split(text)
    while hasattr(command, "commands") and arguments and arguments[0] in command.commands:
        command = command.commands[arguments.pop(0)]
    assert command.name == text.split()[0] or command.name in text.split()
    command.make_context(command.name, arguments)


def test_every_link_leads_somewhere() -> None:
    for file, anchor in re.findall(r"\]\(([\w.]*)(?:#([\w-]+))?\)", TEXT):
        text = (ROOT / "docs" / file).read_text() if file else TEXT
        anchors = [
            re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        ]
        assert not anchor or anchor in anchors, anchor


def test_every_file_exists() -> None:
    for path in re.findall(r"`((?:deploy/|Dockerfile|compose)[\w./-]*)`", TEXT):
        assert (ROOT / path).exists(), path


def test_the_page_adds_connections_up_as_the_processes_open_them() -> None:
    assert "`HOLDFAST_LANES` + 23, for each worker 24" in TEXT
    per_api = Settings().lanes + 23
    assert 4 * per_api + 24 + 13 == int(re.search(r"a worker and a bot need (\d+)", TEXT).group(1))  # type: ignore[union-attr]
