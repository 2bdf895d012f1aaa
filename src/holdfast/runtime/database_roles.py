"""The database role of the application, which may add journal entries and never change them.

The owner of the tables migrates the schema. The application connects as a role of its own, which cannot change the
schema, can neither update nor delete entries of the journal, and deletes nothing that the journal is about. Every
migration grants again, so the role can use new tables.
"""

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, convert

from holdfast import sql

if TYPE_CHECKING:
    from holdfast.runtime.db import Connection, DatabaseScope

# What nobody changes once it is written.
APPEND_ONLY: Final = "journal"
# What only migrations write.
READ_ONLY: Final = "schema_version"
# What Holdfast never deletes. The auditor compares it with the journal.
KEPT: Final = ("event", "pool", "tariff", "seat", "booking", "line", "payment", "checkin")

_ALL: Final = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE"})
_REFUSED: Final = {
    APPEND_ONLY: ("UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"),
    READ_ONLY: ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"),
    **dict.fromkeys(KEPT, ("DELETE", "TRUNCATE", "TRIGGER")),
}
# No grant takes these away, and revoking privileges from an owner would break the owner.
_INNATE: Final = frozenset({"attribute", "owner", "predefined"})


class RoleError(RuntimeError):
    """The application's role cannot be restricted. The message says what to change."""


class Power(Struct, frozen=True):
    """What the role may do and must not, directly or because it is a member of `holder`."""

    kind: str
    holder: str
    power: str
    object: str

    @property
    def is_ownership(self) -> bool:
        """Whether the role owns the tables itself, or could: nothing else about it matters."""
        return self.kind == "owner" or self.power == "SUPERUSER"

    def describe(self, role: str) -> str:
        through = "" if self.holder == role else f", because it is a member of {self.holder}"
        if self.holder == "PUBLIC":
            through = ", because PUBLIC may"
        match self.kind:
            case "attribute":
                return f"The role {role} can change the journal as {self.power}{through}."
            case "owner":
                return f"The role {role} can act as the owner of the {self.object}{through}, and so change the journal."
            case "predefined":
                return f"The role {role} is a member of {self.holder}, and so can change the journal."
            case "create":
                return f"The role {role} may create tables of its own in the {self.object.lower()}{through}."
            case _:
                return f"The role {role} may {self.power} {self.object}{through}."

    def remedy(self, role: str) -> str:
        """What a superuser runs."""
        if self.holder not in (role, "PUBLIC"):
            return f"REVOKE {self.holder} FROM {role}"
        match self.kind:
            case "attribute":
                return f"ALTER ROLE {role} NO{self.power}"
            case "owner" | "predefined":
                return "Use a role that is neither a superuser nor the owner, nor a member of the owner's role."
            case "create":
                return f"REVOKE CREATE ON {self.object} FROM {self.holder}"
            case _:
                return f"REVOKE {self.power} ON {self.object} FROM {self.holder}"


async def find_powers(connection: "Connection | DatabaseScope", role: str) -> list[Power]:
    """What keeps the role from being the application's, the gravest first. Empty if nothing does."""
    tables = [table for table, privileges in _REFUSED.items() for _ in privileges]
    privileges = [privilege for each in _REFUSED.values() for privilege in each]
    rows = await connection.fetch(sql.roles.powers, role, tables, privileges)
    return [convert(dict(row), Power) for row in rows]


async def grant_to_application(owner: "Connection", role: str) -> None:
    """Let the role do what the application needs, and no more. Does nothing if it is so already."""
    _refuse([power for power in await find_powers(owner, role) if power.kind in _INNATE], role)
    statements = await _missing_grants(owner, role)
    if statements:
        async with owner.transaction():
            for statement in statements:
                await owner.execute(statement)
    _refuse(await find_powers(owner, role), role)


def _refuse(powers: list[Power], role: str) -> None:
    if powers:
        first = powers[0]
        more = f" There are {len(powers) - 1} more such rights." if len(powers) > 1 else ""
        raise RoleError(
            f"{first.describe(role)} HOLDFAST_DATABASE_URL must not name such a role.{more} {_advise(first, role)}"
        )


def _advise(power: Power, role: str) -> str:
    remedy = power.remedy(role)
    return remedy if remedy.endswith(".") else f"Run as a superuser: {remedy}"


async def _missing_grants(owner: "Connection", role: str) -> list[str]:
    """Granting what the role has already would make every running process plan its statements again."""
    quoted = await _quote(owner, role)
    statements = []
    for row in await owner.fetch(sql.roles.relations, role):
        wanted = frozenset({"USAGE"}) if row["is_sequence"] else _wanted(row["bare_name"])
        if wanted != frozenset(row["privileges"]):
            kind = "SEQUENCE" if row["is_sequence"] else "TABLE"
            statements += [
                f"REVOKE ALL ON {kind} {row['name']} FROM {quoted}",
                f"GRANT {', '.join(sorted(wanted))} ON {kind} {row['name']} TO {quoted}",
            ]
    schema = await owner.fetchval("SELECT current_schema()")
    if not await owner.fetchval("SELECT has_schema_privilege($1, $2, 'USAGE')", role, schema):
        statements.append(f"GRANT USAGE ON SCHEMA {await _quote(owner, schema)} TO {quoted}")
    return statements


def _wanted(table: str) -> frozenset[str]:
    return _ALL - {"INSERT", "UPDATE", "DELETE"}.intersection(_REFUSED.get(table, ()))


async def _quote(connection: "Connection", name: str) -> str:
    quoted: Any = await connection.fetchval("SELECT quote_ident($1)", name)
    return str(quoted)
