"""Recounts the stock from first principles. A finding means a bug.

The auditor shares only the table of states with the engine. It derives in SQL what counters, seats and bookings should
be, from live lines and from the journal.
"""

from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.states import edges
from holdfast.engine.rows import document
from holdfast.runtime import ids
from holdfast.runtime.db import Database, Record

log = structlog.get_logger()

EVENTS_MAX: Final = 200


class Finding(Struct, frozen=True):
    """An inconsistency. `what` names the check that found it."""

    event: str
    what: str
    subject: str
    detail: str


async def run_once(database: Database) -> list[Finding]:
    """Audit up to `EVENTS_MAX` events whose journal has grown since their last audit, and store the findings."""
    findings: list[Finding] = []
    for row in await database.all_events.fetch(sql.worker.events_to_audit, EVENTS_MAX):
        findings += await _audit_and_save(database, row["id"])
    for finding in findings:
        log.error(
            "audit_finding",
            event_id=finding.event,
            what=finding.what,
            subject=finding.subject,
            detail=finding.detail,
        )
    return findings


async def _audit_and_save(database: Database, event: bytes) -> list[Finding]:
    """If the audit of one event fails, the others go on, and the event waits behind them for its next audit."""
    try:
        findings, version = await audit_event(database, event)
    except Exception as error:
        log.error("audit_failed", event_id=ids.format_event_id(event), error=type(error).__name__)
        await database.event(event).execute(sql.worker.postpone_audit, event)
        return []
    await database.event(event).execute(sql.worker.save_audit, event, version, document(findings))
    return findings


async def audit_all(database: Database) -> tuple[int, list[Finding]]:
    """The number of events, and all findings."""
    events = [row["id"] for row in await database.all_events.fetch(sql.worker.all_events)]
    findings: list[Finding] = []
    for event in events:
        findings += (await audit_event(database, event))[0]
    return len(events), findings


async def audit_event(database: Database, event: bytes) -> tuple[list[Finding], int]:
    """The findings in one snapshot of the event, and its version in that snapshot."""
    allowed = edges()
    sources = ["" if source is None else source.value for source, _, _ in allowed]
    targets = [target.value for _, target, _ in allowed]
    async with database.event(event).transaction("repeatable_read", readonly=True) as scope:
        version: int = await scope.fetchval(sql.worker.audit_version, event)
        pools = await scope.fetch(sql.worker.audit_pools, event)
        seats = await scope.fetch(sql.worker.audit_seats, event)
        lines = await scope.fetch(sql.worker.audit_lines, event)
        users = await scope.fetch(sql.worker.audit_users, event)
        strays = await scope.fetch(sql.worker.audit_strays, event)
        money = await scope.fetch(sql.worker.audit_money, event)
        journal = await scope.fetch(sql.worker.audit_journal, event)
        transitions = await scope.fetch(sql.worker.audit_transitions, event, sources, targets)
    findings = [
        *(_finding(event, "pool_counts", row["code"], row) for row in pools),
        *(_finding(event, "seat_lines", row["label"], row) for row in seats),
        *(_finding(event, "booking_lines", ids.format_booking_id(event, row["id"]), row) for row in lines),
        *(_finding(event, "one_per_user", ids.format_booking_id(event, row["id"]), row) for row in users),
        *(_finding(event, "stray", ids.format_booking_id(event, row["id"]), row) for row in strays),
        *(_finding(event, "money", ids.format_payment_id(event, row["id"]), row) for row in money),
        *(_finding(event, "journal_gap", str(row["version"]), row) for row in journal),
        *(_finding(event, "transition", ids.format_booking_id(event, row["id"]), row) for row in transitions),
    ]
    return findings, version


def _finding(event: bytes, what: str, subject: str, row: Record) -> Finding:
    detail = ", ".join(f"{name} {value}" for name, value in row.items() if not isinstance(value, bytes))
    return Finding(ids.format_event_id(event), what, subject, detail)
