"""Health checks for load balancers and process managers."""

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.responses import AuditSummary, Health, Readiness


async def healthz(call: Call) -> ApiResponse[Health]:
    return ApiResponse(Health(status="ok"))


async def readyz(call: Call) -> ApiResponse[Readiness]:
    """Ready once the database responds. The auditor's findings must be zero, but do not take the process down."""
    audit = await call.services.database.all_events.row(AuditSummary, sql.worker.audit_summary)
    assert audit is not None
    return ApiResponse(Readiness(status="ready", audit=audit))
