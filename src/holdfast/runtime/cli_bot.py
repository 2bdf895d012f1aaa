"""`holdfast bot`: runs the Telegram bots, and connects them to orgs."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import msgspec
import typer
import uvloop

from holdfast import sql
from holdfast.core.event_schemas import available_timezones
from holdfast.i18n.languages import LANGUAGES
from holdfast.runtime.cli_database import (
    DataFolder,
    fail,
    open_database,
    read_settings,
    read_with_database,
    require_receipts_folder,
    run_with_database,
)
from holdfast.runtime.cli_metrics import MetricsOption, parse_metrics_address, report_unusable_address
from holdfast.runtime.cli_orgs import find_org
from holdfast.runtime.db import Database
from holdfast.runtime.extras import MissingExtraError, optional_import
from holdfast.runtime.logs import configure_logs
from holdfast.runtime.tracing import configure_tracing

if TYPE_CHECKING:
    from holdfast.bot.telegram_bot import BotDefaults

Result = TypeVar("Result")

bot = typer.Typer(help="Run the Telegram bots of all orgs, and connect them.")

OrgOption = Annotated[str, typer.Option("--org", help="Short name of the org.")]
LanguageOption = Annotated[str | None, typer.Option(help=f"Language of the staff: {', '.join(LANGUAGES)}.")]
CurrencyOption = Annotated[str | None, typer.Option(help="Currency of new shifts, such as EUR.")]
TimezoneOption = Annotated[str | None, typer.Option(help="Time zone of new shifts, such as Europe/Madrid.")]


class _ConnectedBot(msgspec.Struct, frozen=True):
    slug: str
    username: str


@bot.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    org: Annotated[
        str | None, typer.Option(help="Org of the bot in HOLDFAST_TELEGRAM_TOKEN, if there are several orgs.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to receive webhooks on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to receive webhooks on.")] = 8081,
    data: DataFolder = None,
    metrics: MetricsOption = None,
    child: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run the bots of all orgs. You can run any number of these processes.

    With HOLDFAST_TELEGRAM_TOKEN, connect that bot first. With HOLDFAST_TELEGRAM_WEBHOOK_URL, Telegram delivers updates
    to this process; otherwise one of the processes polls for them.
    """
    if context.invoked_subcommand is not None:
        return
    _require_extra()
    from holdfast.bot.runner import run_bots

    configure_logs(read_settings())
    open_database(data, to_sell=True)
    require_receipts_folder()
    settings = read_settings()
    if settings.telegram_token is not None:
        _connect_from_settings(org, settings.telegram_token, data)
    try:
        configure_tracing(settings, "bot")
    except MissingExtraError as error:
        fail(str(error))
    with report_unusable_address():
        uvloop.run(run_bots(read_settings(), host, port, parse_metrics_address(metrics), child=child))


@bot.command()
def connect(
    org: OrgOption,
    language: LanguageOption = None,
    currency: CurrencyOption = None,
    timezone: TimezoneOption = None,
    data: DataFolder = None,
) -> None:
    """Connect a bot to an org and print the code that links its admin chat.

    The token comes from HOLDFAST_TELEGRAM_TOKEN, or from standard input. Connecting again replaces the token.
    """
    _require_extra()
    from holdfast.bot.telegram_bot import BotDefaults

    _check(language, currency, timezone)
    token = read_settings().telegram_token or _read_token()
    _connect(org, token, BotDefaults(language, currency, timezone), data)


@bot.command()
def code(org: OrgOption, data: DataFolder = None) -> None:
    """Print a code that makes a chat the org's admin chat. Send `/link CODE` in that chat within an hour."""
    from holdfast.bot.telegram_bot import create_code

    async def create(database: Database, org_id: bytes) -> str:
        return await create_code(database, org_id, "staff")

    typer.echo(_run(data, lambda database: _with_bot(database, org, create)))


@bot.command()
def disconnect(org: OrgOption, data: DataFolder = None) -> None:
    """Disconnect the org's bot. Holdfast forgets its token, its chats and its messages, but no worker or booking."""
    from holdfast.bot.telegram_bot import disconnect_bot

    _run(data, lambda database: _with_bot(database, org, disconnect_bot))


@bot.command("list")
def list_(data: DataFolder = None) -> None:
    """List the orgs that have a bot, and the bot's user name."""

    async def read(database: Database) -> list[_ConnectedBot]:
        return await database.shared.rows(_ConnectedBot, sql.telegram.connected_bots)

    for row in read_with_database(data, read):
        typer.echo(f"{row.slug}\t@{row.username}")


def _connect_from_settings(slug: str | None, token: str, data: DataFolder) -> None:
    """Connect the bot of the environment, unless it is connected already."""
    from holdfast.bot.telegram_bot import BotDefaults

    async def find(database: Database) -> tuple[bool, list[str]]:
        bots = await database.shared.fetch(sql.telegram.bots)
        orgs = await database.shared.fetch(sql.credentials.orgs)
        return any(row["token"] == token for row in bots), [row["slug"] for row in orgs]

    is_connected, slugs = run_with_database(data, find)
    if is_connected:
        return
    if slug is None and len(slugs) != 1:
        fail("Name the org of this bot with --org. `holdfast orgs list` lists your orgs.")
    _connect(slug or slugs[0], token, BotDefaults(), data)


def _connect(slug: str, token: str, defaults: "BotDefaults", data: DataFolder) -> None:
    from holdfast.bot.client import connect_bot
    from holdfast.bot.telegram_bot import create_code

    async def save(database: Database) -> tuple[str, str]:
        org = await find_org(database, slug)
        username = await connect_bot(database, org, token, read_settings().telegram_api, defaults)
        return username, await create_code(database, org, "staff")

    username, link_code = _run(data, save)
    typer.echo(
        f"@{username} is the bot of {slug}. Add it to your admin chat, and send this there within an hour:", err=True
    )
    typer.echo(f"/link {link_code}")


async def _with_bot(database: Database, slug: str, work: Callable[[Database, bytes], Awaitable[Result]]) -> Result:
    org = await find_org(database, slug)
    if await database.org(org).fetchrow(sql.telegram.bot, org) is None:
        fail(f"The org {slug} has no bot. Connect one: holdfast bot connect --org {slug}")
    return await work(database, org)


def _run(data: DataFolder, work: Callable[[Database], Awaitable[Result]]) -> Result:
    from holdfast.bot.telegram_bot import BotError

    try:
        return run_with_database(data, work)
    except BotError as error:
        fail(str(error))


def _check(language: str | None, currency: str | None, timezone: str | None) -> None:
    if language is not None and language not in LANGUAGES:
        fail(f"Holdfast does not speak {language}. Choose one of: {', '.join(LANGUAGES)}.")
    if currency is not None and not (len(currency) == 3 and currency.isascii() and currency.isupper()):
        fail(f"{currency} is not a currency. Give its ISO code, such as EUR.")
    if timezone is not None and timezone not in available_timezones():
        fail(f"{timezone} is not a time zone. Give an IANA name such as Europe/Madrid.")


def _read_token() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Token from @BotFather", hide_input=True)).strip()
    return sys.stdin.read(200).strip() or _no_token()


def _no_token() -> NoReturn:
    fail("Give the token of the bot in HOLDFAST_TELEGRAM_TOKEN, or on standard input.")


def _require_extra() -> None:
    try:
        with optional_import("aiogram", "pydantic", extra="telegram"):
            from holdfast.bot.aiogram_import import import_aiogram

            import_aiogram()
    except MissingExtraError as error:
        fail(str(error))
