"""Series of events, and the jobs that make many events from one template."""

import asyncio
import hashlib
from datetime import datetime
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, json

from holdfast import sql
from holdfast.api.call import ApiResponse, Call
from holdfast.api.event_handlers import check_providers
from holdfast.api.requests import SeriesQuery
from holdfast.api.responses import SeriesJobError, SeriesJobView, SeriesList, SeriesView
from holdfast.core.quotas import SERIES_MAX
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.core.series_schemas import SeriesChange, SeriesEventsNew, SeriesNew
from holdfast.core.stock_schemas import count_seats
from holdfast.engine.rows import document
from holdfast.engine.stock_editor import check_quotas
from holdfast.runtime import ids

# Jobs of one org that are not done.
JOBS_MAX: Final = 20
# A page ends with the series that brings it to roughly this size.
SERIES_PAGE_BYTES: Final = 1024 * 1024


class SeriesRow(Struct, frozen=True):
    id: bytes
    org_id: bytes
    title: str
    description: str | None
    details: dict[str, Any]
    created_at: datetime
    # Whether the public can see it, because one of its events is published.
    is_published: bool


class ListedSeriesRow(SeriesRow, frozen=True):
    # How many series the page would have if they were small.
    found: int


class JobRow(Struct, frozen=True):
    id: bytes
    org_id: bytes
    series_id: bytes
    fingerprint: bytes
    total: int
    position: int
    failed: int
    errors: list[SeriesJobError]
    publish: bool
    attempts: int
    created_at: datetime
    done_at: datetime | None


async def create_series(call: Call, body: SeriesNew) -> ApiResponse[SeriesView]:
    series, org = ids.new_id(), call.caller.org
    async with call.services.database.org(org).transaction() as scope:
        await scope.execute(sql.series.lock_org, org)
        if await scope.fetchval(sql.series.count_series, org) >= SERIES_MAX:
            raise RefusedError(Refusal.LIMIT_REACHED, f"An org may have at most {SERIES_MAX:,} series.")
        await scope.execute(
            *sql.series.insert_series(
                id=series,
                org=org,
                title=body.title,
                description=body.description,
                details=document(body.details),
            )
        )
    location = f"/v1/series/{ids.format_series_id(series)}".encode()
    return ApiResponse(_series_view(await _load_series(call, series)), 201, ((b"location", location),))


async def list_series(call: Call, query: SeriesQuery) -> ApiResponse[SeriesList]:
    """Staff list every series of their org; everyone else lists series with published events."""
    org = call.caller_or_none.org if call.caller_or_none else None
    if org is None and query.org is not None:
        org = await call.services.database.shared.fetchval(sql.credentials.org_by_slug, query.org)
        if org is None:
            return ApiResponse(SeriesList(items=[], next=None))
    after = ids.parse_series_id(query.after) if query.after is not None else None
    if query.after is not None and after is None:
        raise invalid_field("after", "must be the `next` of the previous page")
    rows = await call.services.database.all_events.rows(
        ListedSeriesRow,
        *sql.series.list(
            org=org,
            only_published=not call.is_staff,
            after=after,
            limit=query.limit + 1,
            bytes_max=SERIES_PAGE_BYTES,
        ),
    )
    items = [_series_view(row) for row in rows[: query.limit]]
    has_more = bool(rows) and rows[0].found > len(items)
    return ApiResponse(SeriesList(items=items, next=items[-1].id if has_more else None))


async def get_series(call: Call) -> ApiResponse[SeriesView]:
    return ApiResponse(_series_view(await _require_series(call)))


async def change_series(call: Call, body: SeriesChange) -> ApiResponse[SeriesView]:
    series = await _require_series(call)
    await call.services.database.org(series.org_id).execute(
        *sql.series.change_series(
            id=series.id,
            title=None if body.title is UNSET else body.title,
            description=None if body.description is UNSET else body.description,
            sets_description=body.description is not UNSET,
            details=None if body.details is UNSET else document(body.details),
        )
    )
    return ApiResponse(_series_view(await _load_series(call, series.id)))


