"""`holdfast orgs`: the tenants of a database."""

import re
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from holdfast import sql
from holdfast.api import branding
from holdfast.api.requests import OrgChange
from holdfast.api.validation import invalid_body
from holdfast.core.refusals import RefusedError
from holdfast.runtime import credentials
from holdfast.runtime.cli_database import DataFolder, fail, read_settings, read_with_database, run_with_database
from holdfast.runtime.db import Database

orgs = typer.Typer(no_args_is_help=True, help="Manage orgs, the tenants of this database.")

# No customer token lives longer.
OVERLAP_HOURS: Final = 24
OVERLAP_HOURS_MAX: Final = 24

OrgArgument = Annotated[str, typer.Argument(help="Short name of the org in URLs and commands.")]


class _OrgRow(msgspec.Struct, frozen=True):
    id: bytes
    slug: str
    name: str


@orgs.command("create")
def create(
    slug: OrgArgument,
    name: Annotated[str | None, typer.Option(help="Name that buyers see. The slug, by default.")] = None,
    data: DataFolder = None,
) -> None:
    """Create an org and print its slug."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", slug):
        fail("A slug has 1 to 63 lower-case letters, digits and hyphens, and starts with a letter or a digit.")
    if run_with_database(data, lambda database: credentials.create_org(database, slug, name)) is None:
        fail(f"The org {slug} already exists.")
    typer.echo(slug)


@orgs.command("set")
def set_(
    slug: OrgArgument,
    name: Annotated[str | None, typer.Option(help="Name that buyers see.")] = None,
    colour: Annotated[str | None, typer.Option(help="Colour such as '#1f6feb'. '' restores the default.")] = None,
    logo: Annotated[str | None, typer.Option(help="PNG, JPEG or WebP file. '' removes the logo.")] = None,
    frame_origin: Annotated[
        list[str] | None,
        typer.Option(help="Site that may show your pages in a frame. Repeat it for several; '' allows none."),
    ] = None,
    max_unpaid_per_address: Annotated[
        str | None,
        typer.Option(help="Unpaid units of guests behind one address in all events. '' removes the limit."),
    ] = None,
    payment_instructions: Annotated[
        str | None,
        typer.Option(help="How to pay for a booking by receipt, unless the event has its own text. '' removes it."),
    ] = None,
    data: DataFolder = None,
) -> None:
    """Change how buyers see an org, and print the result. Options that you leave out keep their value."""

    async def save(database: Database) -> msgspec.Struct:
        org = await find_org(database, slug)
        async with database.org(org).transaction() as scope:
            await branding.change_org(scope, org, change)
            if logo_file is not None:
                await branding.set_logo(scope, org, logo_file)
            elif logo is not None:
                await branding.delete_logo(scope, org)
            return await branding.get_org(scope, org, read_settings().public_url)

    try:
        change, logo_file = (
            _read_change(name, colour, frame_origin, max_unpaid_per_address, payment_instructions),
            _read_logo(logo) if logo else None,
        )
        saved = run_with_database(data, save)
    except RefusedError as error:
        fail(str(error))
    typer.echo(msgspec.json.format(msgspec.json.encode(saved)))


@orgs.command("rotate-token-secret")
def rotate_token_secret(
    slug: OrgArgument,
    overlap_hours: Annotated[
        float,
        typer.Option(min=0, max=OVERLAP_HOURS_MAX, help="Hours for which old tokens stay valid. Use 0 after a leak."),
    ] = OVERLAP_HOURS,
    data: DataFolder = None,
) -> None:
    """Sign the customer tokens of an org with a new secret, at once.

    Tokens with the old signature stay valid during the overlap, unless they expire sooner.
    """

    async def rotate(database: Database) -> None:
        await credentials.rotate_token_secret(database, await find_org(database, slug), overlap_hours * 3600)

    run_with_database(data, rotate)


@orgs.command("list")
def list_(data: DataFolder = None) -> None:
    """List all orgs: the slug and the name."""

    async def read(database: Database) -> list[_OrgRow]:
        return await database.shared.rows(_OrgRow, sql.credentials.orgs)

    for org in read_with_database(data, read):
        typer.echo(f"{org.slug}\t{org.name}")


async def find_org(database: Database, slug: str) -> bytes:
    org = await database.shared.row(_OrgRow, sql.credentials.org_by_slug, slug)
    if org is None:
        fail(f"There is no org {slug} in this database. Create it: holdfast orgs create {slug}")
    return org.id


def _read_change(
    name: str | None,
    colour: str | None,
    origins: list[str] | None,
    max_unpaid_per_address: str | None,
    payment_instructions: str | None,
) -> OrgChange:
    """Validate the options with the rules of the API. An empty option removes what was set."""
    given: dict[str, object] = {}
    if name is not None:
        given["name"] = name
    if colour is not None:
        given["colour"] = colour or None
    if origins:
        given["frame_origins"] = [origin for origin in origins if origin]
    if max_unpaid_per_address is not None:
        given["max_unpaid_units_per_address"] = _read_number(max_unpaid_per_address)
    if payment_instructions is not None:
        given["payment_instructions"] = payment_instructions or None
    try:
        return msgspec.json.decode(msgspec.json.encode(given), type=OrgChange)
    except UnicodeEncodeError:
        fail("The options are not valid UTF-8.")
    except msgspec.ValidationError as error:
        raise invalid_body(error, OrgChange) from None


def _read_number(text: str) -> int | None:
    if text and not text.isdecimal():
        fail(f"{text} is not a whole number. Give a number such as 200.")
    return int(text) if text else None


def _read_logo(file: str) -> bytes:
    try:
        with Path(file).open("rb") as stream:
            return stream.read(branding.LOGO_BYTES_MAX + 1)
    except OSError as error:
        fail(f"Cannot read the logo {file}: {error.strerror}.")
