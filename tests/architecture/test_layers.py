"""Imports point one way: the core imports nothing of Holdfast, edges do not import each other, and only the engine
writes stock."""

import ast
import gc
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
STATEMENTS = sorted((ROOT / "sql").glob("*.sql"))

# What each package may import. Edges (`api`, `web`, `bot`, `worker`) do not import each other, except that pages and
# bots call the API.
SERVICES = {"payments", "tickets", "notifications"}
LAYERS = {
    "core": set[str](),
    "i18n": set[str](),
    "sql": {"core"},
    "runtime": {"core", "sql"},
    "engine": {"core", "sql", "runtime"},
    "live": {"core", "sql", "runtime"},
    "payments": {"core", "sql", "runtime", "engine"},
    "tickets": {"core", "sql", "runtime", "engine", "i18n"},
    "notifications": {"core", "sql", "runtime", "engine", "i18n", "tickets"},
    "demo": {"core", "sql", "runtime", "engine"},
    "gate": {"core", "sql", "runtime", "engine"},
    "doctor": {"core", "sql", "runtime", "gate", "notifications", "payments"},
    "top": {"core", "sql", "runtime"},
    "worker": {"core", "sql", "runtime", "engine", "gate", *SERVICES},
    "api": {"core", "sql", "runtime", "engine", "live", "gate", "i18n", *SERVICES},
    "bot": {"core", "sql", "runtime", "engine", "i18n", "tickets", "api"},
    "web": {"core", "sql", "runtime", "live", "i18n", "api", "demo", *SERVICES},
}
# These start processes, so they import everything.
ENTRY_POINTS = re.compile(
    r"holdfast\.(__main__|runtime\.(asgi|cli|cli_audit|cli_bot|cli_bus|cli_database|cli_doctor|cli_erase|cli_gate|cli_keys"
    r"|cli_orgs|cli_reap|cli_top|server))"
)
STOCK_STATEMENTS = ("engine", "erase", "events")
# The one engine statement that a caller passes in: how to lock.
PASSED_IN_STATEMENT = "sql.engine.lock_if_free"

OUTSIDE = {"asyncio", "asyncpg", "io", "os", "pathlib", "socket", "subprocess", "sys", "threading", "urllib"}
RANDOMNESS_AND_TIME = {"random", "secrets", "time", "uuid"}
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
    """The part of `holdfast.api.auth` is `api`. A module outside a package is its own part."""
    return module.split(".")[1] if "." in module else ""


@cache
def parse(source: str) -> ast.Module:
    """Parse with the garbage collector off: a collection in the middle makes Python 3.11 miscount the tree's depth."""
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


def imports(source: str, module: str) -> set[str]:
    """Every name that the module imports: `a` and `a.b` for `from a import b`."""
    found: set[str] = set()
    for node in ast.walk(parse(source)):
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
    """Imported modules that reach outside the process, and calls that read a clock."""
    outside = {name.split(".")[0] for name in imports(source, module)} & (OUTSIDE | RANDOMNESS_AND_TIME)
    calls = [node.func for node in ast.walk(parse(source)) if isinstance(node, ast.Call)]
    read = {f".{call.attr}()" for call in calls if isinstance(call, ast.Attribute) and call.attr in CLOCKS}
    return outside | read


def stock_statements_used(source: str, module: str) -> set[str]:
    """Statements of the files in `STOCK_STATEMENTS`, as `sql.engine.lock`, or the whole file if it is used as one."""
    tree = parse(source)
    dotted = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    files = {f"sql.{name}" for name in STOCK_STATEMENTS}
    used = {text for text in dotted if text.startswith(tuple(f"{file}." for file in files))}
    bare = {text for text in dotted & files if not any(longer.startswith(f"{text}.") for longer in used)}
    taken = {name.removeprefix("holdfast.") for name in imports(source, module)} & files
    return used | bare | taken


def stock_written(text: str) -> list[str]:
    return [match.group(1).lower() for match in WRITES_STOCK.finditer(text)]


