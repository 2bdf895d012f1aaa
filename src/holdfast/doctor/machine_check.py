"""The disk and the limits of this machine."""

import asyncio
import resource
import shutil
from pathlib import Path
from typing import Final

from holdfast.doctor.check import CheckResult, Results, ok, problem, warning
from holdfast.doctor.installation import Installation

GIB: Final = 1024**3
SPACE_WARNING_BYTES: Final = 2 * GIB
SPACE_PROBLEM_BYTES: Final = GIB // 5
# Database connections, log, listening sockets, and requests that are not live feeds.
OTHER_FILES: Final = 1_000


async def check_machine(installation: Installation) -> Results:
    folder = installation.settings.data_dir
    free = (await asyncio.to_thread(shutil.disk_usage, find_existing(folder))).free
    yield judge_space(free, folder)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judge_open_files(hard_limit, installation.settings.live_sockets + OTHER_FILES)


def judge_space(free: int, folder: Path) -> CheckResult:
    text = f"{free / GIB:.1f} GiB are free for the data folder {folder}."
    remedy = "Delete what you no longer need, enlarge the disk, or choose another folder with HOLDFAST_DATA_DIR."
    if free < SPACE_PROBLEM_BYTES:
        return problem(text, remedy)
    if free < SPACE_WARNING_BYTES:
        return warning(text, remedy)
    return ok(text)


def judge_open_files(limit: int, needed: int) -> CheckResult:
    """Of the hard limit, to which `holdfast serve` raises the soft one."""
    if limit != resource.RLIM_INFINITY and limit < needed:
        return warning(
            f"A process may open {limit:,} files, but an API process may need {needed:,} with all its live feeds.",
            "Raise the limit (LimitNOFILE in systemd, nofile in Docker), or lower HOLDFAST_LIVE_SOCKETS.",
        )
    return ok(f"A process may open enough files for {needed:,} connections.")


def find_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    absolute = folder.absolute()
    return next(each for each in (absolute, *absolute.parents) if each.exists())
