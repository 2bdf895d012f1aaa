"""Programs that tests need and that are not Python packages."""

import fcntl
import os
import shutil
import subprocess

import pytest

from tests.support.browser import INSTALL_SECONDS, LOCK


def require_program(program: str, package: str) -> str:
    """The path of the program. Root installs the package if it is missing; anybody else skips the test."""
    path = _find(program) or _install(program, package)
    if path is None:
        pytest.skip(f"needs {program}: install it with `apt-get install {package}`")
    return path


def _find(program: str) -> str | None:
    """Debian keeps servers where only root's path leads."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def _install(program: str, package: str) -> str | None:
    """One process installs at a time, because the package manager refuses to run twice."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path := _find(program)) is not None:
            return path
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", package]):
            subprocess.run(command, capture_output=True, timeout=INSTALL_SECONDS, check=False)
    return _find(program)
