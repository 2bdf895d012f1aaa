"""Run the `holdfast` command line: in this process, which takes milliseconds, or as a user does."""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog
from typer.testing import CliRunner

from holdfast.runtime import cli, cli_bot
from tests.support.harness import free_port

INSTALLED_SCRIPT = Path(sys.executable).parent / "holdfast"


def with_free_port(command: str) -> list[str]:
    """The command, and for `serve` a port that nobody else uses."""
    return [command, "--port", str(free_port())] if command == "serve" else [command]


def run_holdfast(*arguments: str, database_url: str = "") -> "subprocess.CompletedProcess[str]":
    """Without a database URL the command uses the embedded PostgreSQL of its `--data` folder."""
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_DATABASE_URL"}
    if database_url:
        environment["HOLDFAST_DATABASE_URL"] = database_url
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], env=environment, capture_output=True, text=True, timeout=60
    )


def run_installed_holdfast(
    database_url: str, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the script that the package installs, as a user does."""
    return subprocess.run(
        [INSTALLED_SCRIPT, *arguments],
        env={**os.environ, "HOLDFAST_DATABASE_URL": database_url, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def call_holdfast(database_url: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a short command in this process, and leave the log of the tests as it is."""
    configuration = structlog.get_config()
    try:
        with patch.object(cli, "configure_logs"), patch.object(cli_bot, "configure_logs"):
            done = CliRunner().invoke(cli.app, arguments, env={"HOLDFAST_DATABASE_URL": database_url, **environment})
    finally:
        structlog.configure(**configuration)
    is_crash = done.exc_info is not None and not isinstance(done.exception, SystemExit | None)
    traceback_text = "".join(traceback.format_exception(done.exception)) if is_crash else ""
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr + traceback_text)


def audit_findings(database_url: str, *events: str) -> list[dict[str, Any]]:
    """What the auditor finds in these events. Other tests on the same server may have planted something in theirs."""
    return [found for found in run_audit(database_url=database_url)["findings"] if found["event"] in events]


def run_audit(*arguments: str, database_url: str = "") -> dict[str, Any]:
    """Run `holdfast audit`, check that its exit code agrees with its report, and return the report."""
    done = call_holdfast(database_url, "audit") if database_url else run_holdfast("audit", *arguments)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), done.stderr
    return report
