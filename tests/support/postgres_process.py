"""Find and stop the embedded PostgreSQL of a data folder."""

import signal
from pathlib import Path

import psutil


def find_postmaster(folder: Path) -> psutil.Process:
    """The embedded PostgreSQL of a data folder, by the pid file it left there. It may have ended."""
    return psutil.Process(int((folder / "postgres" / "postmaster.pid").read_text().split()[0]))


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def stop_postgres(folder: Path) -> None:
    """Stop the embedded PostgreSQL of a data folder if it runs, even if others use it."""
    try:
        postmaster = find_postmaster(folder)
    except (FileNotFoundError, psutil.NoSuchProcess):
        return
    if is_running(postmaster) and postmaster.name() == "postgres":
        postmaster.send_signal(signal.SIGINT)
        postmaster.wait(20)
