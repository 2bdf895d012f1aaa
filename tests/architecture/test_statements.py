"""Every statement that the code names exists and is used. Type checkers cannot see this: statements are in files."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast
from holdfast import sql
from holdfast.sql import NamedStatement

ROOT = Path(holdfast.__file__).parent
FILES = {name: vars(found) for name, found in vars(sql).items() if isinstance(found, SimpleNamespace)}
STATEMENTS = {f"{file}.{name}": statement for file, found in FILES.items() for name, statement in found.items()}


def names_in(source: str) -> Iterator[tuple[str, bool]]:
    """Each `sql.file.name` in the source, without `sql.`, and whether it is called."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if text.startswith("sql.") and text.count(".") == 2:
            yield text.removeprefix("sql."), id(node) in called


def mistakes(source: str) -> list[str]:
    """Statements that do not exist, and calls of statements without named parameters."""
    return [
        name
        for name, is_called in names_in(source)
        if name not in STATEMENTS or (is_called and not isinstance(STATEMENTS[name], NamedStatement))
    ]


def test_every_statement_that_the_code_names_exists() -> None:
    found = {path.relative_to(ROOT).as_posix(): mistakes(path.read_text()) for path in ROOT.rglob("*.py")}
    assert {module: names for module, names in found.items() if names} == {}


def test_every_statement_is_used() -> None:
    used = {name for path in ROOT.rglob("*.py") for name, _ in names_in(path.read_text())}
    assert set(STATEMENTS) - used == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("run(sql.reads.event, 1)", []),
        ("run(*sql.engine.load(events=[]))", []),
        ("run(sql.reads.evnet, 1)", ["reads.evnet"]),
        ("run(*sql.reads.event(id=1))", ["reads.event"]),
    ],
)
def test_a_mistake_is_found(source: str, found: list[str]) -> None:
    assert mistakes(source) == found
