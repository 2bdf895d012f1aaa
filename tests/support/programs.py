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
    """The lists of packages may be missing or old. To update them takes longer than most packages."""
    install = ["apt-get", "install", "-y", "--no-install-recommends", package]
    if not _succeeds(install) and _succeeds(["apt-get", "update"]):
        _succeeds(install)
    return shutil.which(program, path=FOLDERS)


def _succeeds(command: list[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, capture_output=True, timeout=INSTALL_SECONDS, env=environment).returncode == 0


def is_root() -> bool:
    return os.geteuid() == 0
