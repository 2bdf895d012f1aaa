"""The buttons of the bot. What a button carries comes back from Telegram when somebody presses it."""

from typing import Final

from aiogram.filters.callback_data import CallbackData

from holdfast.api.responses import EventView
from holdfast.bot.markup import Button, pack_id
from holdfast.bot.org_api import event_id_of
from holdfast.i18n.formatting import shorten

LABEL_MAX: Final = 60


class PackedButton(CallbackData, prefix=""):
    """Ids are packed, because a button has room for 64 bytes."""

    def button(self, text: str) -> Button:
        return Button(text, data=self.pack())


class TakeButton(PackedButton, prefix="take"):
    event: str


class GiveUpButton(PackedButton, prefix="drop"):
    booking: str


class ReceiptButton(PackedButton, prefix="for"):
    """Which booking the file is for that the worker has just sent."""

    booking: str


class DecideButton(PackedButton, prefix="ok"):
    booking: str


class ReasonButton(PackedButton, prefix="no"):
    """Rejects for this reason. An empty reason asks for one, and `text` waits until somebody types it."""

    booking: str
    reason: str


class ShiftButton(PackedButton, prefix="shift"):
    action: str
    event: str


def shift_button(action: str, view: EventView, text: str) -> Button:
    event = event_id_of(view)
    return ShiftButton(action=action, event=pack_id(event)).button(shorten(text, LABEL_MAX))


class FormButton(PackedButton, prefix="form"):
    """A step of the form that makes or changes a shift. `field` names what to change, or has a value for it. `at` is
    the place in the form that the button belongs to."""

    action: str
    field: str = ""
    at: str = ""


class AttendeeButton(PackedButton, prefix="who"):
    action: str
    booking: str


class LanguageButton(PackedButton, prefix="lang"):
    language: str


class ConsentButton(PackedButton, prefix="yes"):
    event: str = ""
