"""Statements reach PostgreSQL through a scope of `Database`, which knows the event or org that each belongs to."""

import ast
import re
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
METHODS = {"fetch", "fetchrow", "fetchval", "execute", "executemany", "row", "rows"}
# A lane runs its batches on a connection of its own.
LANES = [
    f"engine/{name}.py"
    for name in ("batch", "layout_cache", "load", "own_bookings", "save", "save_notifications", "save_payments")
]
# Migrations and roles are about the whole server. The last one talks to Redis.
SERVER = ("runtime/db.py", "runtime/database_identity.py", "runtime/database_roles.py", "runtime/embedded.py")
OTHERS = (*LANES, *SERVER, "gate/redis_client.py")
MODULES = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).as_posix() not in OTHERS]
SCOPE = re.compile(
    r"(?:.*\.)?_?scope|.*(?:database(?:\(\w+\))?|services\.reports)\.(?:shared|all_events|event\(.*\)|org\(.*\))",
    re.IGNORECASE,
)


def calls_outside_a_scope(source: str) -> list[str]:
    """The receivers that run a statement and are not a scope."""
    receivers = [
        ast.unparse(node.func.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
    ]
    return [receiver for receiver in receivers if not SCOPE.fullmatch(receiver)]


def test_every_module_runs_its_statements_in_a_scope() -> None:
    found = {path.relative_to(ROOT).as_posix(): calls_outside_a_scope(path.read_text()) for path in MODULES}
    assert {module: calls for module, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("await self._pool.fetch(x)", ["self._pool"]),
        ("await connection.execute(x)", ["connection"]),
        ("await call.services.database.fetchval(x)", ["call.services.database"]),
        ("await database.event(e).fetch(x)", []),
        ("await self._database.shared.row(A, x)", []),
        ("await Database(connection).all_events.fetch(x)", []),
        ("async with database.org(o).transaction() as scope:\n  await scope.execute(x)", []),
    ],
)
def test_the_check_finds_a_call_outside_a_scope(source: str, found: list[str]) -> None:
    assert calls_outside_a_scope("async def f():\n " + source.replace("\n", "\n ")) == found
