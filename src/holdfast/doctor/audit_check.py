"""What the auditor has found."""

from datetime import datetime

from msgspec import Struct

from holdfast import sql
from holdfast.doctor.check import Results, ok, problem
from holdfast.doctor.installation import Installation


class AuditTotals(Struct, frozen=True):
    events: int
    last_at: datetime | None
    findings: int


async def check_audit(installation: Installation) -> Results:
    database = await installation.database.require_schema()
    totals = await database.all_events.row(AuditTotals, sql.audit.summary)
    assert totals is not None
    if totals.findings:
        yield problem(
            f"The auditor has {totals.findings} findings: stock, payments or a journal do not add up.",
            "Run `holdfast audit` to see them. docs/operating.md says what to do, under Counters that do not add up.",
        )
    elif totals.last_at is None:
        yield ok("The auditor has nothing to report. No event has been audited yet.")
    else:
        yield ok(
            f"The auditor has no findings in {totals.events} events. Last audit: {totals.last_at:%Y-%m-%d %H:%M} UTC."
        )
