"""Records what becomes of commands."""

from typing import Final

from holdfast.core.commands import (
    Accepted,
    ActOnBooking,
    Command,
    PlaceHold,
    ResolvePayment,
    SettlePayment,
    StartPayment,
    SubmitReceipt,
    TransferBooking,
)
from holdfast.core.decide import Outcome
from holdfast.core.refusals import Refusal
from holdfast.core.states import Verb
from holdfast.runtime import metrics

COMMAND_NAMES: Final[dict[type[Command], str]] = {
    PlaceHold: "place_hold",
    StartPayment: "start_payment",
    SubmitReceipt: "submit_receipt",
    SettlePayment: "settle_payment",
    ResolvePayment: "resolve_payment",
    TransferBooking: "transfer",
}
# Other refusals of a payment are not about the hold's deadline.
_LATE_PAYMENT: Final = frozenset({Refusal.HOLD_EXPIRED, Refusal.BUSY, Refusal.INTERNAL})


def command_name(command: Command) -> str:
    return command.verb.value if isinstance(command, ActOnBooking) else COMMAND_NAMES[type(command)]


def outcome_name(outcome: Outcome) -> str:
    """`placed`, `replayed`, or the code of the refusal."""
    if isinstance(outcome, Accepted):
        return "replayed" if outcome.replayed or outcome.is_reentrant else "placed"
    return outcome.refusal.code


def record_hold(outcome: Outcome, path: str) -> Outcome:
    metrics.HOLD_ATTEMPTS.add(outcome_name(outcome), path)
    return outcome


def record_refusal(command: Command, refusal: Refusal) -> None:
    if _would_extend(command, refusal):
        metrics.HOLD_EXTENSIONS.add(_extension_outcome(refusal))


def _would_extend(command: Command, refusal: Refusal) -> bool:
    """Whether the refusal prevents an extension. The start of a payment extends the hold too. `commit_metrics` counts
    the extensions that are made."""
    if isinstance(command, ActOnBooking):
        return command.verb is Verb.EXTEND
    return isinstance(command, StartPayment) and refusal in _LATE_PAYMENT


def _extension_outcome(refusal: Refusal) -> str:
    if refusal is Refusal.HOLD_EXPIRED:
        return "expired_before_checkout"
    return "failed" if refusal in (Refusal.BUSY, Refusal.INTERNAL) else "refused"
