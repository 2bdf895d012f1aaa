"""The documented URL encrypts the connection to PostgreSQL, and refuses a server that is not ours."""

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import write_certificate
from tests.support.command_line import call_holdfast
from tests.support.harness import free_port, query, temporary_folder
from tests.support.postgres_cluster import Cluster
from tests.support.programs import is_root
from tests.support.shell_examples import read_example

ROOT = Path(__file__).parents[2]
SETTINGS = """
ssl = on
ssl_cert_file = '{folder}/fullchain.pem'
ssl_key_file = '{folder}/privkey.pem'
listen_addresses = '127.0.0.1'
port = {port}
"""


@pytest.fixture(scope="module")
def encrypted() -> Iterator[str]:
    """The URL of a PostgreSQL that accepts only encrypted connections, up to its parameters."""
    port = free_port()
    with temporary_folder() as folder:
        cluster = Cluster(folder)
        cluster.create()
        write_certificate(folder, "127.0.0.1")
        # PostgreSQL reads no key that belongs to another user.
        owner = folder.stat()
        for name in ("fullchain.pem", "privkey.pem"):
            os.chown(folder / name, owner.st_uid, owner.st_gid)
        with (cluster.data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(folder=folder, port=port))
        (cluster.data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")
        cluster.start()
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres?sslrootcert={folder}/fullchain.pem&sslmode="
        finally:
            cluster.stop(cluster.data)


def test_a_verified_connection_is_encrypted(encrypted: str) -> None:
    url = f"{encrypted}verify-full"
    assert call_holdfast(url, "migrate").returncode == 0
    assert query(url, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")[0][0]


def test_an_authority_that_the_user_of_holdfast_cannot_read_is_named(encrypted: str) -> None:
    with temporary_folder() as folder:
        hidden = folder / "settings" / "database-ca.pem"
        hidden.parent.mkdir()
        hidden.touch()
        if is_root():
            os.chown(hidden.parent, pwd.getpwnam("nobody").pw_uid, -1)
        hidden.parent.chmod(0o700 if is_root() else 0)
        url = f"{encrypted.partition('?')[0]}?sslmode=verify-full&sslrootcert={hidden}"
        try:
            for command in ("migrate", "doctor"):
                done = _run_without_privileges(url, command)
                assert f"Cannot read the file {hidden}" in done.stdout + done.stderr
                assert "Permission denied" in done.stdout + done.stderr
                assert done.returncode != 0
                assert "Traceback" not in done.stderr
        finally:
            hidden.parent.chmod(0o700)


@pytest.mark.skipif(not is_root(), reason="needs root")
def test_the_guide_installs_an_authority_that_services_can_read_and_settings_that_they_cannot() -> None:
    with temporary_folder() as folder:
        folder.chmod(0o755)
        (folder / "ca.pem").touch()
        lines = [line for line in read_example("deployment.md", "VERSION=").splitlines() if "/etc/holdfast" in line]
        script = "\n".join(lines).replace("/etc/holdfast", f"{folder}/etc").replace("deploy/", f"{ROOT}/deploy/")
        subprocess.run(["bash", "-euc", script], cwd=folder, check=True, capture_output=True, timeout=60)
        readable = {path.name: _can_nobody_read(path) for path in (folder / "etc").iterdir()}
    assert readable == {"database-ca.pem": True, "holdfast.env": False, "owner.env": False}


def _can_nobody_read(path: Path) -> bool:
    done = subprocess.run(["cat", str(path)], user="nobody", extra_groups=[], capture_output=True, timeout=60)
    return done.returncode == 0


def _run_without_privileges(url: str, command: str) -> "subprocess.CompletedProcess[str]":
    """Root reads every file, unless it gives these two privileges up."""
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if is_root() else []
    return subprocess.run(
        [*prefix, sys.executable, "-m", "holdfast", command],
        env={**os.environ, "HOLDFAST_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_connection_without_encryption_is_refused(encrypted: str) -> None:
    done = call_holdfast(f"{encrypted}disable", "migrate")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_server_with_another_certificate_is_refused(encrypted: str) -> None:
    with temporary_folder() as folder:
        write_certificate(folder, "127.0.0.1")
        address = encrypted.partition("?")[0]
        done = call_holdfast(f"{address}?sslmode=verify-full&sslrootcert={folder}/fullchain.pem", "migrate")
    assert done.returncode == 2
    assert "certificate verify failed" in done.stderr
    assert "Traceback" not in done.stderr