def texts_in(source: str) -> Iterator[str]:
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def offenders(check: Callable[[str, str], object], *parts: str) -> dict[str, object]:
    """The findings of the check by module, in these parts or in all."""
    found = {name_of(path): check(path.read_text(), name_of(path)) for path in MODULES}
    return {name: finding for name, finding in found.items() if finding and (not parts or part_of(name) in parts)}


def forbidden_imports(source: str, module: str) -> set[str]:
    if module == "holdfast" or ENTRY_POINTS.fullmatch(module):
        return set()
    part = part_of(module)
    return parts_imported(source, module) - LAYERS[part] - {part, "__version__"}


def test_imports_point_one_way() -> None:
    assert offenders(forbidden_imports) == {}


def test_the_core_uses_no_clock_no_randomness_and_no_io() -> None:
    assert offenders(impurities, "core") == {}


def test_only_engine_statements_write_stock() -> None:
    assert {path.stem for path in STATEMENTS if stock_written(path.read_text())} == set(STOCK_STATEMENTS)


def test_no_module_writes_stock_with_a_statement_of_its_own() -> None:
    assert offenders(lambda source, _: [table for text in texts_in(source) for table in stock_written(text)]) == {}


def test_only_the_engine_uses_the_statements_that_write_stock() -> None:
    others = {part_of(name_of(path)) for path in MODULES} - {"engine"}
    assert offenders(stock_statements_used, *others) == {"holdfast.worker.reaper": {PASSED_IN_STATEMENT}}


def test_every_package_has_a_layer() -> None:
    packages = {path.parent.relative_to(ROOT).parts[0] for path in MODULES if path.parent != ROOT}
    assert packages == set(LAYERS)
    assert {path.stem for path in STATEMENTS} >= {*STOCK_STATEMENTS, "reads", "worker"}


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("holdfast.core.decide", "from holdfast.engine.lane import Lane", {"engine"}),
        ("holdfast.api.app", "from holdfast.web.site import Site", {"web"}),
        ("holdfast.web.site", "from holdfast.api.auth import Caller", set()),
        ("holdfast.runtime.db", "from holdfast.api import auth", {"api"}),
        ("holdfast.runtime.cli", "from holdfast.api import auth", set()),
    ],
)
def test_the_check_finds_an_import_in_the_wrong_direction(module: str, source: str, found: set[str]) -> None:
    assert forbidden_imports(source, module) == found


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import holdfast.runtime.db", "runtime"),
        ("from holdfast import sql", "sql"),
        ("from holdfast.engine.lane import Lane", "engine"),
        ("from holdfast.api import auth as a", "api"),
        ("from ..worker import reaper", "worker"),
        ("from .. import worker", "worker"),
        ("def late():\n    from holdfast.demo import data", "demo"),
    ],
)
def test_the_check_finds_every_form_of_import(source: str, part: str) -> None:
    assert part in parts_imported(source, "holdfast.core.decide")


@pytest.mark.parametrize(
    "source",
    ["import time", "from os import urandom", "from datetime import datetime\nat = datetime.now(UTC)", "import uuid"],
)
def test_the_check_finds_clocks_randomness_and_io(source: str) -> None:
    assert impurities(source, "holdfast.core.decide")


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("from holdfast import sql\nrun(sql.engine.insert_bookings)", {"sql.engine.insert_bookings"}),
        ("from holdfast import sql\nrun(sql.events.set_pool, 1)", {"sql.events.set_pool"}),
        ("from holdfast import sql\nd = sql.engine", {"sql.engine"}),
        ("from holdfast.sql import engine", {"sql.engine"}),
        ("from holdfast import sql\nrun(sql.worker.all_events)", set()),
        ("from holdfast.engine import event_editor as editor\neditor.set_status()", set()),
    ],
)
def test_the_check_finds_every_use_of_an_engine_statement(source: str, used: set[str]) -> None:
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
def test_the_check_distinguishes_writes_to_stock_from_reads(text: str, tables: list[str]) -> None:
    assert stock_written(text) == tables
