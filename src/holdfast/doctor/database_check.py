"""Whether PostgreSQL answers, and keeps what it acknowledges."""

import ssl
from typing import Final

import asyncpg
from msgspec import Struct

from holdfast import sql
from holdfast.doctor.check import CheckResult, Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime.database_files import find_unreadable_file

VERSION_MIN: Final = 15

_URL_REMEDY: Final = "Check HOLDFAST_DATABASE_URL: postgresql://user:password@host:5432/database."


class Server(Struct, frozen=True):
    major_version: int
    version: str
    encoding: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    is_read_only: bool


async def check_database(installation: Installation) -> Results:
    try:
        database = await installation.database.open()
    except Exception as error:
        yield _explain_embedded(installation) if not installation.has_own_database else _explain(error, installation)
        return
    server = await database.shared.row(Server, sql.doctor.server)
    assert server is not None
    found = find_weaknesses(server)
    yield ok(f"PostgreSQL {server.version} answers.")
    for result in found:
        yield result
    if not found:
        yield ok("It keeps what it acknowledges: fsync, full_page_writes and synchronous_commit are on.")


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


def _explain(error: Exception, installation: Installation) -> CheckResult:
    """In our own words: the text of an error may quote a part of the URL, and so of the password."""
    unreadable = find_unreadable_file(installation.settings.database_url or "")
    if unreadable:
        return problem(unreadable, "Let the user that runs Holdfast read it, and enter its folder.")
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return problem("PostgreSQL refuses the user or the password.", _URL_REMEDY)
        case asyncpg.InvalidCatalogNameError():
            return problem(
                "PostgreSQL has no database of this name.",
                "Create it with `createdb`, or correct the name in HOLDFAST_DATABASE_URL.",
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
                "PostgreSQL does not answer in time.", f"Check the network and the firewall on the way. {_URL_REMEDY}"
            )
        case OSError():
            return problem(
                "PostgreSQL cannot be reached: " + (error.strerror or type(error).__name__) + ".",
                f"Check that the server runs. {_URL_REMEDY}",
            )
        case ValueError() | asyncpg.InterfaceError():
            return problem("HOLDFAST_DATABASE_URL is malformed.", f"Percent-encode special characters. {_URL_REMEDY}")
        case _:
            return problem(f"PostgreSQL refuses the connection: {type(error).__name__}.", _URL_REMEDY)
