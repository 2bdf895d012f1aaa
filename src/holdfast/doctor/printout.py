"""What `holdfast doctor` prints for people."""

from collections import Counter
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.doctor.check import CheckResult, Level
from holdfast.doctor.diagnosis import Diagnosis

_MARKS: Final = {
    Level.OK: ("✓", "green"),
    Level.SKIPPED: ("-", "dim"),
    Level.WARNING: ("!", "yellow"),
    Level.PROBLEM: ("✗", "bold red"),
}


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """A table in a terminal. Elsewhere one line per result and one per remedy, so that programs can search them."""
    if console.is_terminal:
        console.print(_make_table(diagnosis.results))
    else:
        for result in diagnosis.results:
            console.print(_first_line(result), soft_wrap=True)
            if result.remedy is not None:
                console.print(Text(f"  → {result.remedy}"), soft_wrap=True)
    console.print(_summarise(diagnosis))


def _first_line(result: CheckResult) -> Text:
    return Text(f"{result.level.value:<8}{result.subject:<12}{result.text}")


def _make_table(results: list[CheckResult]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    # Otherwise a long path would lose its end.
    table.add_column(overflow="fold")
    before = None
    for result in results:
        mark, style = _MARKS[result.level]
        text = Text(result.text)
        if result.remedy is not None:
            text.append(f"\n→ {result.remedy}", "cyan")
        table.add_row(Text(mark, style), Text("" if result.subject == before else result.subject, "bold"), text)
        before = result.subject
    return table


def _summarise(diagnosis: Diagnosis) -> Text:
    counts = Counter(result.level for result in diagnosis.results)
    problems, warnings = counts[Level.PROBLEM], counts[Level.WARNING]
    style = "bold green" if diagnosis.ok else "bold red"
    text = f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}."
    return Text(f"\n{text[0].upper()}{text[1:]}", style)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
