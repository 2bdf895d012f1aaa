"""A real PgBouncer in front of the tests' PostgreSQL, with the configuration that Holdfast ships."""

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.harness import free_port, temporary_folder, wait_until
from tests.support.programs import is_root, require_program

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "pgbouncer" / "pgbouncer.ini"


@contextmanager
def running_pgbouncer(database_url: str, user: str, **changes: str) -> Iterator[str]:
    """The URL of the database through PgBouncer. `changes` replace settings of the configuration."""
    program = require_program("pgbouncer", "pgbouncer")
    port = free_port()
    with temporary_folder() as folder:
        folder.chmod(0o755)
        (folder / "userlist.txt").write_text(f'"{user}" ""\n')
        parts = urlsplit(database_url)
        name = parts.path.strip("/")
        host = parse_qs(parts.query)["host"][0]
        text = CONFIGURATION.read_text()
        text, found = re.subn(r"^holdfast = .*$", f"{name} = host={host} dbname={name}", text, flags=re.MULTILINE)
        assert found == 1
        local = {"listen_port": str(port), "auth_type": "trust", "auth_file": f"{folder}/userlist.txt", **changes}
        for setting, value in local.items():
            text, found = re.subn(rf"^{setting} = .*$", f"{setting} = {value}", text, flags=re.MULTILINE)
            assert found == 1, f"pgbouncer.ini no longer has {setting}"
        # Its default folder for sockets may not exist.
        text += "unix_socket_dir =\n"
        (folder / "pgbouncer.ini").write_text(text)
        # PgBouncer does not run as root, and only the user that runs PostgreSQL may enter the folder of its socket.
        command = [
            program,
            "--quiet",
            *([f"--user={Path(host).owner()}"] if is_root() else []),
            str(folder / "pgbouncer.ini"),
        ]
        process = subprocess.Popen(command)
        try:
            wait_until(lambda: _listens(process, port), 30)
            yield f"postgresql://{user}@127.0.0.1:{port}/{name}"
        finally:
            process.terminate()
            process.wait(30)


def _listens(process: "subprocess.Popen[bytes]", port: int) -> bool:
    assert process.poll() is None, "PgBouncer ended"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
