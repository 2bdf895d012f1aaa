"""Whether the process lives, and whether it can serve."""

from holdfast import sql
from holdfast.http.operation import Answer, Call
from holdfast.http.views import AuditSummary, Health, Readiness


async def healthz(call: Call) -> Answer:
    return Answer(Health(status="ok"))


async def readyz(call: Call) -> Answer:
    """Ready once the database answers. What the auditor last found is told too: it has to be nothing."""
    row = await call.house.pool.fetchrow(sql.work.audit_summary)
    audit = AuditSummary(events=row["events"], findings=row["findings"], last_at=row["last_at"])
    return Answer(Readiness(status="ready", audit=audit))
