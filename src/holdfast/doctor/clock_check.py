"""How far the clock of this machine is from the database's."""

from datetime import UTC, datetime
from typing import Final

from holdfast import sql
from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime.db import Database

SAMPLES: Final = 5
WARNING_SECONDS: Final = 1.0
# Tokens and signatures of webhooks allow for some minutes at most.
PROBLEM_SECONDS: Final = 30.0

_REMEDY: Final = "Synchronise both machines with NTP: timedatectl set-ntp true."


async def check_clock(installation: Installation) -> Results:
    database = await installation.database.require_schema()
    ahead, uncertainty = min([await _compare(database) for _ in range(SAMPLES)], key=lambda comparison: comparison[1])
    # What the statement itself took cannot be told from a difference.
    certain = max(0.0, abs(ahead) - uncertainty)
    text = f"The database's clock is {abs(ahead):.2f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    if certain > PROBLEM_SECONDS:
        yield problem(f"{text}. Tokens and signed webhooks may seem expired, or not valid yet.", _REMEDY)
    elif certain > WARNING_SECONDS:
        yield warning(f"{text}. Countdowns and log times will look wrong.", _REMEDY)
    else:
        yield ok(
            f"The clocks of the database and of this machine agree within {max(certain, 0.01) + uncertainty:.2f} s."
        )


async def _compare(database: Database) -> tuple[float, float]:
    """How many seconds the database is ahead, and how uncertain that is."""
    before = datetime.now(UTC)
    at: datetime = await database.shared.fetchval(sql.doctor.clock)
    after = datetime.now(UTC)
    half = (after - before) / 2
    return (at - (before + half)).total_seconds(), half.total_seconds()
