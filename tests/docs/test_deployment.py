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
COMMANDS = sorted(set(re.findall(r"(?:(?:^|`|api1 |bin/)holdfast|holdfast-admin) ([a-z][^`\n]*)", TEXT, re.MULTILINE)))


def test_the_page_has_commands() -> None:
    assert {"migrate", "migrate --check", "doctor", "audit"} <= set(COMMANDS)


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


def test_the_pool_of_pgbouncer_fits_the_connections_that_postgresql_leaves() -> None:
    text = (ROOT / "deploy" / "pgbouncer" / "pgbouncer.ini").read_text()
    size = int(re.search(r"^default_pool_size = (\d+)$", text, re.MULTILINE).group(1))  # type: ignore[union-attr]
    assert f"of {size} connections fits `max_connections = 200`" in TEXT
    assert size <= 200 - 3


def test_the_measured_figures_are_those_of_the_other_pages() -> None:
    redis = (ROOT / "docs" / "redis.md").read_text()
    assert "| without Redis | 3,159 | 16 ms | 40 ms |" in redis
    assert "| with Redis | 3,134 | 20 ms | 69 ms |" in redis
    assert "3,100 requests a second, 95% within 40 ms ([69 ms with Redis]" in TEXT
    assert (
        "within 0.3 s. In six more runs, while other work kept the cores busy, this took 0.4 to 2 s"
        in (ROOT / "docs" / "live.md").read_text()
    )
    assert "within 0.3 s at 200 holds a second on an idle machine, and [0.4 to 2 s]" in TEXT


def test_the_page_adds_connections_up_as_the_processes_open_them() -> None:
    assert "`HOLDFAST_LANES` + 23, for each worker 24" in TEXT
    per_api = Settings().lanes + 23
    assert 4 * per_api + 24 + 13 == int(re.search(r"a worker and a bot need (\d+)", TEXT).group(1))  # type: ignore[union-attr]