async def create_series_events(call: Call, body: SeriesEventsNew) -> ApiResponse[SeriesJobView]:
    """Store a job for the worker. Refuse anything that would fail for every event."""
    series = await _require_series(call)
    fingerprint = await asyncio.to_thread(lambda: hashlib.sha256(json.encode(body)).digest())
    request_key = _request_key(call, fingerprint)
    known = await _find_job(call, series.id, request_key)
    is_new = known is None and await _insert_job(call, series, body, request_key, fingerprint)
    job = known or await _find_job(call, series.id, request_key)
    assert job is not None
    if job.fingerprint != fingerprint:
        raise RefusedError(Refusal.IDEMPOTENCY_KEY_REUSED)
    replayed = () if is_new else ((b"idempotency-replayed", b"true"),)
    location = f"/v1/series-jobs/{ids.format_series_job_id(job.id)}".encode()
    return ApiResponse(_job_view(job), 202, ((b"location", location), *replayed))


async def get_series_job(call: Call) -> ApiResponse[SeriesJobView]:
    job = await call.services.database.org(call.caller.org).row(
        JobRow, sql.series.job, call.path_id(ids.parse_series_job_id)
    )
    if job is None or job.org_id != call.caller.org:
        raise RefusedError(Refusal.NOT_FOUND)
    return ApiResponse(_job_view(job))


def _request_key(call: Call, fingerprint: bytes) -> bytes:
    """Repeating a request starts no second job, even without a key."""
    key = call.headers.get(b"idempotency-key")
    return fingerprint if key is None else hashlib.sha256(b"key\0" + key).digest()


async def _insert_job(
    call: Call, series: SeriesRow, body: SeriesEventsNew, request_key: bytes, fingerprint: bytes
) -> bool:
    """Returns whether this request was the first with its key."""
    check_providers(call, body.template.providers)
    starts = await asyncio.to_thread(body.expand)
    scope = call.services.database.org(series.org_id)
    await check_quotas(
        scope,
        series.org_id,
        call.services.settings.quotas,
        new_events=len(starts),
        new_seats=len(starts) * count_seats(body.template.pools),
    )
    if await scope.fetchval(sql.series.count_unfinished_jobs, series.org_id) >= JOBS_MAX:
        raise RefusedError(
            Refusal.LIMIT_REACHED, f"{JOBS_MAX} jobs of your org are not done yet. Wait until one of them is."
        )
    inserted = await scope.execute(
        *sql.series.insert_job(
            id=ids.new_id(),
            org=series.org_id,
            series=series.id,
            request_key=request_key,
            fingerprint=fingerprint,
            template=await asyncio.to_thread(document, body.template),
            starts=starts,
            publish=body.publish,
            actor=call.caller.actor,
        )
    )
    return inserted == "INSERT 0 1"


async def _find_job(call: Call, series: bytes, request_key: bytes) -> JobRow | None:
    return await call.services.database.org(call.caller.org).row(JobRow, sql.series.job_by_key, series, request_key)


async def _require_series(call: Call) -> SeriesRow:
    """The series in the path, if it exists and the caller may see it."""
    series = await _load_series(call, call.path_id(ids.parse_series_id))
    is_foreign = call.caller_or_none is not None and call.caller_or_none.org != series.org_id
    if is_foreign or not (series.is_published or call.is_staff):
        raise RefusedError(Refusal.NOT_FOUND)
    return series


async def _load_series(call: Call, series: bytes) -> SeriesRow:
    row = await call.services.database.shared.row(SeriesRow, sql.series.series, series)
    if row is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return row


def _series_view(row: SeriesRow) -> SeriesView:
    return SeriesView(
        id=ids.format_series_id(row.id),
        title=row.title,
        description=row.description,
        details=row.details,
        created_at=row.created_at,
    )


def _job_view(job: JobRow) -> SeriesJobView:
    return SeriesJobView(
        id=ids.format_series_job_id(job.id),
        series=ids.format_series_id(job.series_id),
        status=_job_status(job),
        total=job.total,
        created=job.position - job.failed,
        failed=job.failed,
        errors=job.errors,
        publish=job.publish,
        created_at=job.created_at,
        done_at=job.done_at,
    )


def _job_status(job: JobRow) -> Literal["waiting", "running", "done", "failed"]:
    if job.done_at is not None:
        return "failed" if job.failed == job.total else "done"
    return "running" if job.position or job.attempts else "waiting"
