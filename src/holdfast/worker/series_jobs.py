"""Makes the events of series. A job has a template and a list of starts, and makes the events one by one."""

import asyncio
import time
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct, ValidationError, json, structs

from holdfast import sql
from holdfast.core.event_schemas import EventNew
from holdfast.core.quotas import Quotas
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.series_schemas import make_event
from holdfast.core.states import EventStatus
from holdfast.engine.event_editor import create_event, set_status
from holdfast.runtime import ids
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import FairQueue
from holdfast.runtime.lease_queue import LeaseQueue

log = structlog.get_logger()

# Longer than the largest event takes. Each event renews the lease.
LEASE_SECONDS: Final = 30
# After this long, the org's other jobs and the other orgs get their turn.
TURN_SECONDS: Final = 5.0
# The worker skips an event that has failed this often for no known reason, so that the others can go on.
ATTEMPTS_MAX: Final = 5
ERRORS_MAX: Final = 100

_decode_template: Final = json.Decoder(EventNew).decode


class ClaimedJob(Struct, frozen=True):
    id: bytes
    org_id: bytes
    series_id: bytes
    # A template can be a megabyte, so a thread decodes it.
    template: str
    starts: list[datetime]
    publish: bool
    actor: str
    position: int
    attempts: int


class EventError(Struct, frozen=True):
    """As in `api.responses.SeriesJobError`."""

    starts_at: datetime
    code: str
    detail: str


def _read_template(job: ClaimedJob) -> EventNew | RefusedError:
    """The template, or why this version of Holdfast no longer accepts it. The job then ends with errors."""
    try:
        template = _decode_template(job.template)
    except RefusedError as error:
        return error
    except ValidationError as error:
        return RefusedError(Refusal.INVALID_REQUEST, str(error))
    return structs.replace(template, series=ids.format_series_id(job.series_id))


class SeriesJobs:
    """Any number of workers may run at once. The id of each event follows from its job and its position, so an event
    that a worker made before it crashed, or while another worker had taken over, is the same event."""

    def __init__(self, database: Database, quotas: Quotas) -> None:
        self._database = database
        self._quotas = quotas
        self.queue = FairQueue(
            LeaseQueue(
                name="series_jobs",
                row_type=ClaimedJob,
                claim_statement=sql.series.claim_jobs,
                claim_max=1,
                lease_seconds=LEASE_SECONDS,
                label=lambda job: ids.format_series_job_id(job.id),
            ),
            sql.series.orgs_with_waiting_jobs,
            database.all_events,
            self._work,
        )

    async def _work(self, job: ClaimedJob) -> None:
        """Make events until the turn ends. Then the job is due again at once."""
        template = await asyncio.to_thread(_read_template, job)
        position, attempts, turn_ends_at = job.position, job.attempts, time.monotonic() + TURN_SECONDS
        while position < len(job.starts) and time.monotonic() < turn_ends_at:
            error = await self._make(job, template, position, is_last_attempt=attempts >= ATTEMPTS_MAX)
            if not await self._advance(job, position, error):
                log.warning("series_job_taken_over", job=ids.format_series_job_id(job.id))
                return
            position, attempts = position + 1, 1
        await self._database.org(job.org_id).execute(sql.series.release_job, job.id, position)

    async def _make(
        self, job: ClaimedJob, template: EventNew | RefusedError, position: int, *, is_last_attempt: bool
    ) -> EventError | None:
        """Create and publish one event. Neither has an effect if it has already happened."""
        start = job.starts[position]
        event = ids.derive_id(job.id, position)
        try:
            if isinstance(template, RefusedError):
                raise template
            new = await asyncio.to_thread(make_event, template, start, position)
            await create_event(self._database, job.org_id, new, job.actor, self._quotas, event)
            if job.publish:
                await self._publish(job, event)
        except RefusedError as error:
            return EventError(start, error.refused.refusal.code, str(error))
        except Exception as error:
            if not is_last_attempt:
                raise
            log.error("series_event_skipped", job=ids.format_series_job_id(job.id), error=type(error).__name__)
            return EventError(start, Refusal.INTERNAL.code, Refusal.INTERNAL.title)
        return None

    async def _publish(self, job: ClaimedJob, event: bytes) -> None:
        try:
            await set_status(self._database, job.org_id, event, EventStatus.ACTIVE, job.actor)
        except RefusedError as error:
            # Somebody cancelled the event between a crash and the retry.
            if error.refused.refusal is not Refusal.EVENT_ENDED:
                raise

    async def _advance(self, job: ClaimedJob, position: int, error: EventError | None) -> bool:
        """Whether the job was still ours."""
        advanced = await self._database.org(job.org_id).fetchval(
            *sql.series.advance_job(
                id=job.id,
                position=position,
                error=json.encode(error).decode() if error is not None else None,
                errors_max=ERRORS_MAX,
                lease_seconds=LEASE_SECONDS,
            )
        )
        return advanced is not None
