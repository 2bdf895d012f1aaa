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
from holdfast.runtime import metrics

COMMAND_NAMES: Final[dict[type[Command], str]] = {
    PlaceHold: "place_hold",
    StartPayment: "start_payment",
    SubmitReceipt: "submit_receipt",
    SettlePayment: "settle_payment",
    ResolvePayment: "resolve_payment",
    TransferBooking: "transfer",
}
# Starting a payment extends the hold.
_EXTENDING: Final = frozenset({"extend", "start_payment"})


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


def record_outcome(command: Command, seconds: float, outcome: Outcome) -> None:
    """`seconds` is how long the command took."""
    name = command_name(command)
    metrics.COMMAND_SECONDS.observe(seconds, name)
    if name in _EXTENDING:
        metrics.HOLD_EXTENSIONS.add(_extension_outcome(outcome))


def _extension_outcome(outcome: Outcome) -> str:
    if isinstance(outcome, Accepted):
        return "extended"
    if outcome.refusal is Refusal.HOLD_EXPIRED:
        return "expired_before_checkout"
    return "failed" if outcome.refusal in (Refusal.BUSY, Refusal.INTERNAL) else "refused"
