"""docs/logs.md describes every line that Holdfast can log, with its level and fields, and no other."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast.core.refusals import Refusal
from holdfast.engine import attempt_log
from holdfast.engine.attempt_log import AttemptLine
from holdfast.engine.transition_log import EVENT_LINES, LINE_NAMES, TransitionLine
from holdfast.worker.job import JobStats

PAGE = Path(__file__).parents[2] / "docs" / "logs.md"
LEVELS = {"info", "warning", "error", "exception", "critical"}
COMMON = {"event", "level", "timestamp"}
# Modules whose calls take the name from somewhere else.
DYNAMIC = {"log_lines.py", "transition_log.py"}
# The thread that writes the log, and the logger, make these lines themselves.
OWN = {"log_lines_dropped": ({"warning"}, {"lines"}), "log_line_failed": ({"error"}, {"error"})}
DELIVERY = {"event_id", "number", "kind", "channel", "target", "attempts"}

# What other reservation systems log, and people look for.
NAMES_ELSEWHERE = (
    "attempted", "reserved", "failed, full", "booking_create_pending_request", "booking_create_pending_response",
    "booking_confirmed", "booking_cancelled", "booking_expiry_batch_processed", "inventory_locks_cleanup",
)  # fmt: skip

Lines = dict[str, tuple[set[str], set[str]]]


def lines_in_code() -> Lines:
    found: Lines = defaultdict(lambda: (set(), set()))
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                for name, level, fields in _lines_of(node, path):
                    found[name][0].add(level)
                    found[name][1].update(fields)
    for name in LINE_NAMES.values():
        found[name] = ({"info"}, set(TransitionLine.__struct_fields__) - COMMON)
    for name in EVENT_LINES:
        found[name] = ({"info"}, {"org", "event_id", "actor", "outcome"})
    for name in (attempt_log.HOLD_ATTEMPTED, attempt_log.HOLD_REFUSED, attempt_log.COMMAND_REFUSED):
        found[name] = ({"info"}, set(AttemptLine.__struct_fields__) - COMMON)
    return {**found, **OWN}


def _lines_of(call: ast.Call, path: Path) -> Iterator[tuple[str, str, set[str]]]:
    """The line that this call logs, or the lines that it makes another function log."""
    if (level := _level(call.func)) is not None:
        name = call.args[0]
        if isinstance(name, ast.Constant):
            yield str(name.value), level, set(_fields(call, level))
        else:
            assert path.name in DYNAMIC, f"{path.name} logs a line whose name is not a constant"
    for given, name in zip(call.args, call.args[1:], strict=False):
        levels = {_level(each) for each in ast.walk(given) if isinstance(each, ast.Attribute)} - {None}
        for level in levels:
            assert isinstance(name, ast.Constant)
            assert isinstance(level, str)
            yield str(name.value), level, DELIVERY


def _level(function: ast.expr) -> str | None:
    is_log = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "log"
    return function.attr if is_log and isinstance(function, ast.Attribute) and function.attr in LEVELS else None


def _fields(call: ast.Call, level: str) -> Iterator[str]:
    if level == "exception":
        yield "exception"
    for keyword in call.keywords:
        if keyword.arg is None:
            assert ast.unparse(keyword.value) == "to_builtins(stats)"
            yield from JobStats.__struct_fields__
        else:
            yield "exception" if keyword.arg == "exc_info" else keyword.arg


def lines_on_page() -> Lines:
    found: Lines = {}
    header: list[str] = []
    fields: set[str] = set()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0] in ("`event`", "you look for", "`actor`"):
            header = cells
        elif cells and header[0] == "`event`" and (match := re.fullmatch(r"`(\w+)`", cells[0])):
            cell = dict(zip(header, cells, strict=True))
            if cell["fields"] != "the same":
                fields = set(re.findall(r"`(\w+)`", cell["fields"]))
            assert match[1] not in found, f"{match[1]} has two rows"
            found[match[1]] = (set(cell.get("level", "info").split(", ")), fields)
    return found


def test_names_of_other_systems_lead_to_lines_and_refusals_that_exist() -> None:
    table = PAGE.read_text().partition("| you look for |")[2].partition("\n\n")[0]
    other, ours = zip(*re.findall(r"^\| ([^|]*[a-z][^|]*) \| (.*) \|$", table, re.MULTILINE), strict=True)
    for name in NAMES_ELSEWHERE:
        assert any(name in cell for cell in other), name
    names = {*lines_in_code(), *(refusal.code for refusal in Refusal)}
    assert {name for cell in ours for name in re.findall(r"`(\w+)`", cell)} - names == set()


def test_the_page_has_every_line_of_the_code_and_no_other() -> None:
    code, page = lines_in_code(), lines_on_page()
    assert set(page) == set(code)


def test_the_page_has_the_level_and_the_fields_of_every_line() -> None:
    page = lines_on_page()
    for name, (levels, fields) in lines_in_code().items():
        shown = {"error" if level == "exception" else level for level in levels}
        assert page[name] == (shown, fields), name
