"""`holdfast keys`: the secret keys of an org's staff and systems."""

from datetime import datetime
from typing import Annotated

import typer
from msgspec import Struct

from holdfast import sql
from holdfast.runtime.cli_database import DataFolder, fail, run_with_database
from holdfast.runtime.cli_orgs import find_org
from holdfast.runtime.credentials import Role, create_key
from holdfast.runtime.db import Database

keys = typer.Typer(no_args_is_help=True, help="Manage the secret keys of an org.")

OrgOption = Annotated[str, typer.Option(help="Slug of the org.")]


class _Key(Struct, frozen=True):
    prefix: str
    role: Role
    revoked_at: datetime | None


@keys.command("create")
def create(
    org: OrgOption, role: Annotated[Role, typer.Option(help="What the key may do.")], data: DataFolder = None
) -> None:
    """Create a secret key and print it. Holdfast stores only its hash and cannot show it again."""
    if role is Role.CUSTOMER:
        fail("Customers use tokens, not keys. Create one with POST /v1/customer-tokens.")

    async def create_(database: Database) -> str:
        return await create_key(database, await find_org(database, org), role)

    typer.echo(run_with_database(data, create_))


@keys.command("list")
def list_(org: OrgOption, data: DataFolder = None) -> None:
    """List the keys of an org: the first characters, the role, and whether the key is valid."""

    async def read(database: Database) -> list[_Key]:
        org_id = await find_org(database, org)
        return await database.org(org_id).rows(_Key, sql.credentials.keys, org_id)

    for key in run_with_database(data, read):
        typer.echo(f"{key.prefix}…\t{key.role}\t{'revoked' if key.revoked_at else 'valid'}")


@keys.command("revoke")
def revoke(
    org: OrgOption,
    prefix: Annotated[str, typer.Option(help="First characters of the key, as `holdfast keys list` prints them.")],
    data: DataFolder = None,
) -> None:
    """Revoke a key. API processes refuse it within five seconds."""

    async def revoke_(database: Database) -> str:
        org_id = await find_org(database, org)
        return await database.org(org_id).execute(sql.credentials.revoke_key, org_id, prefix.rstrip("…"))

    if run_with_database(data, revoke_) != "UPDATE 1":
        fail(f"The org {org} has no valid key that starts with {prefix}. List its keys: holdfast keys list --org {org}")
