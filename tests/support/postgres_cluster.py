"""A PostgreSQL of a test's own that archives its log, and the shell of the user that runs it."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.harness import query, wait_until
from tests.support.programs import is_root, require_program

SECONDS = 120
INSTALLED = Path("/usr/lib/postgresql")


class Cluster:
    """PostgreSQL in a folder. It listens on a socket in the same folder, and its programs find it there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._prefix = _as_postgres(folder)
        self._environment = {
            "PATH": f"{_programs()}:/usr/bin:/bin",
            "LC_ALL": "C",
            "PGHOST": str(folder),
            "PGUSER": "postgres",
            # Debian's programs keep the configuration of their clusters here.
            "PG_CLUSTER_CONF_ROOT": str(folder / "etc"),
        }

    def create(self) -> None:
        self.run(f"initdb --auth=trust --encoding=utf8 --username=postgres --no-sync --pgdata={self.data}")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\n")

    def start(self) -> None:
        self.run(f"pg_ctl start --wait --pgdata={self.data} --log={self.folder}/log")

    def stop(self, data: Path) -> None:
        self.run(f"pg_ctl stop --wait --mode=immediate --pgdata={data}")

    def run(self, script: str, variables: Mapping[str, str] | None = None) -> None:
        # A file, because the server would keep a pipe open.
        with (self.folder / "output").open("w") as output:
            done = subprocess.run(
                [*self._prefix, "bash", "-e", "-u", "-c", script],
                env={**self._environment, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                cwd="/",
            )
        said = (self.folder / "output").read_text()
        assert done.returncode == 0, f"{script}\nexited with {done.returncode}: {said}"

    def switch_log(self) -> str:
        """End the current file of the log, so that PostgreSQL archives it. It does not end a file without content."""
        query(self.url, "SELECT pg_create_restore_point('switch')")
        return str(query(self.url, "SELECT pg_walfile_name(pg_switch_wal())")[0][0])

    def archive_everything(self) -> None:
        """Wait until the archive has everything that was committed."""
        file = self.switch_log()

        def is_archived() -> bool:
            last = query(self.url, "SELECT last_archived_wal FROM pg_stat_archiver")[0][0]
            return last is not None and last >= file

        wait_until(is_archived, SECONDS)


class DebianCluster(Cluster):
    """A cluster as Debian creates it: its configuration is not in its data folder, and so not in its back-ups."""

    def create(self) -> None:
        self.run(
            f"mkdir {self.folder}/etc && pg_createcluster {self._name} --port=5432 --socketdir={self.folder}"
            f" --datadir={self.data} --logfile={self.folder}/log -- --auth=trust --encoding=utf8 --username=postgres"
        )
        configuration = self.folder / "etc" / self._name.replace(" ", "/") / "postgresql.conf"
        with configuration.open("a") as file:
            file.write("listen_addresses = ''\nexternal_pid_file = ''\n")

    def start(self) -> None:
        self.run(f"pg_ctlcluster {self._name} start")

    @property
    def _name(self) -> str:
        return f"{_programs().parent.name} holdfast"


def new_cluster(folder: Path) -> Cluster:
    """The kind of cluster that operators have on this machine."""
    return DebianCluster(folder) if shutil.which("pg_createcluster") else Cluster(folder)


def _programs() -> Path:
    """The newest PostgreSQL of the machine. The embedded one comes with a `pg_verifybackup` that crashes."""
    require_program("pg_basebackup", "postgresql")
    folders = [path.parent for path in INSTALLED.glob("*/bin/pg_verifybackup")]
    if not folders:
        pytest.skip(f"needs a PostgreSQL in {INSTALLED}")
    return max(folders, key=lambda folder: int(folder.parent.name))


def _as_postgres(folder: Path) -> list[str]:
    """PostgreSQL does not run as root."""
    if not is_root():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to run PostgreSQL as another user")
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
