"""Recounts the stock from first principles, and verifies the journal. A finding means that Holdfast has a bug, or that
somebody has written to the tables.

The auditor shares only the table of states with the engine. It derives in SQL what counters, seats, bookings and
payments should be, from live lines and from the journal.
"""

import time
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.engine.audit_chain import VerifiedChain, verify_chain
from holdfast.engine.audit_history import check_history
from holdfast.engine.audit_journal import check_recorded_stock
from holdfast.engine.audit_payments import check_payments
from holdfast.engine.audit_stock import check_stock
from holdfast.engine.check_guard import guard_check
from holdfast.engine.findings import EventFindings, Finding
from holdfast.engine.rows import document
from holdfast.runtime import ids
from holdfast.runtime.db import Database

log = structlog.get_logger()

EVENTS_MAX: Final = 200
# A run that lasted longer would look like a job that hangs: a run counts as a success when it ends, and
# HoldfastCriticalJobSilent waits for one.
RUN_SECONDS: Final = 300.0

# The checks of an event besides that of its chain, by the names that a failed one is reported under.
CHECKS: Final = {
    "stock": check_stock,
    "history": check_history,
    "payments": check_payments,
    "recorded stock": check_recorded_stock,
}


class Audit(Struct, frozen=True):
    """The findings in one snapshot of an event, and its version in that snapshot, or None if somebody has deleted the
    event. `chain` is the end of its journal, if that is intact."""

    findings: list[Finding]
    version: int | None
    chain: VerifiedChain | None


async def run_once(database: Database) -> list[Finding]:
    """Audit up to `EVENTS_MAX` events whose journal has grown since their last audit, and store the findings. Of their
    chains, verify what is new. After `RUN_SECONDS`, leave the rest to the next run, which starts with those that have
    waited longest."""
    started_at = time.monotonic()
    findings: list[Finding] = []
    for row in await database.all_events.fetch(sql.audit.events_to_audit, EVENTS_MAX):
        findings += await _audit_and_save(database, row["id"])
        if time.monotonic() - started_at >= RUN_SECONDS:
            break
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
        since = await database.event(event).row(VerifiedChain, sql.audit.verified_chain, event)
        audit = await audit_event(database, event, since=since)
    except Exception as error:
        log.error("audit_failed", event_id=ids.format_event_id(event), error=type(error).__name__)
        await database.event(event).execute(sql.audit.postpone, event)
        return []
    if audit.version is None:
        return audit.findings
    await database.event(event).execute(
        *sql.audit.save(
            event=event,
            version=audit.version,
            findings=document(audit.findings),
            chain_version=audit.chain.version if audit.chain else None,
            chain_head=audit.chain.head if audit.chain else None,
        )
    )
    return audit.findings


async def audit_all(database: Database) -> tuple[int, list[Finding]]:
    """The number of events, and all findings."""
    events = [row["id"] for row in await database.all_events.fetch(sql.audit.all_events)]
    findings: list[Finding] = []
    for event in events:
        findings += (await audit_event(database, event)).findings
    return len(events), findings


async def audit_event(database: Database, event: bytes, *, since: VerifiedChain | None = None) -> Audit:
    """Check everything about the event. Its chain is known to be intact up to `since`. A check that fails because of
    what it reads is a finding, so nobody can hide damage behind a row that breaks the auditor."""
    findings = EventFindings(event)
    async with database.event(event).transaction("repeatable_read", readonly=True) as scope:
        version: int | None = await scope.fetchval(sql.audit.version, event)
        if version is not None:
            for name, check in CHECKS.items():
                await guard_check(scope, name, findings, check(scope, event, findings))
        chain = await verify_chain(scope, event, findings, since=since)
    return Audit(findings.found, version, chain)
