"""`holdfast migrate`."""

from typing import Annotated

import typer

from holdfast.runtime.cli_database import DataFolder, open_database, read_schema_status, require_database


def migrate(
    data: DataFolder = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Only say what is missing. Exits with 1 if the old version has to stop first."),
    ] = False,
) -> None:
    """Migrate the database to the schema of this version."""
    if check:
        _check(data)
    open_database(data)
    typer.echo("The schema is up to date.", err=True)


def _check(data: DataFolder) -> None:
    require_database(data)
    status = read_schema_status(data)
    if not status.missing:
        typer.echo("The schema is up to date.")
        raise typer.Exit
    typer.echo(f"The database has schema version {status.version}. This version of Holdfast adds:")
    for step in status.missing:
        typer.echo(f"  step {step.number}: {'rolling' if step.is_rolling else 'not rolling'}")
    if not status.version:
        typer.echo("The database is empty. Run `holdfast migrate`, then start Holdfast.")
    elif status.can_roll:
        typer.echo("You can upgrade without downtime. Run `holdfast migrate`, then restart one process after another.")
    else:
        typer.echo("Stop all processes of the old version, run `holdfast migrate`, then start those of the new one.")
    raise typer.Exit(0 if status.can_roll else 1)
