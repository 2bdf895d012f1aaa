"""`holdfast doctor`: checks the settings, the servers and the machine."""

import asyncio
import os
from typing import Annotated

import msgspec
import typer

from holdfast.runtime.cli_database import DataFolder


def doctor(
    api_processes: Annotated[int, typer.Option(min=0, help="Number of API processes that you run.")] = 2,
    workers: Annotated[int, typer.Option(min=0, help="Number of workers that you run.")] = 1,
    bots: Annotated[int, typer.Option(min=0, help="Number of bot processes that you run.")] = 0,
    data: DataFolder = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Check the settings, the servers that they name and this machine, and say what to do about each problem.

    Run it before you go live, after you change something, and when something seems wrong. It changes nothing. The
    numbers of processes are those of your whole installation. Exits with 1 if there is a problem.
    """
    # Other commands do not need these modules, some of which take long to import.
    from rich.console import Console

    from holdfast.doctor.checks import CHECKS
    from holdfast.doctor.diagnosis import Diagnosis, diagnose
    from holdfast.doctor.installation import ProcessCounts
    from holdfast.doctor.printout import print_diagnosis

    environment = {**os.environ, **({"HOLDFAST_DATA_DIR": str(data)} if data is not None else {})}

    async def run() -> Diagnosis:
        """Prints before the event loop closes, which waits for a resolver that does not answer."""
        diagnosis = await diagnose(environment, ProcessCounts(api_processes, workers, bots), CHECKS)
        if json:
            typer.echo(msgspec.json.format(msgspec.json.encode(diagnosis)))
        else:
            print_diagnosis(diagnosis, Console(highlight=False))
        return diagnosis

    raise typer.Exit(0 if asyncio.run(run()).ok else 1)
