"""Handing a confirmed booking to another person."""

from typing import Final

from holdfast.core.act import ended, named
from holdfast.core.book import Book
from holdfast.core.commands import Done, Transfer
from holdfast.core.place import check_user
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.states import TRANSITIONS, Status, Verb

# As many as a ticket's code has room for.
GENERATIONS_MAX: Final = 65_535


def transfer(book: Book, command: Transfer) -> Done:
    """To the one who has it already, nothing changes."""
    booking = ended(book, named(book, command))
    if booking.status is not Status.CONFIRMED:
        said = TRANSITIONS[booking.status, Verb.COMPLETE]
        raise RefusedError(said if isinstance(said, Refusal) else Refusal.ALREADY_COMPLETED)
    if command.user != booking.user:
        if command.generation != booking.generation:
            raise RefusedError(Refusal.ALREADY_TRANSFERRED)
        if booking.generation >= GENERATIONS_MAX:
            raise RefusedError(Refusal.LIMIT_REACHED, "The booking was handed on too often.")
        check_user(book, command.user, booking.lines)
        booking = book.hand(booking, command.user, command.email, command.language, command.actor)
    return Done(booking, book.layout, book.now)
