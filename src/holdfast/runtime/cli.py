"""The command line."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import msgspec
import typer
import uvloop
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from holdfast import __version__, sql
from holdfast.api.branding import LOGO_MAX
from holdfast.api.requests import OrgChange
from holdfast.core.refusals import RefusedError
from holdfast.demo.data import fill_demo
from holdfast.engine.auditor import audit_all
from holdfast.runtime import db, embedded, ids
from holdfast.runtime.credentials import Role, create_key, create_org
from holdfast.runtime.logs import configure_logs
from holdfast.runtime.server import is_free
from holdfast.runtime.server import serve as serve_forever
from holdfast.runtime.settings import SettingError, Settings

app = typer.Typer(no_args_is_help=True, add_completion=False)
orgs = typer.Typer(no_args_is_help=True, help="Tenants.")
keys = typer.Typer(no_args_is_help=True, help="Secret keys of an org's staff.")
app.add_typer(orgs, name="orgs")
app.add_typer(keys, name="keys")

T = TypeVar("T")
Data = Annotated[Path | None, typer.Option(help="Folder of the embedded PostgreSQL (HOLDFAST_DATA_DIR).")]
Org = Annotated[str, typer.Option(help="The org's slug.")]


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Tell it.")] = False,
) -> None:
    """Sell scarce things without ever selling one twice."""


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="API processes.")] = 2,
    data: Data = None,
    worker: Annotated[bool, typer.Option(help="Also run a background worker.")] = True,
) -> None:
    """Run the API, a background worker and, without HOLDFAST_DATABASE_URL, an embedded PostgreSQL."""
    if not is_free(host, port):
        _fail(f"Another program listens on {host}:{port} already. Stop it, or choose another --port.")
    _database(data)
    _check_parts()
    os.environ.setdefault("HOLDFAST_PUBLIC_URL", f"http://{host}:{port}")
    typer.echo(f"Holdfast serves http://{host}:{port}, with docs at http://{host}:{port}/docs", err=True)
    serve_forever(host, port, workers, with_worker=worker)


@app.command()
def worker(data: Data = None, child: Annotated[bool, typer.Option(hidden=True)] = False) -> None:
    """Run a background worker: what has to end, be paid back, be told and be counted. Any number may run."""
    # What only a worker needs takes as long to import as all the rest.
    from holdfast.worker.runner import run_worker

    configure_logs()
    _database(data)
    _check_parts()
    uvloop.run(run_worker(Settings.from_environment(), child=child))


@app.command()
def migrate(data: Data = None) -> None:
    """Bring the database's schema up to date."""
    _database(data)
    typer.echo("The schema is up to date.", err=True)


@app.command()
def demo(data: Data = None) -> None:
    """Fill the org `demo` with one event per preset. Events that are there already are left as they are."""
    for line in _with_connection(data, fill_demo):
        typer.echo(line)


@app.command()
def audit(data: Data = None) -> None:
    """Recount everything. Prints JSON; exits with 1 if anything is off."""
    events, findings = _with_connection(data, audit_all)
    typer.echo(msgspec.json.format(msgspec.json.encode({"ok": not findings, "events": events, "findings": findings})))
    raise typer.Exit(1 if findings else 0)


