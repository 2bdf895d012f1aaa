"""Statements reach PostgreSQL through `Database`, which knows what each of them is about."""

import ast
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
METHODS = {"fetch", "fetchrow", "fetchval", "execute", "executemany", "copy_records_to_table"}
# Lanes, the reaper and the auditor own a connection. So do commands, which run a few statements and end.
OWNERS = (
    "engine",
    "worker",
    "runtime/db.py",
    "runtime/cli_orgs.py",
    "runtime/cli_keys.py",
    "runtime/credentials.py",
    "demo/data.py",
)
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if not path.relative_to(ROOT).as_posix().startswith(OWNERS)]


def direct_calls(source: str) -> list[str]:
    """Statements that run on a pool, or on a connection that no scope handed out."""
    tree = ast.parse(source)
    scoped = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name)
        and isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Attribute)
        and item.context_expr.func.attr in ("connection", "transaction")
    }
    receivers = [
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
    ]
    return [
        name for name in receivers if name.split(".")[-1].strip("_") in ("pool", "connection") and name not in scoped
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_runs_statements_in_a_scope(path: Path) -> None:
    assert direct_calls(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("await self._pool.fetch(x)", ["self._pool"]),
        ("await call.services.pool.execute(x)", ["call.services.pool"]),
        ("await database.event(e).fetch(x)", []),
        ("async def f():\n  async with scope.transaction() as connection:\n    await connection.fetch(x)", []),
        ("async def f():\n  async with pool.acquire() as connection:\n    await connection.fetch(x)", ["connection"]),
    ],
)
def test_a_call_around_the_door_is_found(source: str, found: list[str]) -> None:
    assert direct_calls(source) == found
