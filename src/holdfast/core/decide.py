"""What becomes of a batch of commands to one event.

`decide` is a pure function of the book and the commands: the clock is in the book, and ids come with the commands.
Refusals are found in the order of `refusals.py` and write nothing.
"""

from collections.abc import Sequence
from typing import assert_never

from holdfast.core.act import act, ended, moved
from holdfast.core.book import SYSTEM, Book
from holdfast.core.commands import Act, Command, Done, Pay, Place, Resolve, Settle, Submit, Transfer
from holdfast.core.pay import pay, resolve, settle, submit
from holdfast.core.place import place
from holdfast.core.refusals import Refused, RefusedError
from holdfast.core.states import ENDINGS, Status
from holdfast.core.transfer import transfer

Outcome = Done | Refused


def decide(book: Book, commands: Sequence[Command]) -> list[Outcome]:
    """One outcome for each command, in order. Holds that are due end first, so their units are free at once."""
    expire_due(book)
    return [_answer(book, command) for command in commands]


def expire_due(book: Book) -> int:
    due = [booking for booking in book.bookings.values() if booking.is_due(book.now)]
    for booking in due:
        late = booking.status is Status.PAYMENT_SUBMITTED
        moved(book, booking, Status.EXPIRED, SYSTEM, "The receipt was not reviewed in time." if late else None)
    return len(due)


def wind_up(book: Book) -> int:
    """End the bookings of an event that is over or called off, as far as they are in the book."""
    if book.layout.status not in ENDINGS:
        return 0
    bookings = list(book.bookings.values())
    return sum(ended(book, booking) is not booking for booking in bookings)


def _answer(book: Book, command: Command) -> Outcome:
    try:
        return _done(book, command)
    except RefusedError as error:
        return error.refused


def _done(book: Book, command: Command) -> Done:
    match command:
        case Place():
            return place(book, command)
        case Act():
            return act(book, command)
        case Pay():
            return pay(book, command)
        case Submit():
            return submit(book, command)
        case Settle():
            return settle(book, command)
        case Resolve():
            return resolve(book, command)
        case Transfer():
            return transfer(book, command)
        case _:
            assert_never(command)
