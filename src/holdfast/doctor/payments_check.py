"""Whether buyers can pay. Other checks ask the providers themselves."""

from msgspec import Struct

from holdfast import sql
from holdfast.doctor.check import Results, ok, warning
from holdfast.doctor.installation import Installation
from holdfast.runtime import ids
from holdfast.runtime.settings import Settings


class UnpayableEvent(Struct, frozen=True):
    id: bytes
    title: str


async def check_payments(installation: Installation) -> Results:
    providers = _name_providers(installation.settings)
    if providers:
        yield ok(f"Buyers can pay online with {' and '.join(providers)}.")
        return
    database = await installation.database.require_schema()
    event = await database.all_events.row(UnpayableEvent, sql.doctor.unpayable_event)
    if event is None:
        yield ok("No payment provider is set up, and no published event needs one.")
    else:
        yield warning(
            f"Buyers cannot pay for {event.title} ({ids.format_event_id(event.id)}): no payment provider is set up, "
            "and the event has neither manual review nor payment instructions.",
            "Set HOLDFAST_STRIPE_KEY, or let buyers pay by receipt (docs/payments.md).",
        )


def _name_providers(settings: Settings) -> list[str]:
    keys = {"Stripe": settings.stripe_key, "the sandbox": settings.sandbox_webhook_secret}
    return [name for name, key in keys.items() if key is not None]
