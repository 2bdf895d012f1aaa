"""`holdfast keys`: the secret keys of an org's staff and systems."""

from datetime import datetime
from typing import Annotated, Final

import typer
from msgspec import Struct

from holdfast import sql
from holdfast.core.refusals import RefusedError
from holdfast.runtime import ids
from holdfast.runtime.cli_database import DataFolder, fail, read_with_database, run_with_database
from holdfast.runtime.cli_orgs import find_org
from holdfast.runtime.credentials import Role, create_key
from holdfast.runtime.db import Database

keys = typer.Typer(no_args_is_help=True, help="Manage the secret keys of an org.")

# Customers have tokens.
KEY_ROLES: Final = tuple(role.value for role in Role if role is not Role.CUSTOMER)

OrgOption = Annotated[str, typer.Option(help="Slug of the org.")]


class _Key(Struct, frozen=True):
    prefix: str
    role: Role
    events: list[bytes] | None
    revoked_at: datetime | None

    @property
    def description(self) -> str:
        fields = [f"{self.prefix}…", self.role, "revoked" if self.revoked_at else "valid"]
        if self.events is not None:
            fields.append(" ".join(ids.format_event_id(event) for event in self.events))
        return "\t".join(fields)


@keys.command("create")
def create(
    org: OrgOption,
    role: Annotated[str, typer.Option(metavar="|".join(KEY_ROLES), help="What the key may do.")],
    event: Annotated[
        list[str] | None,
        typer.Option(help="Event whose tickets the door key may read and check in. Repeat for several; default: all."),
    ] = None,
    data: DataFolder = None,
) -> None:
    """Create a secret key and print it. Holdfast stores only its hash and cannot show it again."""
    if role == Role.CUSTOMER:
        fail("Customers use tokens, not keys. Create one with POST /v1/customer-tokens.")
    if role not in KEY_ROLES:
        fail(f"There is no role {role}. Choose one of {', '.join(KEY_ROLES)}.")
    if event and role != Role.DOOR:
        fail("Only a door key can be bound to events. Leave out --event, or choose --role door.")

    async def create_(database: Database) -> str:
        org_id = await find_org(database, org)
        events = [await _find_event(database, org, org_id, each) for each in dict.fromkeys(event or ())]
        try:
            return await create_key(database, org_id, Role(role), events or None)
        except RefusedError as error:
            fail(str(error))

    typer.echo(run_with_database(data, create_))


async def _find_event(database: Database, org: str, org_id: bytes, event: str) -> bytes:
    id_ = ids.parse_event_id(event)
    row = await database.event(id_).fetchrow(sql.reads.event_owner, id_) if id_ is not None else None
    if id_ is None or row is None or row["org_id"] != org_id:
        fail(f"The org {org} has no event {event}. List its events with GET /v1/events.")
    return id_


@keys.command("list")
def list_(org: OrgOption, data: DataFolder = None) -> None:
    """List the keys of an org: the first characters, the role, whether the key is valid, and the events that it is
    bound to."""

    async def read(database: Database) -> list[_Key]:
        org_id = await find_org(database, org)
        return await database.org(org_id).rows(_Key, sql.credentials.keys, org_id)

    for key in read_with_database(data, read):
        typer.echo(key.description)


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
