"""Checks that the journal explains every booking, and that nothing refers to bookings or entries that do not exist."""

from typing import Final, Literal

from msgspec import Struct

from holdfast import sql
from holdfast.core.states import edges
from holdfast.engine.findings import EventFindings
from holdfast.runtime.db import DatabaseScope

StrayKind = Literal["line", "entry", "receipt"]

STRAYS: Final[dict[StrayKind, str]] = {
    "line": "Lines refer to this booking, which does not exist. Restore the booking from a backup.",
    "entry": "The journal has this booking, but the booking does not exist. Restore it from a backup.",
    "receipt": "Receipts refer to this booking, which does not exist. Restore the booking from a backup.",
}


class UserRow(Struct, frozen=True):
    id: bytes
    bookings: int


class StrayRow(Struct, frozen=True):
    id: bytes
    kind: StrayKind


class TransitionRow(Struct, frozen=True):
    """`was` is what the journal says, and `became` what came of it. For versions and generations, both are numbers."""

    what: Literal["transition", "booking_status", "booking_version", "booking_generation"]
    id: bytes
    was: str
    became: str
    number: int


class CheckinRow(Struct, frozen=True):
    id: bytes
    line: int
    unit: int
    status: str | None
    quantity: int | None


class DeliveryRow(Struct, frozen=True):
    number: int
    deliveries: int


async def check_history(scope: DatabaseScope, event: bytes, findings: EventFindings) -> None:
    for user in await scope.rows(UserRow, sql.audit.users, event):
        findings.add(
            "one_per_user",
            findings.booking(user.id),
            f"The user of this booking has {user.bookings} live bookings, but the event allows one. "
            "Cancel or refund those that should not be there.",
        )
    for stray in await scope.rows(StrayRow, sql.audit.strays, event):
        findings.add(f"{stray.kind}_without_booking", findings.booking(stray.id), STRAYS[stray.kind])
    sources, targets = _allowed_transitions()
    for row in await scope.rows(TransitionRow, sql.audit.transitions, event, sources, targets):
        findings.add(row.what, findings.booking(row.id), _describe_transition(row))
    for checkin in await scope.rows(CheckinRow, sql.audit.checkins, event):
        _report_checkin(checkin, findings)
    for delivery in await scope.rows(DeliveryRow, sql.audit.deliveries, event):
        findings.add(
            "delivery_without_entry",
            str(delivery.number),
            f"{delivery.deliveries} notifications report entry {delivery.number} of the journal, which does not exist. "
            "Tell their recipients that they may be wrong.",
        )


def _allowed_transitions() -> tuple[list[str], list[str]]:
    """The sources and targets of all changes of status that the table of states allows. '' is the start."""
    pairs = [("" if source is None else source.value, target.value) for source, target, _ in edges()]
    return [source for source, _ in pairs], [target for _, target in pairs]


def _describe_transition(row: TransitionRow) -> str:
    match row.what:
        case "transition":
            move = f"from {row.was} to {row.became}" if row.was else f"to {row.became} as its first status"
            return f"Entry {row.number} of the journal moves the booking {move}, which is not allowed. Check it."
        case "booking_status":
            known = f"entry {row.number} of the journal says {row.was}" if row.was else "the journal does not have it"
            return f"The booking is {row.became}, but {known}. Somebody has changed its status without the engine."
        case "booking_version":
            return (
                f"The last entry about the booking is {row.was}, but the booking names entry {row.became}. "
                "Somebody has changed the booking or the journal without the engine."
            )
        case "booking_generation":
            return (
                f"The journal has {row.was} transfers of the booking, but the booking counts {row.became}. Somebody "
                "has changed it without the engine, which can void tickets or revive void ones."
            )


def _report_checkin(checkin: CheckinRow, findings: EventFindings) -> None:
    booking = findings.booking(checkin.id)
    if checkin.status is None:
        findings.add(
            "checkin_without_booking", booking, "Somebody entered with a ticket of this booking, which does not exist."
        )
    elif checkin.quantity is None or not 0 <= checkin.unit < checkin.quantity:
        findings.add(
            "checkin_without_ticket",
            booking,
            f"Somebody entered with unit {checkin.unit} of line {checkin.line}, which the booking does not have.",
        )
    else:
        findings.add(
            "checkin_not_confirmed",
            booking,
            f"Somebody entered with a ticket of this booking, which is {checkin.status} and has never been confirmed.",
        )
