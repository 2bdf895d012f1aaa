"""The database role of the application, which may add journal entries and never change them.

The owner of the tables migrates the schema. The application connects as a role of its own, which cannot change the
schema and can neither update nor delete entries of the journal. Every migration grants again, so the role can use new
tables.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.runtime.db import Connection

# What nobody changes once it is written.
APPEND_ONLY: Final = "journal"
# What only migrations write.
READ_ONLY: Final = "schema_version"


class RoleError(RuntimeError):
    """The application's role cannot be restricted. The message says what to change."""


async def grant_to_application(owner: "Connection", role: str) -> None:
    """Let the role do what the application needs, and no more. Does nothing if it is so already."""
    schema = await owner.fetchval("SELECT current_schema()")
    if await owner.fetchval(
        "SELECT pg_has_role($1, relowner, 'MEMBER') FROM pg_class WHERE oid = $2::text::regclass", role, APPEND_ONLY
    ):
        raise RoleError(
            f"The role {role} of HOLDFAST_DATABASE_URL can act as the owner of the tables, so nothing keeps it from "
            "changing the journal. Use a role that is neither a superuser nor a member of the owner's role."
        )
    if not await _is_granted(owner, schema, role):
        async with owner.transaction():
            for statement in _grants(await _quote(owner, schema), await _quote(owner, role)):
                await owner.execute(statement)
    for privilege in ("UPDATE", "DELETE", "TRUNCATE"):
        if await owner.fetchval("SELECT has_table_privilege($1, $2, $3)", role, APPEND_ONLY, privilege):
            raise RoleError(
                f"The role {role} may {privilege} the journal, because another role or PUBLIC grants it. "
                f"REVOKE {privilege} ON journal from whoever has it."
            )
    if await owner.fetchval("SELECT has_schema_privilege($1, $2, 'CREATE')", role, schema):
        raise RoleError(
            f"The role {role} may create tables in the schema {schema}. "
            f"Run as a superuser: REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC"
        )


def _grants(schema: str, role: str) -> list[str]:
    return [
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
        f"REVOKE UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON {APPEND_ONLY} FROM {role}",
        f"REVOKE INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON {READ_ONLY} FROM {role}",
    ]


async def _is_granted(owner: "Connection", schema: str, role: str) -> bool:
    """Granting what the role has already would make every running process plan its statements again."""
    missing = await owner.fetchval(
        """SELECT count(*) FROM pg_class CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS privilege
        WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'p', 'v')
          AND has_table_privilege($2, pg_class.oid, privilege) <> (privilege = 'SELECT'
              OR relname NOT IN ($3, $4) OR relname = $3 AND privilege = 'INSERT')""",
        await _quote(owner, schema),
        role,
        APPEND_ONLY,
        READ_ONLY,
    )
    return bool(missing == 0)


async def _quote(connection: "Connection", name: str) -> str:
    quoted: Any = await connection.fetchval("SELECT quote_ident($1)", name)
    return str(quoted)
