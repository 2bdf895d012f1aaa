"""Imports point one way: the core imports nothing of Holdfast, edges do not import each other, and only the engine
writes stock."""

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
STATEMENTS = sorted((ROOT / "sql").glob("*.sql"))

EDGES = ("api", "web", "bot", "worker")
STOCK_STATEMENTS = ("engine", "events")
# The one thing of the desk's statements that may be handed to it from outside: how it locks.
HANDED_IN = "sql.engine.lock_if_free"

OUTSIDE = {"asyncio", "asyncpg", "io", "os", "pathlib", "socket", "subprocess", "sys", "threading", "urllib"}
CHANCE_AND_TIME = {"random", "secrets", "time", "uuid"}
CLOCKS = {"now", "today", "utcnow"}

WRITES_STOCK = re.compile(
    r"\b(?:INSERT\s+INTO|UPDATE(?:\s+ONLY)?|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE(?:\s+TABLE)?|COPY)\s+"
    r"(booking|line|pool|seat|event)\b",
    re.IGNORECASE,
)


def name_of(path: Path) -> str:
    parts = [holdfast.__name__, *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """`holdfast.api.auth` is of the part `api`; a module of its own is its own part."""
    return module.split(".")[1] if "." in module else ""


@cache
def parsed(source: str) -> ast.Module:
    """A collection in the middle of building a tree makes Python 3.11 lose count of its depth."""
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def imports(source: str, module: str) -> set[str]:
    """Everything the module names in an import, with what it takes from where: `a.b` for `from a import b`."""
    found: set[str] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.rsplit(".", node.level)[0] + "." if node.level else ""
            origin = (package + (node.module or "")).rstrip(".")
            found |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return found


def parts_imported(source: str, module: str) -> set[str]:
    own = {name for name in imports(source, module) if name == "holdfast" or name.startswith("holdfast.")}
    return {part_of(name) for name in own} - {""}


def impurities(source: str, module: str) -> set[str]:
    """Ways to reach the outside: modules that do, and methods that read a clock."""
    outside = {name.split(".")[0] for name in imports(source, module)} & (OUTSIDE | CHANCE_AND_TIME)
    calls = [node.func for node in ast.walk(parsed(source)) if isinstance(node, ast.Call)]
    read = {f".{call.attr}()" for call in calls if isinstance(call, ast.Attribute) and call.attr in CLOCKS}
    return outside | read


def stock_statements_used(source: str, module: str) -> set[str]:
    """Statements of `desk.sql` and `events.sql`, as `sql.engine.lock`, or the whole file where it is taken as one."""
    tree = parsed(source)
    dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    files = {f"sql.{name}" for name in STOCK_STATEMENTS}
    used = {text for text in dotted if text.startswith(tuple(f"{file}." for file in files))}
    bare = {text for text in dotted & files if not any(longer.startswith(f"{text}.") for longer in used)}
    taken = {name.removeprefix("holdfast.") for name in imports(source, module)} & files
    return used | bare | taken


def stock_written(text: str) -> list[str]:
    return [match.group(1).lower() for match in WRITES_STOCK.finditer(text)]


def texts_in(source: str) -> Iterator[str]:
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def of_part(*parts: str) -> list[Path]:
    return [path for path in MODULES if part_of(name_of(path)) in parts]


def outside_the_desk() -> list[Path]:
    return [path for path in MODULES if part_of(name_of(path)) != "engine"]


@pytest.mark.parametrize("path", of_part("core"), ids=name_of)
def test_the_core_knows_nothing_but_itself(path: Path) -> None:
    assert parts_imported(path.read_text(), name_of(path)) <= {"core"}


@pytest.mark.parametrize("path", of_part("core"), ids=name_of)
def test_the_core_reaches_for_no_clock_no_chance_and_no_outside(path: Path) -> None:
    assert not impurities(path.read_text(), name_of(path))


@pytest.mark.parametrize("path", of_part(*EDGES), ids=name_of)
def test_an_edge_does_not_import_the_other_edges(path: Path) -> None:
    """Pages are the one exception: they answer with the API's own types."""
    own = part_of(name_of(path))
    allowed = {own, "api"} if own == "web" else {own}
    assert not parts_imported(path.read_text(), name_of(path)) & (set(EDGES) - allowed)


@pytest.mark.parametrize("path", of_part("engine", "live"), ids=name_of)
def test_engine_and_live_do_not_import_their_callers(path: Path) -> None:
    assert not parts_imported(path.read_text(), name_of(path)) & set(EDGES)


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.name)
def test_only_engine_statements_write_stock(path: Path) -> None:
    assert bool(stock_written(path.read_text())) is (path.stem in STOCK_STATEMENTS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_writes_stock_with_a_statement_of_its_own(path: Path) -> None:
    assert not [table for text in texts_in(path.read_text()) for table in stock_written(text)]


@pytest.mark.parametrize("path", outside_the_desk(), ids=name_of)
def test_only_the_engine_uses_the_statements_that_write_stock(path: Path) -> None:
    allowed = {HANDED_IN} if part_of(name_of(path)) == "worker" else set()
    assert stock_statements_used(path.read_text(), name_of(path)) <= allowed


def test_the_parts_that_are_checked_exist() -> None:
    assert {part_of(name_of(path)) for path in MODULES} >= {"core", "engine", "api", "worker"}
    assert {path.stem for path in STATEMENTS} >= {*STOCK_STATEMENTS, "reads", "worker"}


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import holdfast.runtime.db", "runtime"),
        ("from holdfast import sql", "sql"),
        ("from holdfast.engine.lane import Lane", "engine"),
        ("from holdfast.api import auth as a", "api"),
        ("from ..worker import reaper", "worker"),
        ("from .. import worker", "worker"),
        ("def late():\n    from holdfast.bot import run", "bot"),
    ],
)
def test_an_import_is_seen_however_it_is_written(source: str, part: str) -> None:
    assert part in parts_imported(source, "holdfast.core.decide")


@pytest.mark.parametrize(
    "source",
    ["import time", "from os import urandom", "from datetime import datetime\nat = datetime.now(UTC)", "import uuid"],
)
def test_the_check_finds_an_import_from_outside(source: str) -> None:
    assert impurities(source, "holdfast.core.decide")


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("from holdfast import sql\nrun(sql.engine.insert_bookings)", {"sql.engine.insert_bookings"}),
        ("from holdfast import sql\nrun(sql.events.set_pool, 1)", {"sql.events.set_pool"}),
        ("from holdfast import sql\nd = sql.engine", {"sql.engine"}),
        ("from holdfast.sql import engine", {"sql.engine"}),
        ("from holdfast import sql\nrun(sql.worker.all_events)", set()),
        ("from holdfast.engine import events as desk\ndesk.set_status()", set()),
    ],
)
def test_the_check_finds_an_engine_statement_wherever_it_is_used(source: str, used: set[str]) -> None:
    assert stock_statements_used(source, "holdfast.worker.reaper") == used


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("UPDATE pool SET sold = 0", ["pool"]),
        ("insert into booking\n(id) values (1)", ["booking"]),
        ("WITH gone AS (DELETE FROM line RETURNING 1) SELECT 1", ["line"]),
        ("SELECT id FROM event WHERE id = $1 FOR UPDATE", []),
        ("SELECT id FROM event FOR UPDATE SKIP LOCKED", []),
        ("INSERT INTO journal (event_id) VALUES ($1)", []),
        ("UPDATE seats_of_a_view SET x = 1", []),
    ],
)
def test_the_check_tells_a_write_to_stock_from_a_read(text: str, tables: list[str]) -> None:
    assert stock_written(text) == tables
