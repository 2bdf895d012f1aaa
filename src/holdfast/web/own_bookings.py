"""The buyer's own bookings of an event, where they explain why the buyer cannot book something again."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.api.booking_schemas import BookingView
from holdfast.core.states import Status
from holdfast.i18n.texts import translate
from holdfast.web.booking_summary import seat_labels
from holdfast.web.page_problems import PageProblem


class Notice(Struct, frozen=True):
    """What a page says, and the link that helps the reader along."""

    text: str
    url: str | None = None
    link: str | None = None


def own_booking_notice(language: str, booking: BookingView, *, seats: Sequence[str] = (), text: str = "") -> Notice:
    """Say that the buyer already has these seats, or a spot, and link to the booking. `text` comes first."""
    is_held = booking.status is Status.HELD
    what = "seats" if seats else "place"
    key = f"own.{what}_held" if is_held else f"own.{what}"
    words = [text, translate(language, key, seats=", ".join(seats))]
    return Notice(" ".join(filter(None, words)), f"/b/{booking.id}", own_booking_link(language, booking))


def own_booking_link(language: str, booking: BookingView) -> str:
    needs_payment = booking.status is Status.HELD and booking.total
    return translate(language, "own.pay" if needs_payment else "own.see")


def own_booking_data(language: str, booking: BookingView) -> dict[str, Any]:
    """The booking, for scripts that find one of its seats taken."""
    return {
        "seats": seat_labels(booking),
        "url": f"/b/{booking.id}",
        "isHeld": booking.status is Status.HELD,
        "link": own_booking_link(language, booking),
    }


def blocking_booking(bookings: Sequence[BookingView], *, is_single: bool) -> BookingView | None:
    """The booking that keeps its owner from booking more, in an event with one booking or one unit per person."""
    return bookings[0] if is_single and bookings else None


def split_conflicts(problem: PageProblem, booking: BookingView) -> tuple[list[str], list[str]]:
    """The seats that this booking has, and those that somebody else took."""
    own = seat_labels(booking)
    return [seat for seat in problem.conflicts if seat in own], [seat for seat in problem.conflicts if seat not in own]
