"""What the role may do in the database."""

import re
from types import SimpleNamespace
from typing import Final

from holdfast import sql
from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.database_access import SkippedError
from holdfast.doctor.installation import Installation
from holdfast.runtime.database_roles import find_powers

_WRITES: Final = re.compile(r"\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+([a-z_]+)")
_READS: Final = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_]+)")


async def check_rights(installation: Installation) -> Results:
    database = await installation.database.require()
    # Not the version of the schema, which a role without any rights may not read.
    if not await database.shared.fetchval(sql.doctor.schema_exists):
        raise SkippedError("There are no tables yet.")
    needed = sorted(find_needed_rights())
    tables, privileges = [table for table, _ in needed], [privilege for _, privilege in needed]
    missing = await database.shared.fetch(sql.doctor.missing_rights, tables, privileges)
    if missing:
        listed = ", ".join(f"{row['privilege']} on {row['table_name']}" for row in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        yield problem(
            f"The role lacks {listed}{more}.",
            "Run `holdfast migrate` with HOLDFAST_MIGRATION_DATABASE_URL, which grants them.",
        )
    role: str = await database.shared.fetchval(sql.roles.own_name)
    powers = await find_powers(database.shared, role)
    if any(power.is_ownership for power in powers):
        yield warning(
            "The role could change or delete entries of the journal. The audit chain would "
            "reveal that, but not prevent it.",
            "Create a second role for the application, as docs/audit.md says under Roles.",
        )
    elif powers:
        more = f" It has {len(powers) - 1} more such rights." if len(powers) > 1 else ""
        yield warning(f"{powers[0].describe(role)}{more}", f"{powers[0].remedy(role)} (docs/audit.md, Roles)")
    elif not missing:
        yield ok("The role may read and write everything that Holdfast does, but cannot change the journal.")


def find_needed_rights() -> set[tuple[str, str]]:
    """Pairs of a table and a privilege, read off the statements themselves. Some of the names are not tables."""
    return {
        pair
        for file in vars(sql).values()
        if isinstance(file, SimpleNamespace)
        for statement in vars(file).values()
        for pair in _rights_of(getattr(statement, "text", statement))
    }


def _rights_of(text: str) -> set[tuple[str, str]]:
    rights = {(name, "SELECT") for name in _READS.findall(text)}
    for verb, name in _WRITES.findall(text):
        rights.add((name, verb.split()[0]))
        if verb.startswith("INSERT") and "DO UPDATE" in text:
            rights.add((name, "UPDATE"))
    return rights
