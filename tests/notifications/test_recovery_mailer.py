"""A guest who asks for a link gets one that works once. Nobody else gets one, no mailbox is flooded, and no request is
lost."""

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec import structs

from holdfast import sql
from holdfast.core.commands import Accepted, TransferBooking
from holdfast.core.notification_rules import RECOVERY
from holdfast.core.states import Status, Verb
from holdfast.notifications import recovery_mailer
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.recovery_mailer import EMAILS_PER_DAY, EMAILS_PER_HOUR, RecoveryMailer, delete_expired
from holdfast.notifications.smtp import Smtp
from holdfast.runtime import db, ids, metrics
from holdfast.runtime.credentials import hash_key
from holdfast.web.session import new_session
from tests.support.engine_harness import (
    EventHandle,
    async_test,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    one_pool,
    run_commands,
    shift_clock,
)

ADA: Final = "ada@example.org"
HOUR: Final = 3600
MINUTE: Final = 60
# Later than any request can wait for its next attempt.
LATER: Final = 2 * HOUR
KELVIN: Final = "\u212a"


class FakeSmtp:
    """A mail server that keeps what it gets. Each of `failures` makes it fail once."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.failures: list[Exception] = []

    async def send(self, message: EmailMessage) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append(message)


class Recovery:
    """A mailer that works when the test says so."""

    def __init__(self, connection: db.Connection, pool: db.Pool) -> None:
        self.connection = connection
        self.database = db.Database(pool)
        self.smtp = FakeSmtp()

    async def book(self, event: EventHandle, email: str = ADA, user: str | None = None) -> bytes:
        """A confirmed booking of a new guest, or of this user."""
        booking = await self.hold(event, email, user)
        await run_commands(self.connection, [new_action_command(event, booking, Verb.CONFIRM)])
        return booking

    async def hold(self, event: EventHandle, email: str = ADA, user: str | None = None) -> bytes:
        command = structs.replace(new_hold_command(event, user=user or new_session().user(event.org)), email=email)
        (outcome,) = await run_commands(self.connection, [command])
        assert isinstance(outcome, Accepted)
        return outcome.booking.id

    async def request(self, org: bytes, email: str = ADA, **changes: Any) -> bool:
        """Store a request as the page does. Returns whether it was within the limits."""
        values: dict[str, Any] = {"client": secrets.token_bytes(12), "per_address": 100, "per_org": 100, **changes}
        stored = await self.database.shared.fetchval(
            *sql.recovery.insert_request(id=ids.new_id(), org=org, org_key=org, email=email, language="en", **values)
        )
        return stored is not None

    async def work(self) -> list[str]:
        """Handle every due request, and return whom an email went to."""
        self.smtp.messages.clear()
        mailer = RecoveryMailer(self.database, cast(Smtp, self.smtp), "tickets@example.net", "https://shop.example/")
        await mailer.queue.run_once()
        await mailer.queue.wait()
        await mailer.queue.close()
        return [str(message["To"]) for message in self.smtp.messages]

    async def ask(self, org: bytes, email: str = ADA) -> list[str]:
        await self.request(org, email)
        return await self.work()

    async def count(self, table: str) -> int:
        count: int = await self.connection.fetchval(f"SELECT count(*) FROM {table}")
        return count

    async def use(self, org: bytes, token: str) -> str | None:
        email: str | None = await self.database.shared.fetchval(sql.recovery.use_link, hash_key(token), org)
        return email

    def tokens(self) -> list[str]:
        return [token_in(message) for message in self.smtp.messages]


def token_in(message: EmailMessage) -> str:
    """The token of the link, which is the same in the text and in the HTML."""
    bodies = [message.get_body((kind,)) for kind in ("plain", "html")]
    links = {link for body in bodies if body for link in re.findall(r"https?://[^\s\"<]+", body.get_content())}
    (link,) = links
    token: str = parse_qs(urlsplit(link).query)["token"][0]
    return token


@asynccontextmanager
async def new_recovery(url: str) -> AsyncIterator[Recovery]:
    pool = await db.create_pool(url, 6)
    async with lane_connection(url) as connection:
        try:
            yield Recovery(connection, pool)
        finally:
            await pool.close()


async def new_sale(connection: db.Connection) -> EventHandle:
    return await new_event(connection, pools=one_pool(1000))


@async_test
async def test_a_guest_gets_one_link_that_works_once(database: str) -> None:
    async with new_recovery(database) as recovery:
        event = await new_sale(recovery.connection)
        await recovery.book(event)
        await recovery.book(event)
        assert await recovery.ask(event.org) == [ADA]
        (token,) = recovery.tokens()
        assert await recovery.count("recovery_request") == 0, "the address is not kept"
        assert await recovery.connection.fetchval("SELECT token_hash FROM recovery_link") == hash_key(token)
        assert token not in str(await recovery.connection.fetch("SELECT * FROM recovery_link"))
        assert [await recovery.use(event.org, token) for _ in range(2)] == [ADA, None]
        assert await recovery.count("recovery_link") == 0
        assert await recovery.work() == []


@async_test
async def test_nobody_without_recoverable_bookings_gets_an_email(database: str) -> None:
    async with new_recovery(database) as recovery:
        event, other = await new_sale(recovery.connection), await new_sale(recovery.connection)
        await recovery.hold(event, "held@example.org")
        await recovery.book(event, "customer@example.org", user="ada")
        await recovery.book(event, "named-like-a-guest@example.org", user="guest-of-honour")
        await recovery.book(other, "elsewhere@example.org")
        given = await recovery.book(event, "giver@example.org")
        command = TransferBooking(
            event=event.id, org=event.org, booking=given, generation=0, user="ben", email="ben@example.org", actor="x"
        )
        assert isinstance((await run_commands(recovery.connection, [command]))[0], Accepted)
        for name in ("held", "customer", "named-like-a-guest", "elsewhere", "giver", "ben", "nobody"):
            await recovery.request(event.org, f"{name}@example.org")
        assert await recovery.work() == []
        assert await recovery.count("recovery_request") == 0
        assert await recovery.count("recovery_link") == 0
        assert await recovery.ask(other.org, "elsewhere@example.org") == ["elsewhere@example.org"]


@async_test
async def test_the_email_goes_to_the_address_of_the_bookings_and_not_to_what_somebody_typed(database: str) -> None:
    async with new_recovery(database) as recovery:
        event = await new_sale(recovery.connection)
        await recovery.book(event, "Kate@Example.org")
        assert await recovery.ask(event.org, "kATE@example.ORG") == ["Kate@Example.org"]
        for lookalike in (f"{KELVIN}ate@example.org", "kate@example.org.evil.example", "ate@example.org"):
            assert await recovery.ask(event.org, lookalike) == [], lookalike
        await recovery.book(event, f"{KELVIN}ate@example.org")
        assert await recovery.ask(event.org, f"{KELVIN}ate@example.org") == [f"{KELVIN}ate@example.org"]
        (token,) = recovery.tokens()
        assert await recovery.use(event.org, token) == f"{KELVIN}ate@example.org"


@async_test
async def test_a_recipient_gets_few_emails_however_many_somebody_requests(database: str) -> None:
    async with new_recovery(database) as recovery:
        events = [await new_sale(recovery.connection) for _ in range(3)]
        for event in events:
            await recovery.book(event)
            await recovery.book(event, "bob@example.org")
        for spelling in (ADA, "ADA@example.org", ADA) * 4:
            for event in events:
                await recovery.request(event.org, spelling)
        assert await recovery.work() == [ADA] * EMAILS_PER_HOUR
        assert await recovery.count("recovery_request") == 0, "nothing waits to be sent later"
        assert await recovery.ask(events[0].org, "bob@example.org") == ["bob@example.org"]
        sent = EMAILS_PER_HOUR
        for hour in range(1, 5):
            await shift_clock(recovery.connection, hour * HOUR)
            await recovery.connection.execute(
                "UPDATE recovery_count SET starts_at = date_trunc('day', holdfast_now()) WHERE kind = 'recipient_day'"
            )
            for _ in range(5):
                sent += len(await recovery.ask(events[0].org))
        assert sent == EMAILS_PER_DAY


@async_test
async def test_requests_without_bookings_do_not_use_up_the_limit(database: str) -> None:
    """Otherwise, requests in one org could keep somebody from their bookings in another."""
    async with new_recovery(database) as recovery:
        event, other = await new_sale(recovery.connection), await new_sale(recovery.connection)
        await recovery.book(event)
        for _ in range(3 * EMAILS_PER_HOUR):
            assert await recovery.ask(other.org) == []
        assert await recovery.ask(event.org) == [ADA]


@async_test
async def test_an_address_and_an_org_can_store_few_requests_in_an_hour(database: str) -> None:
    async with new_recovery(database) as recovery:
        org = (await new_sale(recovery.connection)).org
        client: dict[str, Any] = {"client": b"one", "per_address": 3, "per_org": 5}
        assert [await recovery.request(org, **client) for _ in range(6)] == [True] * 3 + [False] * 3
        assert [await recovery.request(org, per_org=5) for _ in range(4)] == [True] * 2 + [False] * 2
        assert await recovery.count("recovery_request") == 5
        counts = await recovery.count("recovery_count")
        assert not any([await recovery.request(org, per_org=5) for _ in range(20)])
        assert await recovery.count("recovery_count") == counts, "new addresses cannot fill the table"
        await shift_clock(recovery.connection, HOUR)
        assert await recovery.request(org, **client)


@async_test
async def test_an_email_that_cannot_be_sent_is_retried_with_growing_pauses(database: str) -> None:
    async with new_recovery(database) as recovery:
        event = await new_sale(recovery.connection)
        await recovery.book(event)
        recovery.smtp.failures = [UndeliveredError("The mail server is unreachable.") for _ in range(5)]
        assert await recovery.ask(event.org) == []
        assert await recovery.work() == [], "not at once"
        seconds = 0
        for failures_left in range(3, -1, -1):
            seconds += LATER
            await shift_clock(recovery.connection, seconds)
            assert await recovery.work() == []
            assert len(recovery.smtp.failures) == failures_left
        await shift_clock(recovery.connection, seconds + LATER)
        assert await recovery.work() == [ADA]
        assert await recovery.use(event.org, recovery.tokens()[0]) == ADA, "the link's time starts with its email"


@async_test
async def test_a_recipient_that_the_mail_server_refuses_is_forgotten(database: str) -> None:
    async with new_recovery(database) as recovery:
        event = await new_sale(recovery.connection)
        await recovery.book(event)
        recovery.smtp.failures = [UndeliveredError("No such mailbox.", is_permanent=True)]
        assert await recovery.ask(event.org) == []
        assert await recovery.count("recovery_request") == 0


@async_test
async def test_each_attempt_counts_by_its_result(database: str) -> None:
    async with new_recovery(database) as recovery:
        event = await new_sale(recovery.connection)
        await recovery.book(event)
        metrics.DELIVERIES.take()
        recovery.smtp.failures = [UndeliveredError("Later."), UndeliveredError("Never.", is_permanent=True)]
        await recovery.ask(event.org)
        await shift_clock(recovery.connection, LATER)
        await recovery.work()
        await recovery.ask(event.org)
        # Nobody has booked with this address, so there is no email.
        await recovery.ask(event.org, "bob@example.org")
        assert metrics.DELIVERIES.take() == {
            (RECOVERY, "postponed"): 1, (RECOVERY, "failed"): 1, (RECOVERY, "delivered"): 1,
        }  # fmt: skip


@pytest.mark.parametrize("is_sent", [False, True], ids=["before the email is sent", "before the request is deleted"])
def test_a_request_survives_a_worker_that_dies(database: str, is_sent: bool) -> None:
    """Of the links that a guest may get then, each works, and the first use ends them all."""

    async def run() -> None:
        async with new_recovery(database) as recovery:
            event = await new_sale(recovery.connection)
            await recovery.book(event)
            await recovery.request(event.org)
            before = []
            with pytest.MonkeyPatch.context() as patch:
                if is_sent:
                    patch.setattr(sql.recovery, "delete_request", "SELECT 1 / 0, $1::uuid")
                else:
                    recovery.smtp.failures = [RuntimeError("the worker dies")]
                await recovery.work()
                before = recovery.tokens()
                assert len(before) == is_sent
                await shift_clock(recovery.connection, MINUTE)
                assert await recovery.work() == [], "the lease still runs"
            await shift_clock(recovery.connection, 5 * MINUTE)
            assert await recovery.work() == [ADA]
            tokens = [*before, *recovery.tokens()]
            assert [await recovery.use(event.org, token) for token in tokens] == [ADA, *[None] * (len(tokens) - 1)]

    async_test(run)()


@async_test
async def test_a_link_expires_and_belongs_to_its_org(database: str) -> None:
    async with new_recovery(database) as recovery:
        event, other = await new_sale(recovery.connection), await new_sale(recovery.connection)
        await recovery.book(event)
        await recovery.ask(event.org)
        (token,) = recovery.tokens()
        assert await recovery.use(other.org, token) is None
        await shift_clock(recovery.connection, recovery_mailer.LINK_SECONDS + 1)
        assert await recovery.use(event.org, token) is None
        assert await recovery.count("recovery_link") == 1
        # Half an hour before midnight, this deletes a count of the day too.
        await delete_expired(recovery.database)
        assert await recovery.count("recovery_link") == 0


@async_test
async def test_a_day_later_nothing_is_left(database: str) -> None:
    async with new_recovery(database) as recovery:
        event = await new_sale(recovery.connection)
        await recovery.book(event)
        recovery.smtp.failures = [UndeliveredError("The mail server is unreachable.")]
        await recovery.ask(event.org)
        await delete_expired(recovery.database)
        assert await recovery.count("recovery_request") == 1
        await shift_clock(recovery.connection, 48 * HOUR)
        await delete_expired(recovery.database)
        for table in ("recovery_request", "recovery_link", "recovery_count"):
            assert await recovery.count(table) == 0, table


@async_test
async def test_every_guest_of_the_pages_is_a_guest_here(database: str) -> None:
    async with lane_connection(database) as connection:
        (pattern,) = re.findall(r"user_id ~ '(.*?)'", str(sql.recovery.owner.text))
        assert await connection.fetchval("SELECT $1 ~ $2", new_session().user(ids.new_id()), pattern)
        index = await connection.fetchval("SELECT indexdef FROM pg_indexes WHERE indexname = 'booking_of_email'")
        assert f"'{pattern}'" in index
        statuses = re.findall(r"booking.status IN \((.*?)\)", sql.recovery.recipient.text)[0]
        assert set(re.findall(r"'(\w+)'::text", index)) - {pattern} == set(re.findall(r"\w+", statuses))
        assert Status.HELD not in statuses
