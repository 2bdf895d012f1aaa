"""Whether the schema of the database fits this version of Holdfast."""

from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.database_access import newest_schema_version, read_schema_version
from holdfast.doctor.installation import Installation


async def check_schema(installation: Installation) -> Results:
    database = await installation.database.require()
    version, newest = await read_schema_version(database), newest_schema_version()
    if version is None:
        yield warning("The database is empty.", "Run `holdfast migrate`. `holdfast serve` does so too.")
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
