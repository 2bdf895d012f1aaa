"""Programs that tests need and that a package manager installs."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

INSTALL_SECONDS = 600
LOCK = Path(tempfile.gettempdir()) / "holdfast-install.lock"
# Servers are in folders that an ordinary user may not search.
FOLDERS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def require_program(program: str, package: str) -> str:
    """The path of the program. Skip the test if it is missing and cannot be installed."""
    path = ensure_installed(program, package)
    if path is None:
        pytest.skip(f"needs {program}: install it with `apt-get install {package}`")
    return path


def ensure_installed(program: str, package: str) -> str | None:
    """The path of the program, installed if necessary. One process installs at a time, because the package manager
    refuses to run twice."""
    path = shutil.which(program, path=FOLDERS)
    if path is not None or not is_root() or shutil.which("apt-get") is None:
        return path
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return shutil.which(program, path=FOLDERS) or _install(program, package)


def _install(program: str, package: str) -> str | None:
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", package]):
        subprocess.run(
            command,
            capture_output=True,
            timeout=INSTALL_SECONDS,
            check=False,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    return shutil.which(program, path=FOLDERS)


def is_root() -> bool:
    return os.geteuid() == 0
