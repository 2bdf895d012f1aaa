"""The handlers of all updates, in the order in which they are tried."""

from aiogram import Dispatcher

from holdfast.bot import (
    language_handlers,
    linking_handlers,
    receipt_handlers,
    registration_handlers,
    review_handlers,
    roster_handlers,
    shift_form_handlers,
    staff_handlers,
    worker_handlers,
)


def make_dispatcher() -> Dispatcher:
    """The handlers of staff come first: somebody may be alone in the admin chat, and a worker as well."""
    dispatcher = Dispatcher(disable_fsm=True)
    dispatcher.include_routers(
        linking_handlers.router,
        language_handlers.router,
        review_handlers.router,
        shift_form_handlers.router,
        roster_handlers.router,
        staff_handlers.router,
        registration_handlers.router,
        receipt_handlers.router,
        worker_handlers.router,
    )
    return dispatcher
