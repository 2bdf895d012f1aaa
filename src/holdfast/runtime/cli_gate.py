"""`holdfast gate`: the Redis in front of the engine."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.runtime import db
from holdfast.runtime.cli_database import DataFolder, fail, find_database, read_settings
from holdfast.runtime.extras import MissingExtraError

if TYPE_CHECKING:
    # Needs the optional extra `redis`.
    from holdfast.gate.comparison import GateReport

gate = typer.Typer(no_args_is_help=True, help="Check and repair the Redis in front of the engine.")


@gate.callback()
def main() -> None:
    """Without this callback, typer would treat the only command as the program itself."""


@gate.command("check")
def check(
    repair: Annotated[bool, typer.Option("--repair", help="Rebuild every event that differs.")] = False,
    data: DataFolder = None,
) -> None:
    """Compare what Redis holds with PostgreSQL, and print the differences as JSON.

    You can run this during a sale. It compares twice, and reports only what differs both times. PostgreSQL decides
    every hold, so a difference only costs speed, or makes Redis refuse a free seat for a few seconds. Exits with 1 if
    anything differs and is not repaired.
    """
    url = read_settings().redis_url
    if url is None:
        fail("No Redis is configured. Set HOLDFAST_REDIS_URL to the URL that your API processes use.")
    database_url = find_database(data)
    try:
        report = asyncio.run(_check(url, database_url, repair=repair))
    except (MissingExtraError, ValueError) as error:
        fail(f"Cannot use HOLDFAST_REDIS_URL: {error}")
    except (*db.LOST_ERRORS, *db.BLOCKED_ERRORS):
        fail("Lost the connection to the database. Run the command again.")
    typer.echo(msgspec.json.format(msgspec.json.encode(report)))
    raise typer.Exit(0 if report.ok else 1)


async def _check(url: str, database_url: str, *, repair: bool) -> "GateReport":
    from holdfast.gate.comparison import Comparison
    from holdfast.gate.event_builder import BOOKINGS_MAX, TooLargeError
    from holdfast.gate.redis_client import RedisUrl, UnavailableError

    redis_url = RedisUrl.parse(url)
    connection = await db.connect(database_url)
    comparison = Comparison(redis_url, db.Database(connection))
    try:
        return await comparison.run(repair=repair)
    except UnavailableError as error:
        fail(f"Cannot use Redis: {error}: {error.__cause__}. Check HOLDFAST_REDIS_URL.")
    except TooLargeError:
        fail(f"An event that differs has more than {BOOKINGS_MAX:,} bookings. Holdfast sells it without Redis.")
    finally:
        await comparison.close()
        await connection.close()
