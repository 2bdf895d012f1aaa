"""Whether PostgreSQL has enough connections for all processes."""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.installation import Installation, ProcessCounts

# How many connections each process may open, as docs/settings.md says. An API process also has its lanes.
OF_API_PROCESS: Final = 15 + 8
# Four of them are for the event bus.
OF_WORKER: Final = 28
OF_BOT: Final = 13


class Connections(Struct, frozen=True):
    server_limit: int
    open: int
    database_limit: int
    role_limit: int

    @property
    def limit(self) -> int:
        return min(each for each in (self.server_limit, self.database_limit, self.role_limit) if each >= 0)


async def check_connections(installation: Installation) -> Results:
    database = await installation.database.require()
    found = await database.shared.row(Connections, sql.doctor.connections)
    assert found is not None
    processes, lanes = installation.processes, installation.settings.lanes
    needed, of_one = count_needed(processes, lanes), lanes + OF_API_PROCESS
    running = f"{processes.api} API processes with {lanes} lanes, {processes.workers} workers and {processes.bots} bots"
    if found.limit < needed:
        yield problem(
            f"PostgreSQL allows {found.limit} connections, but {running} may open {needed}.",
            f"Raise max_connections, and any limit of the role or the database, to {needed} or more, or run fewer "
            "processes.",
        )
    elif found.limit - found.open < of_one:
        yield warning(
            f"Only {found.limit - found.open} of {found.limit} connections are free; an API process may open {of_one}.",
            "Find out who uses them in pg_stat_activity, or raise max_connections.",
        )
    else:
        yield ok(f"{found.limit} connections are enough for {running}, which may open {needed}. {found.open} are open.")


def count_needed(processes: ProcessCounts, lanes: int) -> int:
    return processes.api * (lanes + OF_API_PROCESS) + processes.workers * OF_WORKER + processes.bots * OF_BOT