@app.command()
def stampede(
    event: Annotated[str, typer.Option(help="The event to rush, such as one that `holdfast demo` lists.")],
    buyers: Annotated[int, typer.Option(min=1, max=100_000, help="How many come.")] = 5000,
    seconds: Annotated[float, typer.Option(min=0, help="In how many seconds they come.")] = 10,
    processes: Annotated[int, typer.Option(min=1, max=64, help="From how many processes.")] = 2,
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    data: Data = None,
    json: Annotated[bool, typer.Option("--json", help="Tell in lines of JSON.")] = False,
    row: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Let simulated buyers rush an event over HTTP, then recount. Exits with 1 if anything is off."""
    from holdfast.demo.stampede.display import Display
    from holdfast.demo.stampede.record import StampedeError
    from holdfast.demo.stampede.run import Plan, Show, carry_out

    named = ids.parse_event_id(event)
    if named is None:
        _fail(f"{event} is not the id of an event, which is ev_ and 32 digits.")
    begun = bytes.fromhex(row) if row else None
    plan = Plan(event=named, buyers=buyers, seconds=seconds, processes=processes, url=url, row=begun)

    def rush(show: Show) -> bool:
        report = _with_connection(data, lambda connection: carry_out(connection, plan, show))
        return report.verdict is not None and report.verdict.ok

    try:
        if json:
            is_fine = rush(lambda report: typer.echo(msgspec.json.encode(report).decode()))
        else:
            with Display() as display:
                is_fine = rush(display.show)
    except StampedeError as error:
        _fail(str(error))
    raise typer.Exit(0 if is_fine else 1)


@orgs.command("create")
def orgs_create(slug: str, name: str | None = None, data: Data = None) -> None:
    """Make an org."""

    async def create(connection: db.Connection) -> bytes | None:
        return await create_org(connection, slug, name)

    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", slug):
        _fail("A slug has 1 to 63 lower-case letters, digits and hyphens, and begins with a letter or digit.")
    if _with_connection(data, create) is None:
        _fail(f"There is an org {slug} already.")
    typer.echo(slug)


@orgs.command("set")
def orgs_set(
    slug: str,
    name: Annotated[str | None, typer.Option(help="What buyers read.")] = None,
    colour: Annotated[str | None, typer.Option(help="Such as '#1f6feb'. An empty one stands for ours.")] = None,
    logo: Annotated[str | None, typer.Option(help="A PNG, JPEG or WebP file. An empty name takes it away.")] = None,
    frame_origin: Annotated[
        list[str] | None,
        typer.Option(help="A site that may show our pages in a frame; repeat it for all of them. An empty one: none."),
    ] = None,
    data: Data = None,
) -> None:
    """Set how an org shows itself to buyers, and print that. What is not named stays as it is."""
    from holdfast.api.org_handlers import drop_logo, read_org, save_logo, save_org

    async def save(connection: db.Connection) -> msgspec.Struct:
        org = await _org(connection, slug)
        async with connection.transaction():
            await save_org(connection, org, change)
            if file is not None:
                await save_logo(connection, org, file)
            elif logo is not None:
                await drop_logo(connection, org)
        return await read_org(connection, org, Settings.from_environment().public_url)

    try:
        change, file = _org_change(name, colour, frame_origin), _read_logo(logo) if logo else None
        shown = _with_connection(data, save)
    except (RefusedError, msgspec.ValidationError) as error:
        _fail(str(error))
    typer.echo(msgspec.json.format(msgspec.json.encode(shown)))


@orgs.command("list")
def orgs_list(data: Data = None) -> None:
    """List the orgs."""

    async def read(connection: db.Connection) -> list[str]:
        return [f"{row['slug']}\t{row['name']}" for row in await connection.fetch(sql.credentials.orgs)]

    for line in _with_connection(data, read):
        typer.echo(line)


@keys.command("create")
def keys_create(org: Org, role: Annotated[Role, typer.Option()], data: Data = None) -> None:
    """Make a secret key and print it. It is shown this once."""
    if role is Role.CUSTOMER:
        _fail("Customers have tokens, not keys: POST /v1/customer-tokens.")

    async def create(connection: db.Connection) -> str:
        return await create_key(connection, await _org(connection, org), role)

    typer.echo(_with_connection(data, create))


@keys.command("list")
def keys_list(org: Org, data: Data = None) -> None:
    """List an org's keys by their first characters."""

    async def read(connection: db.Connection) -> list[str]:
        rows = await connection.fetch(sql.credentials.keys, await _org(connection, org))
        return [f"{r['prefix']}…\t{r['role']}\t{'revoked' if r['revoked_at'] else 'valid'}" for r in rows]

    for line in _with_connection(data, read):
        typer.echo(line)


@keys.command("revoke")
def keys_revoke(
    org: Org, prefix: Annotated[str, typer.Option(help="As `keys list` shows it.")], data: Data = None
) -> None:
    """Revoke a key. API processes refuse it within five seconds."""

    async def revoke(connection: db.Connection) -> str:
        done: str = await connection.execute(
            sql.credentials.revoke_key, await _org(connection, org), prefix.rstrip("…")
        )
        return done

    if _with_connection(data, revoke) != "UPDATE 1":
        _fail(f"The org {org} has no valid key {prefix}.")


def _org_change(name: str | None, colour: str | None, origins: list[str] | None) -> OrgChange:
    """What HTTP would take, and nothing else. An empty text takes back what was set."""
    given: dict[str, object] = {}
    if name is not None:
        given["name"] = name
    if colour is not None:
        given["colour"] = colour or None
    if origins:
        given["frame_origins"] = [origin for origin in origins if origin]
    try:
        return msgspec.json.decode(msgspec.json.encode(given), type=OrgChange)
    except UnicodeEncodeError:
        _fail("The arguments are not UTF-8.")


def _read_logo(file: str) -> bytes:
    try:
        with Path(file).open("rb") as loaded:
            return loaded.read(LOGO_MAX + 1)
    except OSError as error:
        _fail(f"{file} cannot be read: {error.strerror}.")


async def _org(connection: db.Connection, slug: str) -> bytes:
    row = await connection.fetchrow(sql.credentials.org_by_slug, slug)
    if row is None:
        _fail(f"There is no org {slug} in this database. Make it with: holdfast orgs create {slug}")
    found: bytes = row["id"]
    return found


def _with_connection(data: Path | None, work: Callable[[db.Connection], Awaitable[T]]) -> T:
    url = _database(data)

    async def run() -> T:
        connection = await db.connect(url)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def _database(data: Path | None) -> str:
    """The address of a database that is up to date. Child processes find it in the environment."""
    try:
        settings = Settings.from_environment()
        url = settings.database_url or embedded.start(data or settings.data_dir)
        asyncio.run(db.migrate(url))
    except (SettingError, db.SchemaError) as error:
        _fail(str(error))
    except (OSError, *db.LOST_ERRORS) as error:
        _fail(f"The database cannot be reached: {error}")
    os.environ["HOLDFAST_DATABASE_URL"] = url
    return url


def _check_parts() -> None:
    """Tell of settings that cannot be used before anything is started with them."""
    from holdfast.notifications.smtp import Smtp
    from holdfast.payments.registry import make_stripe
    from holdfast.runtime.storage import open_storage

    settings = Settings.from_environment()
    parts: dict[str, Callable[[], object]] = {
        "HOLDFAST_SMTP_URL": lambda: settings.smtp_url and Smtp(settings.smtp_url),
        "HOLDFAST_RECEIPTS_URL": lambda: (
            settings.receipts_url and open_storage(settings.receipts_url, settings.data_dir)
        ),
        "HOLDFAST_STRIPE_KEY": lambda: settings.stripe_key and make_stripe(settings.stripe_key, settings),
        "HOLDFAST_SANDBOX_WEBHOOK_SECRET": lambda: (
            settings.sandbox_webhook_secret and Webhook(settings.sandbox_webhook_secret)
        ),
    }
    for name, make in parts.items():
        try:
            make()
        except (ValueError, EmptyWebhookSecretError) as error:
            _fail(f"{name}: {error}")


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)
