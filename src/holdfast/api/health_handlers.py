"""Health checks for load balancers and process managers."""

from msgspec import convert

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.responses import AuditSummary, Health, Readiness, RedisReadiness
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.runtime.db import BLOCKED_ERRORS, LOST_ERRORS


async def healthz(call: Call) -> ApiResponse[Health]:
    return ApiResponse(Health(status="ok"))


async def readyz(call: Call) -> ApiResponse[Readiness]:
    """Ready if the database responds, every task runs and the process is not about to stop. A task that has failed
    restarts after a moment. Findings of the auditor are serious, but do not make the process unready, nor does Redis,
    without which it sells as well."""
    health = call.services.task_health
    if health.is_stopping:
        raise RefusedError(Refusal.BUSY, "This process is stopping. Send requests to another one.")
    try:
        audit = await call.services.database.all_events.row(AuditSummary, sql.audit.summary)
    except (*LOST_ERRORS, *BLOCKED_ERRORS) as error:
        raise RefusedError(Refusal.BUSY, "PostgreSQL does not answer.") from error
    assert audit is not None
    if not health.is_good:
        failed = ", ".join(report.name for report in health.reports if not report.is_running)
        raise RefusedError(Refusal.BUSY, f"Restarting after a failure: {failed}.")
    redis = call.services.redis
    tasks = health.reports + (redis.tasks if redis is not None else [])
    report = convert(redis.report, RedisReadiness, from_attributes=True) if redis is not None else None
    return ApiResponse(Readiness(status="ready", audit=audit, tasks=tasks, redis=report))
