"""Whether the schema of the database fits this version of Holdfast."""

from holdfast import sql
from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.database_access import newest_schema_version, read_schema_version
from holdfast.doctor.installation import Installation


async def check_schema(installation: Installation) -> Results:
    database = await installation.database.require()
    version, newest = await read_schema_version(database), newest_schema_version()
    if version is None:
        has_owner = installation.settings.migration_database_url is not None
        if has_owner or await database.shared.fetchval(sql.doctor.may_create_tables):
            yield warning("The database is empty.", "Run `holdfast migrate`. `holdfast serve` does so too.")
        else:
            yield problem(
                "The database is empty, and the role of HOLDFAST_DATABASE_URL may not create tables.",
                "Run `holdfast migrate` with HOLDFAST_MIGRATION_DATABASE_URL set to a role that may (docs/audit.md, "
                "Roles).",
            )
    elif version < newest:
        yield problem(
            f"The schema has version {version}, and this Holdfast needs {newest}.",
            "Stop all processes of the old version, then run `holdfast migrate`.",
        )
    elif version > newest:
        yield problem(
            f"The schema has version {version}, and this Holdfast knows only {newest}.",
            "Install the version of Holdfast that migrated the database, or a newer one.",
        )
    else:
        yield ok(f"The schema is up to date: version {version}.")
