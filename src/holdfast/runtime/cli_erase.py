"""`holdfast erase`."""

from typing import Annotated

import msgspec
import typer

from holdfast import sql
from holdfast.engine.erase import erase_person
from holdfast.runtime.cli_database import DataFolder, fail, read_settings, require_database, run_with_database
from holdfast.runtime.db import Database
from holdfast.runtime.storage import StorageAddressError, StorageError, open_storage


def erase(
    org: Annotated[str, typer.Option(help="Slug of the org.")],
    user: Annotated[str, typer.Option(help="Id of the user, as the bookings have it.")],
    data: DataFolder = None,
) -> None:
    """Erase a person: from bookings, messages, receipts with their files, payments and Telegram.

    Sales can go on. Prints how much it has erased of each kind, as JSON. The journals stay whole, because they name
    nobody.
    """
    require_database(data)

    async def run(database: Database) -> dict[str, int] | None:
        settings = read_settings()
        storage = open_storage(settings.receipts_url, settings.data_dir / "receipts")
        found = await database.shared.fetchrow(sql.credentials.org_by_slug, org)
        return None if found is None else await erase_person(database, storage, found["id"], user)

    try:
        counts = run_with_database(data, run)
    except (StorageError, StorageAddressError) as error:
        fail(f"Cannot delete the receipts: {error} Run the command again.")
    if counts is None:
        fail(f"There is no org {org}.")
    if not any(counts.values()):
        typer.echo(
            f"Nothing in {org} names the user {user}. Guests have long ids, such as guest-1f0c…. "
            "docs/audit.md says how to find them by email address.",
            err=True,
        )
    typer.echo(msgspec.json.format(msgspec.json.encode(counts)))
