"""Whether PostgreSQL answers, and keeps what it acknowledges."""

import ssl
from typing import Final

import asyncpg
from msgspec import Struct

from holdfast import sql
from holdfast.doctor.check import CheckResult, Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime.database_files import find_unreadable_file
from holdfast.runtime.database_urls import check_database_url
from holdfast.runtime.db import SchemaError, require_same_database
from holdfast.runtime.settings import SettingError

VERSION_MIN: Final = 15


class Server(Struct, frozen=True):
    major_version: int
    version: str
    encoding: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    is_read_only: bool


async def check_database(installation: Installation) -> Results:
    settings = installation.settings
    if settings.migration_database_url is not None and settings.database_url is None:
        yield problem(
            "HOLDFAST_MIGRATION_DATABASE_URL is set, but HOLDFAST_DATABASE_URL is not, so Holdfast does not start.",
            "Set HOLDFAST_DATABASE_URL to the same database, with the role of the application.",
        )
    try:
        if settings.database_url is not None:
            check_database_url("HOLDFAST_DATABASE_URL", settings.database_url)
        database = await installation.database.open()
    except Exception as error:
        if installation.has_own_database:
            yield _explain(error, "HOLDFAST_DATABASE_URL", settings.database_url or "")
        else:
            yield _explain_embedded(installation)
        return
    server = await database.shared.row(Server, sql.doctor.server)
    assert server is not None
    found = find_weaknesses(server)
    yield ok(f"PostgreSQL {server.version} answers.")
    for result in found:
        yield result
    if not found:
        yield ok("It keeps what it acknowledges: fsync, full_page_writes and synchronous_commit are on.")
    if settings.migration_database_url is not None and settings.database_url is not None:
        yield await _compare(settings.migration_database_url, settings.database_url)


async def _compare(owner_url: str, url: str) -> CheckResult:
    """Whether the owner of the tables leads to the same database."""
    try:
        check_database_url("HOLDFAST_MIGRATION_DATABASE_URL", owner_url)
        await require_same_database(owner_url, url)
    except SchemaError as error:
        return problem(str(error), "Correct one of the two URLs, then run `holdfast migrate`.")
    except Exception as error:
        return _explain(error, "HOLDFAST_MIGRATION_DATABASE_URL", owner_url)
    return ok("HOLDFAST_DATABASE_URL and HOLDFAST_MIGRATION_DATABASE_URL name the same database.")


def find_weaknesses(server: Server) -> list[CheckResult]:
    found = []
    if server.major_version < VERSION_MIN:
        found.append(
            problem(f"Holdfast needs PostgreSQL {VERSION_MIN} or newer.", "Upgrade the server, then run this again.")
        )
    for name, value in (("fsync", server.fsync), ("full_page_writes", server.full_page_writes)):
        if value != "on":
            found.append(
                problem(
                    f"{name} is {value}, so a power cut can lose acknowledged bookings.",
                    f"Run ALTER SYSTEM SET {name} = on, then SELECT pg_reload_conf().",
                )
            )
    if server.synchronous_commit not in ("on", "remote_apply"):
        found.append(
            problem(
                f"synchronous_commit is {server.synchronous_commit} although Holdfast asks for on, so something "
                "between Holdfast and PostgreSQL drops the request.",
                "Connect to PostgreSQL directly, or set synchronous_commit = on in the server.",
            )
        )
    if server.encoding != "UTF8":
        found.append(
            problem(
                f"The encoding of the database is {server.encoding}, so it cannot store every name.",
                "Create a database with ENCODING 'UTF8', and move the data with pg_dump and pg_restore.",
            )
        )
    if server.is_read_only:
        found.append(
            problem(
                "The server is read-only. It is a standby, or its default is read-only transactions.",
                "Point HOLDFAST_DATABASE_URL to the primary server.",
            )
        )
    return found


def _explain_embedded(installation: Installation) -> CheckResult:
    folder = installation.settings.data_dir
    if (folder / "postgres").exists():
        return warning(
            f"The embedded PostgreSQL in {folder} does not run.", "Start `holdfast serve`, then run this again."
        )
    return warning(
        f"There is no HOLDFAST_DATABASE_URL, and no embedded PostgreSQL in {folder} yet.",
        "Start `holdfast serve`, which creates one, or set HOLDFAST_DATABASE_URL.",
    )


def _explain(error: Exception, setting: str, url: str) -> CheckResult:
    """In our own words: the text of an error may quote a part of the URL, and so of the password."""
    url_remedy = f"Check {setting}: postgresql://user:password@host:5432/database."
    if isinstance(error, SettingError):
        return problem(str(error), url_remedy)
    unreadable = find_unreadable_file(url)
    if unreadable:
        return problem(unreadable, "Let the user that runs Holdfast read it, and enter its folder.")
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return problem("PostgreSQL refuses the user or the password.", url_remedy)
        case asyncpg.InvalidCatalogNameError():
            return problem(
                "PostgreSQL has no database of this name.",
                f"Create it with `createdb`, or correct the name in {setting}.",
            )
        case asyncpg.InsufficientPrivilegeError():
            return problem(
                "PostgreSQL does not let this user connect to this database.", "Run GRANT CONNECT ON DATABASE."
            )
        case asyncpg.TooManyConnectionsError():
            return problem("PostgreSQL has no free connection.", "Raise max_connections, or stop what uses them.")
        case asyncpg.CannotConnectNowError():
            return problem("PostgreSQL is starting up or shutting down.", "Run this again in a moment.")
        case ssl.SSLError():
            return problem("Holdfast cannot connect to PostgreSQL securely.", "Check sslmode and the certificates.")
        case TimeoutError():
            return problem(
                "PostgreSQL does not answer in time.", f"Check the network and the firewall on the way. {url_remedy}"
            )
        case OSError():
            return problem(
                "PostgreSQL cannot be reached: " + (error.strerror or type(error).__name__) + ".",
                f"Check that the server runs. {url_remedy}",
            )
        case ValueError() | asyncpg.InterfaceError():
            return problem(f"{setting} is malformed.", f"Percent-encode special characters. {url_remedy}")
        case _:
            return problem(f"PostgreSQL refuses the connection: {type(error).__name__}.", url_remedy)
