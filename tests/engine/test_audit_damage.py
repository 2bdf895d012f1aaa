"""Damage to the tables of an event, and what the auditor says about it. Each kind is planted in the same event, in a
transaction that is rolled back."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

from holdfast.core.commands import SettlePayment
from holdfast.core.event_schemas import EventChange
from holdfast.core.payment import PaymentResult
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_event
from holdfast.engine.event_editor import change_event
from holdfast.runtime import db, ids
from tests.support.engine_harness import (
    ACTOR,
    EventHandle,
    async_test,
    lane_connection,
    new_action_command,
    new_event,
    new_hold_command,
    new_payment_command,
    one_pool,
    run_commands,
)
from tests.support.harness import fresh_database, run_with_connection

STOCK = [
    {"code": "hall", "seats": {"rows": ["A"], "numbers": 8}, "tariffs": [{"code": "full", "price": 3000}]},
    *one_pool(9),
]
ENDPOINT = """
INSERT INTO webhook_endpoint (id, org_id, url, kinds, secret) VALUES ($1, $1, 'https://example.org', '{}', 'whsec_')
"""
CHECKIN = "INSERT INTO checkin (event_id, booking_id, line, unit, actor) SELECT id, {booking}, 0, {unit}, '' FROM event"


class SmallEvent(Struct, frozen=True):
    """An event with a booking in each of these statuses. Its journal has entries 1 to `version`."""

    database: str
    event: EventHandle
    version: int
    held: bytes
    place: bytes
    confirmed: bytes
    cancelled: bytes
    payment: bytes

    def fill_in(self, text: str) -> str:
        """The text with the names of bookings and payments replaced by their ids as the database has them."""
        names = ("held", "place", "confirmed", "cancelled", "payment")
        return text.format(**{name: f"'{getattr(self, name).hex()}'" for name in names})

    def public_id(self, name: str) -> str:
        """What a finding names: a booking, a payment, the end of the journal, or the text itself."""
        if name == "payment":
            return ids.format_payment_id(self.event.id, self.payment)
        if name == "the event":
            return self.event.text
        if name == "the later one":
            return ids.format_booking_id(self.event.id, max(self.held, self.confirmed))
        if hasattr(self, name) and name != "version":
            return ids.format_booking_id(self.event.id, getattr(self, name))
        return str(self.version + 1) if name == "after the last" else str(self.version) if name == "last" else name


@pytest.fixture(scope="module")
def small(postgres: str) -> Iterator[SmallEvent]:
    async def create(connection: db.Connection) -> dict[str, Any]:
        event = await new_event(connection, pools=STOCK, policy={"one_booking_per_user": True})
        await connection.execute(ENDPOINT, event.org)
        names = {"held": ("A-1",), "place": (), "confirmed": ("A-3",), "cancelled": ("A-5",)}
        placed = {name: new_hold_command(event, *seats) for name, seats in names.items()}
        await run_commands(connection, list(placed.values()))
        payment = ids.new_id()
        paid = placed["confirmed"].booking
        await run_commands(connection, [new_payment_command(event, paid, payment)])
        captured = SettlePayment(
            event=event.id,
            org=event.org,
            booking=paid,
            payment=payment,
            result=PaymentResult.CAPTURED,
            actor=ACTOR,
            amount=3570,
            currency="EUR",
        )
        cancel = new_action_command(event, placed["cancelled"].booking, Verb.CANCEL)
        await run_commands(connection, [captured, cancel])
        await connection.execute(CHECKIN.format(booking="$1", unit=0), paid)
        await change_event(db.Database(connection), event.org, event.id, EventChange(block_seats=["A-8"]), ACTOR)
        version = await connection.fetchval("SELECT version FROM event")
        return {
            "event": event,
            "version": version,
            "payment": payment,
            **{name: hold.booking for name, hold in placed.items()},
        }

    with fresh_database(postgres) as url:
        yield SmallEvent(database=url, **run_with_connection(create, url))


class Damage(Struct, frozen=True):
    """What somebody does to the tables, the finding about `subject`, a part of its sentence, and what else is found."""

    statements: str
    what: str
    subject: str
    sentence: str
    also: frozenset[str] = frozenset()


CHANGED = frozenset({"entry_changed"})
# Three days after the event was sold.
LATER = """CREATE OR REPLACE FUNCTION holdfast_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$SELECT clock_timestamp() + interval '3 days'$$;"""
DAMAGES = {
    "a held counter that is one too high": Damage(
        "UPDATE pool SET held = held + 1 WHERE code = 'places'",
        "held_counter",
        "places",
        "Pool places counts 2 units as held, but its live lines add up to 1.",
    ),
    "a sold counter that is one too low": Damage(
        "UPDATE pool SET sold = sold - 1 WHERE code = 'hall'",
        "sold_counter",
        "hall",
        "Pool hall counts 0 units as sold, but its live lines add up to 1.",
    ),
    "a capacity below what is taken": Damage(
        "ALTER TABLE pool DROP CONSTRAINT pool_never_oversold; UPDATE pool SET capacity = 0 WHERE code = 'places'",
        "capacity_exceeded",
        "places",
        "Pool places has a capacity of 0, but 1 units are taken.",
    ),
    "a capacity that is not the number of seats": Damage(
        "UPDATE pool SET capacity = capacity + 1 WHERE code = 'hall'",
        "capacity_and_seats",
        "hall",
        "Pool hall has a capacity of 8, but 7 seats that are not blocked.",
    ),
    "a seat that is sold twice": Damage(
        """DROP INDEX line_seat_taken_once; UPDATE line SET seat = 0 WHERE booking_id = {confirmed}""",
        "seat_taken_twice",
        "A-1",
        "2 live lines take seat A-1",
        frozenset({"booking_seats"}),
    ),
    "a line of a seat that does not exist": Damage(
        "UPDATE line SET seat = 999 WHERE booking_id = {held}",
        "seat_unknown",
        "999",
        "takes the seat with the number 999, which does not exist",
        frozenset({"booking_seats"}),
    ),
    "a seat that is blocked and taken": Damage(
        """UPDATE seat SET blocked = true WHERE label = 'A-1';
        UPDATE pool SET capacity = capacity - 1 WHERE code = 'hall'""",
        "seat_blocked",
        "A-1",
        "Seat A-1 is blocked and taken.",
        frozenset({"pool_history"}),
    ),
    "a line in another pool than its seat": Damage(
        """UPDATE line SET pool = 1 WHERE booking_id = {held};
        UPDATE pool SET held = held + CASE code WHEN 'places' THEN 1 ELSE -1 END""",
        "seat_pool",
        "A-1",
        "The line that takes seat A-1 counts in another pool",
        frozenset({"pool_history"}),
    ),
    "two units of one seat": Damage(
        """ALTER TABLE line DROP CONSTRAINT line_of_one_seat;
        UPDATE line SET quantity = 2, unit_price = unit_price / 2 WHERE booking_id = {held};
        UPDATE pool SET held = held + 1 WHERE code = 'hall'""",
        "seat_quantity",
        "A-1",
        "A line takes 2 units of seat A-1",
        frozenset({"pool_history"}),
    ),
    "a live line in a pool that does not exist": Damage(
        """UPDATE line SET pool = 99 WHERE booking_id = {place};
        UPDATE pool SET held = held - 1 WHERE code = 'places'""",
        "pool_unknown",
        "99",
        "1 live lines take units of pool 99, which does not exist.",
        frozenset({"pool_history"}),
    ),
    "a live line of a cancelled booking": Damage(
        """UPDATE line SET live = true WHERE booking_id = {cancelled};
        UPDATE pool SET sold = sold + 1 WHERE code = 'hall'""",
        "line_still_live",
        "cancelled",
        "The booking is cancelled, but 1 of its lines are still live",
        frozenset({"pool_history"}),
    ),
    "a line of a confirmed booking that is not live": Damage(
        """UPDATE line SET live = false WHERE booking_id = {confirmed};
        UPDATE pool SET sold = sold - 1 WHERE code = 'hall'""",
        "line_not_live",
        "confirmed",
        "The booking is confirmed, but 1 of its 1 lines are not live.",
        frozenset({"pool_history"}),
    ),
    "a booking without lines": Damage(
        "DELETE FROM line WHERE booking_id = {cancelled}",
        "booking_without_lines",
        "cancelled",
        "The booking is cancelled and has no lines",
    ),
    "a subtotal that is not the sum of the lines": Damage(
        "UPDATE booking SET subtotal = subtotal + 1, total = total + 1 WHERE id = {held}",
        "subtotal",
        "held",
        "The booking has a subtotal of 3001, but its lines add up to 3000.",
    ),
    "a total that is not subtotal and tax": Damage(
        "ALTER TABLE booking DROP CONSTRAINT booking_total; UPDATE booking SET total = total - 570 WHERE id = {held}",
        "total",
        "held",
        "The booking has a total of 3000, but subtotal and tax add up to 3570.",
    ),
    "a deadline beyond the longest hold": Damage(
        "UPDATE booking SET expires_at = max_expires_at + interval '1 second' WHERE id = {held}",
        "deadline",
        "held",
        "Somebody has moved its deadline without the engine.",
    ),
    "two live bookings of a user who may have one": Damage(
        """DROP INDEX booking_one_per_user;
        UPDATE booking SET user_id = (SELECT user_id FROM booking WHERE id = {held}) WHERE id = {confirmed}""",
        "one_per_user",
        "the later one",
        "The user of this booking has 2 live bookings, but the event allows one.",
    ),
    "two buyers whose seats were swapped": Damage(
        """DROP INDEX line_seat_taken_once;
        UPDATE line SET seat = other.seat FROM line AS other
        WHERE line.booking_id IN ({held}, {confirmed}) AND other.booking_id IN ({held}, {confirmed})
          AND line.booking_id <> other.booking_id;
        UPDATE pool SET held = held WHERE code = 'hall'""",
        "booking_seats",
        "confirmed",
        "says that the booking has seat A-3, but its lines have seat A-1.",
    ),
    "a buyer who was moved to a free seat": Damage(
        "UPDATE line SET seat = 5 WHERE booking_id = {held}",
        "booking_seats",
        "held",
        "says that the booking has seat A-1, but its lines have seat A-6.",
    ),
    "a second unit with everything that it changes": Damage(
        """UPDATE line SET quantity = 2 WHERE booking_id = {place};
        UPDATE pool SET held = held + 1 WHERE code = 'places';
        UPDATE booking SET subtotal = line.quantity * line.unit_price, total = line.quantity * line.unit_price + tax
        FROM line WHERE booking.id = {place} AND line.booking_id = booking.id""",
        "pool_history",
        "places",
        "of the journal left it (held units: 1 in the journal, 2 in the pool).",
    ),
    "a pool with more units than there are": Damage(
        "UPDATE pool SET capacity = capacity + 10 WHERE code = 'places'",
        "pool_history",
        "places",
        "of the journal left it (capacity: 9 in the journal, 19 in the pool).",
    ),
    "a pool that is gone": Damage(
        """ALTER TABLE tariff DROP CONSTRAINT tariff_event_id_pool_fkey; DELETE FROM line WHERE booking_id = {place};
        UPDATE pool SET code = 'nowhere', held = 0 WHERE code = 'places'""",
        "pool_history",
        "places",
        "of the journal changes pool places, which does not exist.",
        frozenset({"booking_without_lines"}),
    ),
    "a blocked seat in place of another": Damage(
        "UPDATE seat SET blocked = label = 'A-7' WHERE label IN ('A-7', 'A-8')",
        "seat_history",
        "A-8",
        "Seat A-8 is on sale, but entry 12 of the journal says that it is blocked.",
    ),
    "an event that was ended without the engine": Damage(
        "UPDATE event SET status = 'completed'",
        "event_status",
        "the event",
        "The event is completed, but entry 2 of the journal says active.",
    ),
    "a ticket that was made void": Damage(
        "UPDATE booking SET generation = 5 WHERE id = {confirmed}",
        "booking_generation",
        "confirmed",
        "The journal has 0 transfers of the booking, but the booking counts 5.",
    ),
    "a deleted event": Damage(
        """ALTER TABLE pool DROP CONSTRAINT pool_event_id_fkey; DELETE FROM event""",
        "event_deleted",
        "the event",
        "There are 12 journal entries, 4 bookings and 1 payments of this event, but the event itself does not exist.",
    ),
    "a table that cannot be read": Damage(
        "DROP TABLE checkin",
        "audit_failed",
        "history",
        "The auditor cannot check the history of this event: UndefinedTableError",
    ),
    "a status of a booking that does not exist": Damage(
        """ALTER TABLE booking DROP CONSTRAINT booking_status_check;
        UPDATE booking SET status = 'sold' WHERE id = {held}""",
        "booking_status",
        "held",
        "The booking is sold, but entry 3 of the journal says held.",
        frozenset({"line_still_live", "held_counter", "sold_counter"}),
    ),
    "a status of a payment that does not exist": Damage(
        """ALTER TABLE payment DROP CONSTRAINT payment_has_one_outcome, DROP CONSTRAINT payment_status_check;
        UPDATE payment SET status = 'paid'""",
        "payment_status",
        "payment",
        "The payment is paid, but the journal says succeeded.",
        frozenset({"capture_without_outcome", "payment_outcome"}),
    ),
    "a status that the journal does not explain": Damage(
        "UPDATE booking SET status = 'expired' WHERE id = {cancelled}",
        "booking_status",
        "cancelled",
        "The booking is expired, but entry 11 of the journal says cancelled.",
    ),
    "a transition that does not exist": Damage(
        "UPDATE journal SET kind = 'completed' WHERE number = 11;"
        "UPDATE booking SET status = 'completed' WHERE id = {cancelled};"
        "UPDATE line SET live = true WHERE booking_id = {cancelled};"
        "UPDATE pool SET sold = sold + 1 WHERE code = 'hall'",
        "transition",
        "cancelled",
        "Entry 11 of the journal moves the booking from held to completed, which is not allowed.",
        CHANGED | frozenset({"pool_history"}),
    ),
    "a booking without a first entry": Damage(
        "UPDATE journal SET kind = 'event_changed', booking_id = NULL WHERE kind = 'held' AND booking_id = {cancelled}",
        "transition",
        "cancelled",
        "moves the booking to cancelled as its first status",
        CHANGED,
    ),
    "a booking that names another entry than the last about it": Damage(
        "UPDATE booking SET version = 4 WHERE id = {cancelled}",
        "booking_version",
        "cancelled",
        "The last entry about the booking is 11, but the booking names entry 4.",
    ),
    "a deleted booking": Damage(
        "DELETE FROM line WHERE booking_id = {cancelled}; DELETE FROM booking WHERE id = {cancelled}",
        "entry_without_booking",
        "cancelled",
        "The journal has this booking, but the booking does not exist.",
    ),
    "a line without a booking": Damage(
        "INSERT INTO line SELECT event_id, {payment}, 0, 0, 0, NULL, 1, 0, false FROM booking WHERE id = {held}",
        "line_without_booking",
        "stray",
        "Lines refer to this booking, which does not exist.",
    ),
    "a receipt without a booking": Damage(
        """INSERT INTO receipt (event_id, id, org_id, booking_id, at, hash)
        SELECT event_id, id, org_id, {payment}, now(), '' FROM booking WHERE id = {held}""",
        "receipt_without_booking",
        "stray",
        "Receipts refer to this booking, which does not exist.",
    ),
    "a payment without a booking": Damage(
        "UPDATE payment SET booking_id = gen_random_uuid()",
        "payment_without_booking",
        "payment",
        "The payment is succeeded, but its booking does not exist.",
    ),
    "a payment of another amount": Damage(
        "UPDATE payment SET amount = amount + 1",
        "payment_amount",
        "payment",
        "The payment is for 3571 EUR, but the booking costs 3570 EUR.",
    ),
    "a captured payment without an outcome": Damage(
        "UPDATE payment SET status = 'failed', outcome = NULL",
        "capture_without_outcome",
        "payment",
        "The provider has captured the money, but the payment is failed",
        frozenset({"payment_status"}),
    ),
    "a payment that is kept and was never captured": Damage(
        "UPDATE payment SET captured_at = NULL",
        "outcome_without_capture",
        "payment",
        "The payment is succeeded, but there is no record of its capture.",
    ),
    "money that only staff have reported, and that is kept": Damage(
        """ALTER TABLE payment DROP CONSTRAINT payment_keeps_no_assumed_money;
        UPDATE payment SET capture_assumed = true""",
        "assumed_capture_kept",
        "payment",
        "only staff have reported its capture",
    ),
    "an outcome that contradicts the status": Damage(
        "ALTER TABLE payment DROP CONSTRAINT payment_has_one_outcome; UPDATE payment SET outcome = 'refunded'",
        "payment_outcome",
        "payment",
        "The payment is succeeded, but its outcome is refunded.",
    ),
    "a fulfilled payment whose booking is not confirmed": Damage(
        "UPDATE payment SET booking_id = {held}",
        "paid_but_not_confirmed",
        "payment",
        "The payment is kept, but its booking is held.",
    ),
    "a booking that is paid twice": Damage(
        """INSERT INTO payment (event_id, id, org_id, booking_id, provider, status, outcome, amount, currency,
            request_key, fingerprint, created_at, captured_at)
        SELECT event_id, {held}, org_id, booking_id, provider, status, outcome, amount, currency, 'other', '',
            created_at, captured_at FROM payment""",
        "paid_twice",
        "payment",
        "Another payment for the same booking is kept too.",
        frozenset({"payment_status"}),
    ),
    "a refund that nobody will make": Damage(
        "UPDATE payment SET status = 'refund_due', outcome = NULL, due_at = NULL",
        "refund_forgotten",
        "payment",
        "The payment is due for a refund, but no worker will send it.",
        frozenset({"payment_status"}),
    ),
    "a refund that is planned for much later than a retry": Damage(
        "UPDATE payment SET status = 'refund_due', outcome = NULL, due_at = now() + interval '1 year'",
        "refund_forgotten",
        "payment",
        "The payment is due for a refund, but no worker will send it.",
        frozenset({"payment_status"}),
    ),
    "a refund that is still due when its retries have ended": Damage(
        LATER
        + """UPDATE payment SET status = 'refund_due', outcome = NULL, due_at = holdfast_now();
        UPDATE journal SET kind = 'payment.refund_due' WHERE kind = 'payment.succeeded'""",
        "refund_overdue",
        "payment",
        "and the payment is neither refunded nor in review.",
        CHANGED,
    ),
    "a started payment that nobody asks about": Damage(
        "UPDATE payment SET status = 'started', outcome = NULL, captured_at = NULL, due_at = NULL",
        "payment_forgotten",
        "payment",
        "The buyer may have paid, but no worker will ask the provider about the payment.",
        frozenset({"payment_status"}),
    ),
    "a started payment that nobody asks about for a year": Damage(
        "UPDATE payment SET status = 'started', outcome = NULL, captured_at = NULL, due_at = now() + interval '1 year'",
        "payment_forgotten",
        "payment",
        "The buyer may have paid, but no worker will ask the provider about the payment.",
        frozenset({"payment_status"}),
    ),
    "a captured payment that nobody has acted on": Damage(
        LATER
        + """INSERT INTO payment_notice (provider, id, body, result, provider_ref, due_at, received_at)
        SELECT provider, 'n', '', 'captured', 'ch_1', holdfast_now(), now() FROM payment;
        UPDATE payment SET status = 'started', outcome = NULL, captured_at = NULL, due_at = holdfast_now(),
            provider_ref = 'ch_1'""",
        "capture_unhandled",
        "payment",
        "that it has captured the money, and no worker has acted on it: the payment is still started.",
        frozenset({"payment_status"}),
    ),
    "a payment with another status than in the journal": Damage(
        "UPDATE payment SET status = 'refunded', outcome = 'refunded'",
        "payment_status",
        "payment",
        "The payment is refunded, but the journal says succeeded.",
    ),
    "a confirmed booking whose payment is gone": Damage(
        "DELETE FROM payment",
        "payment_missing",
        "payment",
        "The journal says that this payment is succeeded, but the payment does not exist.",
    ),
    "a check-in of a booking that was never confirmed": Damage(
        CHECKIN.format(booking="{held}", unit=0),
        "checkin_not_confirmed",
        "held",
        "which is held and has never been confirmed",
    ),
    "a check-in without a ticket": Damage(
        CHECKIN.format(booking="{confirmed}", unit=1),
        "checkin_without_ticket",
        "confirmed",
        "Somebody entered with unit 1 of line 0, which the booking does not have.",
    ),
    "a check-in without a booking": Damage(
        CHECKIN.format(booking="{payment}", unit=0),
        "checkin_without_booking",
        "stray",
        "Somebody entered with a ticket of this booking, which does not exist.",
    ),
    "a notification of an entry that does not exist": Damage(
        "UPDATE delivery SET number = 99 WHERE number = 10",
        "delivery_without_entry",
        "99",
        "1 notifications report entry 99 of the journal, which does not exist.",
    ),
    "an entry with other data": Damage(
        """UPDATE journal SET data = '{{"reason": "none"}}' WHERE number = 6""",
        "entry_changed",
        "6",
        "Entry 6 of the journal was changed after entry 7 was written",
    ),
    "an entry with another actor": Damage(
        "UPDATE journal SET actor = 'key:hf_sk_other' WHERE number = 6",
        "entry_changed",
        "6",
        "Entry 6 of the journal was changed",
    ),
    "an entry at another time": Damage(
        "UPDATE journal SET at = at - interval '1 microsecond' WHERE number = 6",
        "entry_changed",
        "6",
        "Entry 6 of the journal was changed",
    ),
    "an entry at no time": Damage(
        "ALTER TABLE journal DROP CONSTRAINT journal_time; UPDATE journal SET at = 'infinity' WHERE number = 6",
        "entry_changed",
        "6",
        "Entry 6 of the journal was changed",
    ),
    "an entry with a character that PostgreSQL cannot read": Damage(
        r"""INSERT INTO journal SELECT event_id, number + 1, at, 'payment.x', NULL, actor,
            '{{"a": "\u0000 \ud800", "payment": "x", "pools": [], "seats": 1}}', journal_head
        FROM journal JOIN event ON event.id = event_id AND event.version = number""",
        "entry_inserted",
        "after the last",
        "Find out who can write to the journal.",
    ),
    "an entry with the lowest number": Damage(
        """ALTER TABLE journal DROP CONSTRAINT journal_number;
        INSERT INTO journal SELECT event_id, -9223372036854775808, at, kind, booking_id, actor, data, previous
        FROM journal WHERE number = 1""",
        "entry_inserted",
        "-9223372036854775808",
        "of the journal comes before the first.",
        frozenset({"chain_start"}),
    ),
    "data of the same meaning in another spelling": Damage(
        "UPDATE journal SET data = ' {{}}' WHERE number = 2",
        "entry_changed",
        "2",
        "Entry 2 of the journal was changed",
    ),
    "two changed entries": Damage(
        "UPDATE journal SET actor = 'nobody' WHERE number IN (6, 7)",
        "entry_changed",
        "6",
        "Entries 6 to 7 of the journal were changed after entry 8 was written",
    ),
    "a deleted entry": Damage(
        "DELETE FROM journal WHERE number = 2",
        "entries_missing",
        "2",
        "Entry 2 of the journal was deleted.",
        frozenset({"event_status"}),
    ),
    "a deleted beginning": Damage(
        "DELETE FROM journal WHERE number <= 2",
        "entries_missing",
        "1",
        "Entries 1 to 2 of the journal were deleted.",
    ),
    "an inserted entry that follows the one before it": Damage(
        """UPDATE journal SET number = number + 100 WHERE number >= 3;
        UPDATE journal SET number = number - 99 WHERE number >= 100;
        INSERT INTO journal SELECT event_id, 3, at, kind, booking_id, 'nobody', data,
            (SELECT previous FROM journal WHERE number = 4) FROM journal WHERE number = 2;
        UPDATE booking SET version = version + 1; UPDATE event SET version = version + 1""",
        "entry_inserted",
        "3",
        "Entry 3 of the journal was inserted afterwards: by its hash, entry 4 follows entry 2.",
    ),
    "an inserted entry that follows nothing": Damage(
        """UPDATE journal SET number = number + 100 WHERE number >= 3;
        UPDATE journal SET number = number - 99 WHERE number >= 100;
        INSERT INTO journal SELECT event_id, 3, at, kind, booking_id, actor, data, sha256(previous)
            FROM journal WHERE number = 2;
        UPDATE booking SET version = version + 1; UPDATE event SET version = version + 1""",
        "entry_inserted",
        "3",
        "Entry 3 of the journal was inserted afterwards: by its hash, entry 4 follows entry 2.",
    ),
    "entries in another order": Damage(
        """UPDATE journal SET number = 100 WHERE number = 4; UPDATE journal SET number = 4 WHERE number = 5;
        UPDATE journal SET number = 5 WHERE number = 100;
        UPDATE booking SET version = 9 - version WHERE version IN (4, 5)""",
        "entries_reordered",
        "4",
        "Entries 4 to 6 of the journal are out of order: by its hash, entry 4 follows entry 5.",
    ),
    "a deleted last entry": Damage(
        "DELETE FROM journal WHERE number = (SELECT version FROM event)",
        "last_entries_missing",
        "last",
        "was deleted. Restore it from a backup.",
        frozenset({"pool_history", "delivery_without_entry"}),
    ),
    "an entry after the last": Damage(
        """INSERT INTO journal SELECT event_id, number + 1, at, kind, booking_id, actor, data, journal_head
        FROM journal JOIN event ON event.id = event_id AND event.version = number""",
        "entry_inserted",
        "after the last",
        "inserted. Find out who can write to the journal.",
    ),
    "an entry before the first": Damage(
        """ALTER TABLE journal DROP CONSTRAINT journal_number;
        INSERT INTO journal SELECT event_id, 0, at, kind, booking_id, actor, data, previous
        FROM journal WHERE number = 1""",
        "entry_inserted",
        "0",
        "Entry 0 of the journal comes before the first.",
        frozenset({"chain_start"}),
    ),
    "a head that is not the hash of the last entry": Damage(
        "UPDATE event SET journal_head = sha256(journal_head)",
        "chain_head",
        "last",
        "The head of the event is not the hash of entry",
    ),
    "a changed last entry": Damage(
        "UPDATE journal SET actor = 'nobody' WHERE number = (SELECT version FROM event)",
        "chain_head",
        "last",
        "Somebody has changed the entry or the head.",
    ),
    "the journal of another event": Damage(
        "UPDATE journal SET previous = sha256(previous) WHERE number = 1",
        "chain_start",
        "1",
        "does not carry the hash with which the journal of this event starts",
    ),
    "a version that is ahead of the journal": Damage(
        "UPDATE event SET version = version + 1",
        "version_ahead",
        "after the last",
        "Somebody has changed the version.",
    ),
    "a version that is behind the journal": Damage(
        "UPDATE event SET version = 3",
        "version_behind",
        "3",
        "The event is at version 3, but its journal ends with entry",
    ),
}


@async_test
async def test_the_event_is_in_order_before_anybody_damages_it(small: SmallEvent) -> None:
    async with lane_connection(small.database) as connection:
        assert (await audit_event(db.Database(connection), small.event.id)).findings == []


@pytest.mark.parametrize("name", DAMAGES)
def test_the_auditor_names_every_kind_of_damage(small: SmallEvent, name: str) -> None:
    damage = DAMAGES[name]

    async def plant_and_audit(connection: db.Connection) -> list[Any]:
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        await connection.execute(small.fill_in(damage.statements))
        audit = await audit_event(db.Database(connection), small.event.id)
        await transaction.rollback()
        assert (audit.chain is None) == (damage.what in CHAIN_FINDINGS or bool(damage.also & CHAIN_FINDINGS))
        return audit.findings

    findings = run_with_connection(plant_and_audit, small.database)
    assert {finding.what for finding in findings} == {damage.what} | damage.also, findings
    subjects = {finding.subject for finding in findings if finding.what == damage.what}
    expected = ids.format_booking_id(small.event.id, small.payment) if damage.subject == "stray" else damage.subject
    assert small.public_id(expected) in subjects
    (sentence,) = {f.detail for f in findings if f.what == damage.what and f.subject == small.public_id(expected)}
    assert damage.sentence in sentence
    assert {finding.event for finding in findings} == {small.event.text}


CHAIN_FINDINGS = {
    "chain_head",
    "chain_start",
    "entries_missing",
    "entries_reordered",
    "entry_changed",
    "entry_inserted",
    "event_deleted",
    "last_entries_missing",
    "version_ahead",
    "version_behind",
}
