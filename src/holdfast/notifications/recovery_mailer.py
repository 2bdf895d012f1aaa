"""Emails guests the links that recover their bookings.

Each request is a row that a worker leases. The worker looks up the bookings, stores the hash of a new link, sends the
email and deletes the request. If it dies on the way, another worker starts again, so a guest may get two emails.
Once a link has been used or has expired, Holdfast keeps nothing about the guest.
"""

import asyncio
import secrets
from email.message import EmailMessage
from typing import Final

import structlog
from msgspec import Struct

from holdfast import sql
from holdfast.core.notification_rules import RECOVERY, EmailLimit, recipient_hash
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.claimed_delivery import DELIVERED, FAILED
from holdfast.notifications.recovery_email import RecoveryEmail, compose_recovery
from holdfast.notifications.smtp import Smtp
from holdfast.runtime import metrics
from holdfast.runtime.backoff import Backoff
from holdfast.runtime.credentials import hash_key
from holdfast.runtime.db import Database
from holdfast.runtime.fair_queue import FairQueue
from holdfast.runtime.lease_queue import LeaseQueue

log = structlog.get_logger()

LINK_SECONDS: Final = 30 * 60
# To one recipient, from all orgs together. An email counts only if there are bookings.
EMAILS_PER_HOUR: Final = 3
EMAILS_PER_DAY: Final = 10

# How many requests of one org a worker handles at the same time, and of all orgs together while it sends.
CLAIM_MAX: Final = 4
SENDS_MAX: Final = 8
# Longer than a send takes, including its wait for a turn.
SEND_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 120.0
RETRIES: Final = Backoff((5, 30, 120, 600, 1800, 3600))
DAY_SECONDS: Final = 86_400
# A later email would only confuse its reader.
RETRY_FOR_SECONDS: Final = DAY_SECONDS
DELETE_MAX: Final = 1_000


class RecoveryRequest(Struct, frozen=True):
    id: bytes
    org: bytes
    email: str
    language: str
    attempts: int


class Recipient(Struct, frozen=True):
    """An org, and the address in a guest's bookings. The email goes there, not to the address that somebody typed into
    the form."""

    slug: str
    org_name: str
    email: str


class RecoveryMailer:
    def __init__(self, database: Database, smtp: Smtp, sender: str, public_url: str) -> None:
        self._database = database
        self._smtp = smtp
        self._sender = sender
        self._public_url = public_url.rstrip("/")
        self._sends = asyncio.Semaphore(SENDS_MAX)
        self.queue = FairQueue(
            LeaseQueue(
                name="recovery",
                row_type=RecoveryRequest,
                claim_statement=sql.recovery.claim_requests,
                claim_max=CLAIM_MAX,
                lease_seconds=LEASE_SECONDS,
                label=lambda request: request.id.hex(),
            ),
            sql.recovery.orgs_with_waiting_requests,
            database.all_events,
            self._handle,
        )

    async def _handle(self, request: RecoveryRequest) -> None:
        recipient = await self._database.org(request.org).row(
            Recipient, *sql.recovery.recipient(org=request.org, email=request.email)
        )
        if recipient is not None and await self._is_within_limits(request, recipient):
            try:
                await self._mail_link(request, recipient)
                metrics.DELIVERIES.add(RECOVERY, DELIVERED)
            except UndeliveredError as error:
                if not error.is_permanent:
                    metrics.DELIVERIES.add(RECOVERY, "postponed")
                    await self._postpone(request, str(error))
                    return
                metrics.DELIVERIES.add(RECOVERY, FAILED)
                log.info("recovery_failed", request=request.id.hex(), detail=str(error))
        await self._database.org(request.org).execute(sql.recovery.delete_request, request.id)

    async def _is_within_limits(self, request: RecoveryRequest, recipient: Recipient) -> bool:
        """Retries do not count."""
        if request.attempts > 1:
            return True
        # This hash is the same in all orgs.
        recipient_key = recipient_hash(EmailLimit.HOLD, request.org, recipient.email)
        counted = await self._database.shared.fetchval(
            *sql.recovery.count_email(recipient=recipient_key, per_hour=EMAILS_PER_HOUR, per_day=EMAILS_PER_DAY)
        )
        return counted is not None

    async def _mail_link(self, request: RecoveryRequest, recipient: Recipient) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS), self._sends:
                token = await self._create_link(request, recipient)
                await self._smtp.send(self._compose(request, recipient, token))
        except TimeoutError:
            raise UndeliveredError("The email was not sent in time.") from None

    async def _create_link(self, request: RecoveryRequest, recipient: Recipient) -> str:
        token = secrets.token_urlsafe(32)
        await self._database.org(request.org).execute(
            *sql.recovery.insert_link(
                token_hash=hash_key(token),
                request=request.id,
                org=request.org,
                email=recipient.email,
                valid_seconds=LINK_SECONDS,
            )
        )
        return token

    def _compose(self, request: RecoveryRequest, recipient: Recipient, token: str) -> EmailMessage:
        email = RecoveryEmail(
            language=request.language,
            to=recipient.email,
            org_name=recipient.org_name,
            link=f"{self._public_url}/o/{recipient.slug}/recover/link?token={token}",
            valid_minutes=LINK_SECONDS // 60,
            message_id=f"<recovery.{request.id.hex()}@holdfast>",
        )
        return compose_recovery(email, self._sender)

    async def _postpone(self, request: RecoveryRequest, detail: str) -> None:
        log.info("recovery_postponed", request=request.id.hex(), attempts=request.attempts, detail=detail)
        await self._database.org(request.org).execute(
            *sql.recovery.postpone_request(
                id=request.id, attempts=request.attempts, seconds=RETRIES.seconds_after(request.attempts)
            )
        )


async def delete_expired(database: Database) -> int:
    """Delete expired links, requests that nobody could mail, and old counts. Returns how many rows there were."""
    scope = database.shared
    deleted = [
        await scope.execute(sql.recovery.delete_expired_links, DELETE_MAX),
        await scope.execute(sql.recovery.delete_old_requests, RETRY_FOR_SECONDS, DELETE_MAX),
        await scope.execute(sql.recovery.delete_old_counts, DAY_SECONDS, DELETE_MAX),
    ]
    return sum(int(tag.rpartition(" ")[2]) for tag in deleted)
