"""`holdfast secrets`: the secrets that all processes share."""

from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.runtime.cli_database import DataFolder, fail, run_with_database
from holdfast.runtime.db import Database
from holdfast.runtime.shared_secrets import SIGNS_AFTER_SECONDS, SecretName, delete_old_values, rotate_secret

secrets = typer.Typer(no_args_is_help=True, help="Replace secrets that all processes share.")

# No session lasts longer without a visit, so nobody loses one.
OVERLAP_HOURS_MAX: Final = 400 * 24


@secrets.command("rotate")
def rotate(
    name: Annotated[
        SecretName,
        typer.Argument(
            help="`sessions` signs the cookies of the pages; `client-addresses` hashes addresses; `web-push` "
            "signs push messages."
        ),
    ],
    overlap_hours: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=OVERLAP_HOURS_MAX,
            show_default="400 days",
            help="Hours for which the old secret stays valid. Use 0 after a leak.",
        ),
    ] = None,
    data: DataFolder = None,
) -> None:
    """Create a new secret. Running processes use it after ten seconds.

    Sessions with the old signature stay valid during the overlap, and get a new signature at the next visit. Browsers
    that subscribed to push messages before still get them during the overlap.

    Client addresses have no overlap: the command waits until the new secret is in use, and deletes the old one. Nobody
    can then link the old hashes to addresses, and the limits by address count from zero.
    """
    if name is SecretName.CLIENT_ADDRESSES:
        if overlap_hours:
            fail("The secret for client addresses has no overlap. Leave out --overlap-hours.")
        _replace_client_address_secret(data)
    else:
        _rotate_with_overlap(data, name, OVERLAP_HOURS_MAX if overlap_hours is None else overlap_hours)


def _rotate_with_overlap(data: Path | None, name: SecretName, overlap_hours: float) -> None:
    until = run_with_database(data, lambda database: rotate_secret(database, name, overlap_hours * 3600))
    end = until.strftime("%Y-%m-%d %H:%M:%S %Z")
    typer.echo(
        f"Holdfast uses the new secret in {SIGNS_AFTER_SECONDS:g} seconds. The old one stays valid until {end}.",
        err=True,
    )


def _replace_client_address_secret(data: Path | None) -> None:
    async def replace(database: Database) -> None:
        await rotate_secret(database, SecretName.CLIENT_ADDRESSES, overlap_seconds=0)
        typer.echo(
            f"Holdfast uses the new secret in {SIGNS_AFTER_SECONDS:g} seconds. Wait until it has deleted the old one.",
            err=True,
        )
        await delete_old_values(database, SecretName.CLIENT_ADDRESSES)
        typer.echo("Holdfast has deleted the old secret. The limits by address count from zero.", err=True)

    run_with_database(data, replace)
