"""Buyers without a secret key hold only so much without paying: per user, per address and per org."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from holdfast import sql
from holdfast.core.clients import FREE_BOOKING_SECONDS, UserRecord
from holdfast.core.commands import Accepted, Client, Command, PlaceHold, PoolItem, Receipt, SubmitReceipt
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refused
from holdfast.core.states import Verb
from holdfast.engine.auditor import audit_event
from holdfast.engine.layout_cache import LayoutCache
from holdfast.engine.load import load_batch
from holdfast.runtime import db, ids
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

HERE, ELSEWHERE = b"the office", b"a home"
FREE = [{"code": "places", "capacity": 1000}]


def guest_hold(
    event: EventHandle, user: str = "", address: bytes = HERE, units: int = 1, *, is_guest: bool = True, **client: Any
) -> PlaceHold:
    hold = new_hold_command(event, user=user)
    return structs.replace(
        hold, staff=False, items=(PoolItem("places", units),), client=Client(address, is_guest, **client)
    )


def codes(outcomes: Sequence[Outcome]) -> Counter[str]:
    return Counter(each.refusal.code if isinstance(each, Refused) else "held" for each in outcomes)


async def hold_one(connection: db.Connection, command: Command) -> str:
    (outcome,) = await run_commands(connection, [command])
    return next(iter(codes([outcome])))


async def run_together(connection: db.Connection, commands: Sequence[Command]) -> list[Outcome]:
    return await run_commands(connection, commands)


async def run_one_by_one(connection: db.Connection, commands: Sequence[Command]) -> list[Outcome]:
    return [outcome for command in commands for outcome in await run_commands(connection, [command])]


Run = Callable[[db.Connection, Sequence[Command]], Awaitable[list[Outcome]]]
in_any_batches = pytest.mark.parametrize("run", [run_together, run_one_by_one], ids=["one batch", "many batches"])


async def sell(connection: db.Connection, **policy: Any) -> EventHandle:
    return await new_event(connection, pools=one_pool(1000), policy=policy)


@in_any_batches
@async_test
async def test_an_address_gets_no_more_than_its_limit_whoever_asks(database: str, run: Run) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=7)
        outcomes = await run(connection, [guest_hold(event) for _ in range(20)])
        assert codes(outcomes) == {"held": 7, "address_limit_reached": 13}
        assert await hold_one(connection, guest_hold(event, address=ELSEWHERE)) == "held"


@async_test
async def test_without_a_limit_one_address_takes_everything(database: str) -> None:
    """The control: fresh cookies defeat every limit per user."""
    async with lane_connection(database) as connection:
        event = await new_event(
            connection,
            pools=one_pool(100),
            policy={"max_unpaid_units_per_address": None, "max_unpaid_units_per_user": 1, "max_units_per_user": 1},
        )
        assert codes(await run_commands(connection, [guest_hold(event) for _ in range(100)])) == {"held": 100}


@in_any_batches
@async_test
async def test_units_count_and_not_holds(database: str, run: Run) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=10)
        outcomes = await run(connection, [guest_hold(event, units=units) for units in (6, 5, 4, 1)])
        assert [isinstance(outcome, Accepted) for outcome in outcomes] == [True, False, True, False]


@in_any_batches
@async_test
async def test_a_hold_that_is_confirmed_or_cancelled_makes_room_for_the_next(database: str, run: Run) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=2)
        for verb in (Verb.CONFIRM, Verb.CANCEL):
            first = guest_hold(event)
            outcomes = await run(
                connection,
                [first, guest_hold(event), guest_hold(event), new_action_command(event, first.booking, verb)],
            )
            assert codes(outcomes) == {"held": 3, "address_limit_reached": 1}
            assert await hold_one(connection, guest_hold(event)) == "held"
            await connection.execute("UPDATE booking SET client = NULL")


@async_test
async def test_a_hold_past_its_deadline_makes_room_at_once(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=2, hold_seconds=60)
        for holds in range(3):
            await shift_clock(connection, 61 * holds)
            assert await hold_one(connection, guest_hold(event, units=2)) == "held"
            assert await hold_one(connection, guest_hold(event)) == "address_limit_reached"


@in_any_batches
@async_test
async def test_free_bookings_count_for_an_hour(database: str, run: Run) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(
            connection, pools=FREE, policy={"confirm_at_once": True, "max_unpaid_units_per_address": 3}
        )
        outcomes = await run(connection, [guest_hold(event) for _ in range(5)])
        assert codes(outcomes) == {"held": 3, "address_limit_reached": 2}
        await shift_clock(connection, 3601)
        assert await hold_one(connection, guest_hold(event)) == "held"


@async_test
async def test_confirming_a_free_hold_makes_no_room(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=FREE, policy={"max_unpaid_units_per_address": 1})
        hold = guest_hold(event)
        await run_commands(connection, [hold])
        await run_commands(connection, [new_action_command(event, hold.booking, Verb.CONFIRM)])
        assert await hold_one(connection, guest_hold(event)) == "address_limit_reached"


@async_test
async def test_secret_keys_are_not_limited(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(
            connection, max_unpaid_units_per_address=1, max_unpaid_units_per_user=1, cooldown_after_expired=1
        )
        assert await hold_one(connection, guest_hold(event)) == "held"
        back_end = [new_hold_command(event, user="the box office") for _ in range(50)]
        assert codes(await run_commands(connection, back_end)) == {"held": 50}
        assert await connection.fetchval("SELECT count(*) FROM booking WHERE client IS NOT NULL") == 1


@pytest.mark.parametrize(("limits", "held"), [(False, 5), (True, 2)])
@async_test
async def test_customers_are_limited_only_if_the_policy_says_so(database: str, limits: bool, held: int) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=2, limit_customers=limits)
        outcomes = await run_commands(connection, [guest_hold(event, is_guest=False) for _ in range(5)])
        assert codes(outcomes)["held"] == held


@async_test
async def test_customers_who_are_not_limited_take_nothing_from_guests_at_their_address(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=2)
        await run_commands(connection, [guest_hold(event, is_guest=False) for _ in range(5)])
        assert await hold_one(connection, guest_hold(event, units=2)) == "held"


@in_any_batches
@async_test
async def test_a_guest_gets_no_more_than_their_limit_wherever_they_are(database: str, run: Run) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_user=3)
        outcomes = await run(connection, [guest_hold(event, "ann", bytes([n])) for n in range(5)])
        assert codes(outcomes) == {"held": 3, "unpaid_limit_reached": 2}
        assert await hold_one(connection, guest_hold(event, "ben")) == "held"


@async_test
async def test_a_hold_repeated_at_the_limit_is_the_same_hold(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=1)
        hold = guest_hold(event, max_in_org=1)
        (first,) = await run_commands(connection, [hold])
        again = structs.replace(hold, booking=bytes(16), client=Client(HERE, is_guest=True, max_in_org=1))
        (second,) = await run_commands(connection, [again])
        assert isinstance(first, Accepted)
        assert isinstance(second, Accepted)
        assert second.replayed
        assert second.booking == first.booking


@async_test
async def test_a_refused_hold_writes_nothing(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, max_unpaid_units_per_address=1)
        await run_commands(connection, [guest_hold(event)])
        before = await connection.fetch("SELECT * FROM booking, event, pool ORDER BY booking.id")
        assert await hold_one(connection, guest_hold(event)) == "address_limit_reached"
        assert await connection.fetch("SELECT * FROM booking, event, pool ORDER BY booking.id") == before


@async_test
async def test_an_address_gets_no_more_than_the_limit_of_its_org(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection)
        hold = guest_hold(event, units=3, unpaid_elsewhere=10, max_in_org=14)
        assert await hold_one(connection, hold) == "held"
        again = guest_hold(event, units=2, unpaid_elsewhere=10, max_in_org=14)
        (refused,) = await run_commands(connection, [again])
        assert isinstance(refused, Refused)
        assert refused.refusal.code == "address_limit_reached"
        assert "this address holds 13" in refused.detail


@async_test
async def test_what_is_paid_or_past_its_deadline_does_not_count_in_other_events(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, hold_seconds=60)
        paid = guest_hold(event)
        confirm = new_action_command(event, paid.booking, Verb.CONFIRM)
        outcomes = await run_commands(connection, [guest_hold(event, units=2), paid, confirm])
        assert codes(outcomes) == {"held": 3}
        for at_seconds, units in ((0, 2), (61, 0)):
            await shift_clock(connection, at_seconds)
            assert await count_elsewhere(connection, event) == units


@async_test
async def test_free_bookings_count_for_an_hour_in_other_events(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await new_event(connection, pools=FREE, policy={"confirm_at_once": True})
        assert codes(await run_commands(connection, [guest_hold(event, units=2)])) == {"held": 1}
        for at_seconds, units in ((0, 2), (FREE_BOOKING_SECONDS + 1, 0)):
            await shift_clock(connection, at_seconds)
            assert await count_elsewhere(connection, event) == units


async def count_elsewhere(connection: db.Connection, event: EventHandle) -> int:
    """The units that count against the limit of the org in any event but this one."""
    statement = sql.reads.unpaid_units_elsewhere(
        org=event.org, client=HERE, event=bytes(16), free_seconds=FREE_BOOKING_SECONDS
    )
    (row,) = await connection.fetch(*statement)
    units: int = row["units"]
    return units


async def let_expire(connection: db.Connection, holds: Sequence[PlaceHold], at_seconds: int) -> None:
    """Place the holds and set the clock to when they have run out."""
    outcomes = await run_commands(connection, holds)
    assert codes(outcomes) == {"held": len(holds)}
    await shift_clock(connection, at_seconds)


@async_test
async def test_a_guest_cools_down_after_holds_that_ran_out_in_a_row(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, cooldown_after_expired=2, cooldown_seconds=600, hold_seconds=60)
        await let_expire(connection, [guest_hold(event, "ann")], 61)
        await let_expire(connection, [guest_hold(event, "ann")], 122)
        (refused,) = await run_commands(connection, [guest_hold(event, "ann")])
        assert isinstance(refused, Refused)
        assert refused.refusal.code == "too_many_expired_holds"
        assert refused.retry_after is not None
        assert 0 < refused.retry_after <= 600
        assert f"in {refused.retry_after} seconds" in refused.detail
        assert await hold_one(connection, guest_hold(event, "ben")) == "held"
        await shift_clock(connection, 122 + 601)
        assert await hold_one(connection, guest_hold(event, "ann")) == "held"
        await shift_clock(connection, 122 + 601 + 61)
        assert await hold_one(connection, guest_hold(event, "ann")) == "too_many_expired_holds"
        assert (await audit_event(db.Database(connection), event.id)).findings == []


@async_test
async def test_a_confirmed_booking_ends_the_row(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, cooldown_after_expired=2, hold_seconds=60)
        await let_expire(connection, [guest_hold(event, "ann")], 61)
        paid = guest_hold(event, "ann")
        await run_commands(connection, [paid, new_action_command(event, paid.booking, Verb.CONFIRM)])
        await let_expire(connection, [guest_hold(event, "ann")], 122)
        assert await hold_one(connection, guest_hold(event, "ann")) == "held"
        await shift_clock(connection, 183)
        assert await hold_one(connection, guest_hold(event, "ann")) == "too_many_expired_holds"


@async_test
async def test_cancelling_a_hold_is_no_offence(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, cooldown_after_expired=1)
        for _ in range(3):
            hold = guest_hold(event, "ann")
            await let_expire(connection, [hold], 0)
            await run_commands(connection, [new_action_command(event, hold.booking, Verb.CANCEL)])
        assert await hold_one(connection, guest_hold(event, "ann")) == "held"


@async_test
async def test_an_address_cools_down_after_ten_times_as_many_as_a_guest(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, cooldown_after_expired=1, hold_seconds=60)
        await let_expire(connection, [guest_hold(event) for _ in range(9)], 61)
        assert await hold_one(connection, guest_hold(event)) == "held"
        await shift_clock(connection, 122)
        assert await hold_one(connection, guest_hold(event)) == "too_many_expired_holds"
        assert await hold_one(connection, guest_hold(event, address=ELSEWHERE)) == "held"


@async_test
async def test_holds_that_expire_in_the_same_batch_count(database: str) -> None:
    """The batch that records the expiry also refuses the next hold."""
    async with lane_connection(database) as connection:
        event = await sell(connection, cooldown_after_expired=1, hold_seconds=60)
        await let_expire(connection, [guest_hold(event, "ann")], 61)
        outcomes = await run_commands(connection, [guest_hold(event, "ann"), guest_hold(event, "ben")])
        assert codes(outcomes) == {"too_many_expired_holds": 1, "held": 1}


@async_test
async def test_a_booking_that_is_confirmed_in_the_same_batch_ends_the_row(database: str) -> None:
    async with lane_connection(database) as connection:
        event = await sell(connection, cooldown_after_expired=1, hold_seconds=60)
        await let_expire(connection, [guest_hold(event, "ann")], 30)
        paid = guest_hold(event, "ann")
        await let_expire(connection, [paid], 61)
        confirm = new_action_command(event, paid.booking, Verb.CONFIRM)
        outcomes = await run_commands(connection, [guest_hold(event, "ann"), confirm, guest_hold(event, "ann")])
        assert [next(iter(codes([outcome]))) for outcome in outcomes] == ["too_many_expired_holds", "held", "held"]


@in_any_batches
@async_test
async def test_late_receipts_revive_no_more_than_the_address_may_hold(database: str, run: Run) -> None:
    async with lane_connection(database) as connection:
        event = await sell(
            connection, hold_seconds=60, review="manual", late_grace_seconds=600, max_unpaid_units_per_address=3
        )
        holds = []
        for round_ in range(3):
            holds += [guest_hold(event, units=3)]
            await let_expire(connection, holds[-1:], 61 * (round_ + 1))
        receipts: list[Command] = [_late_receipt(event, hold) for hold in holds]
        outcomes = await run(connection, receipts)
        assert codes(outcomes) == {"held": 1, "hold_expired": 2}
        assert await connection.fetchval("SELECT held FROM pool") == 3


def _late_receipt(event: EventHandle, hold: PlaceHold) -> SubmitReceipt:
    receipt = Receipt(id=ids.new_id(), hash=hold.booking * 2, content_type="application/pdf", size=60)
    return SubmitReceipt(
        event=event.id, org=event.org, booking=hold.booking, payment=ids.new_id(), receipt=receipt, actor="test"
    )


@async_test
async def test_a_batch_counts_what_a_user_has_as_its_bookings_say(database: str) -> None:
    """Held, paid, free and new, free and old, cancelled, and of somebody else."""
    async with lane_connection(database) as connection:
        pools = [*one_pool(100), {"code": "free", "capacity": 100}]
        event = await new_event(connection, pools=pools, policy={"max_units_per_user": 1000})
        names = ("places", "places", "free", "free", "places")
        mine = [
            structs.replace(new_hold_command(event, user="ada"), items=(PoolItem(name, units),))
            for units, name in enumerate(names, 1)
        ]
        await run_commands(connection, [*mine, new_hold_command(event, user="bob")])
        paid, new, old, cancelled = mine[1:]
        ends = [new_action_command(event, hold.booking, Verb.CONFIRM) for hold in (paid, new, old)]
        await run_commands(connection, [*ends, new_action_command(event, cancelled.booking, Verb.CANCEL)])
        await connection.execute(
            "UPDATE booking SET created_at = created_at - make_interval(secs => $2) WHERE id = $1",
            old.booking,
            FREE_BOOKING_SECONDS,
        )
        loaded = await load_batch(connection, LayoutCache(), {event.id: [new_hold_command(event, user="ada")]})
        assert dict(loaded.states[event.id].users) == {
            "ada": UserRecord(bookings=4, units=10, unpaid_units=4, booking=max(hold.booking for hold in mine[:4]))
        }
