"""`holdfast audit`."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from holdfast.engine.auditor import audit_all
from holdfast.engine.findings import Finding
from holdfast.engine.journal_heads import Heads, compare_heads, read_heads
from holdfast.runtime import ids
from holdfast.runtime.cli_database import DataFolder, fail, read_with_database
from holdfast.runtime.db import LOST_ERRORS, Database

T = TypeVar("T")


def audit(
    data: DataFolder = None,
    head: Annotated[
        bool, typer.Option("--head", help="Verify all journals and print their heads, to publish or to archive.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Also compare all journals with this file, which --head has printed.")
    ] = None,
) -> None:
    """Recount all events, verify their journals, and print the findings as JSON. Exits with 1 if there are any."""
    if head and against is not None:
        fail("Choose either --head or --against.")
    saved = _read_saved_heads(against) if against is not None else None
    if head:
        _print_heads(data)
    else:
        _print_findings(data, saved)


def _print_heads(data: Path | None) -> None:
    heads, findings = _read(data, read_heads)
    if findings:
        _print_json({"ok": False, "events": len(heads.events), "findings": findings})
        raise typer.Exit(1)
    _print_json(heads)


def _print_findings(data: Path | None, saved: Heads | None) -> None:
    async def audit_and_compare(database: Database) -> tuple[int, list[Finding]]:
        events, findings = await audit_all(database)
        return events, findings + (await compare_heads(database, saved) if saved is not None else [])

    events, findings = _read(data, audit_and_compare)
    _print_json({"ok": not findings, "events": events, "findings": findings})
    raise typer.Exit(1 if findings else 0)


def _read(data: Path | None, work: Callable[[Database], Awaitable[T]]) -> T:
    """Only findings exit with 1, so an audit that ends with an error must not."""
    try:
        return read_with_database(data, work)
    except typer.Exit:
        raise
    except LOST_ERRORS:
        fail("Lost the connection to the database. Run the command again.")
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        fail(
            f"The audit ended with an error, and says nothing about the database: {type(error).__name__}: {first_line}"
        )


def _read_saved_heads(file: Path) -> Heads:
    try:
        saved = msgspec.json.decode(file.read_bytes(), type=Heads)
    except OSError as error:
        fail(f"Cannot read {file}: {error.strerror}.")
    except (msgspec.DecodeError, UnicodeDecodeError):
        fail(f"{file} is not a file that `holdfast audit --head` has printed.")
    if not saved.is_genuine or any(ids.parse_event_id(head.event) is None for head in saved.events):
        fail(f"Somebody has changed {file}: its hash does not match its events. Use another copy.")
    return saved


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)))
