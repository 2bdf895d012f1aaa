"""Whether the process lives, and whether it can serve."""

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.responses import AuditSummary, Health, Readiness


async def healthz(call: Call) -> ApiResponse:
    return ApiResponse(Health(status="ok"))


async def readyz(call: Call) -> ApiResponse:
    """Ready once the database answers. What the auditor last found is told too: it has to be nothing."""
    row = await call.services.pool.fetchrow(sql.worker.audit_summary)
    audit = AuditSummary(events=row["events"], findings=row["findings"], last_at=row["last_at"])
    return ApiResponse(Readiness(status="ready", audit=audit))
