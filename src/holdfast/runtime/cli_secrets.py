"""`holdfast secrets`: the secrets that all processes share."""

from typing import Annotated, Final

import typer

from holdfast.runtime.cli_database import DataFolder, run_with_database
from holdfast.runtime.shared_secrets import SIGNS_AFTER_SECONDS, SecretName, rotate_secret

secrets = typer.Typer(no_args_is_help=True, help="Replace secrets that all processes share.")

# No session lasts longer without a visit, so nobody loses one.
OVERLAP_HOURS_MAX: Final = 400 * 24


@secrets.command("rotate")
def rotate(
    name: Annotated[
        SecretName,
        typer.Argument(help="`sessions` signs the cookies of the pages; `client-addresses` hashes addresses."),
    ],
    overlap_hours: Annotated[
        float,
        typer.Option(
            min=0, max=OVERLAP_HOURS_MAX, help="Hours for which the old secret stays valid. Use 0 after a leak."
        ),
    ] = OVERLAP_HOURS_MAX,
    data: DataFolder = None,
) -> None:
    """Create a new secret. Running processes use it after ten seconds.

    Sessions with the old signature stay valid during the overlap, and get a new signature at the next visit. With a
    new secret for client addresses, the limits by address count from zero.
    """
    until = run_with_database(data, lambda database: rotate_secret(database, name, overlap_hours * 3600))
    end = until.strftime("%Y-%m-%d %H:%M:%S %Z")
    typer.echo(
        f"Holdfast uses the new secret in {SIGNS_AFTER_SECONDS:g} seconds. The old one stays valid until {end}.",
        err=True,
    )
