"""Whether buyers can pay. Other checks ask the providers themselves."""

from typing import Final

from msgspec import Struct

from holdfast import sql
from holdfast.doctor.check import Results, ok, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime import ids
from holdfast.runtime.settings import Settings

_NAMES: Final = {"stripe": "Stripe", "sandbox": "the sandbox"}


class UnpayableEvent(Struct, frozen=True):
    """`providers` are those that the event is limited to."""

    id: bytes
    title: str
    providers: list[str] | None


async def check_payments(installation: Installation) -> Results:
    providers = _find_providers(installation.settings)
    if providers:
        yield ok(f"Buyers can pay online with {' and '.join(_NAMES[code] for code in providers)}.")
    database = await installation.database.require_schema()
    event = await database.all_events.row(UnpayableEvent, sql.doctor.unpayable_event, providers)
    if event is not None:
        if event.providers is None:
            reason, remedy = "no payment provider is set up", "Set HOLDFAST_STRIPE_KEY"
        else:
            reason = f"none of its payment providers is set up ({', '.join(event.providers)})"
            remedy = "Set one of them up, change `providers` of the event"
        yield warning(
            f"Buyers cannot pay in Holdfast for {event.title} ({ids.format_event_id(event.id)}): {reason}, "
            "and the event has neither manual review nor payment instructions.",
            f"{remedy}, or let buyers pay by receipt. If your own back end confirms the bookings, set `providers` of "
            "the event to [] (docs/payments.md).",
        )
    elif not providers:
        yield ok("No payment provider is set up, and no published event needs one.")


def _find_providers(settings: Settings) -> list[str]:
    keys = {"stripe": settings.stripe_key, "sandbox": settings.sandbox_webhook_secret}
    return [code for code, key in keys.items() if key is not None]
