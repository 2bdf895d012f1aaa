"""Push messages to buyers: a browser subscribes to a booking, and gets the script that shows the messages."""

from importlib import resources
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.booking_schemas import BookingView
from holdfast.core.states import Status
from holdfast.notifications.hold_warnings import WARNING_SECONDS
from holdfast.notifications.push_subscriptions import list_endpoint_hashes, parse_subscription, subscribe
from holdfast.notifications.vapid import vapid_key
from holdfast.runtime import ids
from holdfast.web.assets import asset_response, make_asset
from holdfast.web.page_problems import NOT_FOUND, PageError, PageProblem
from holdfast.web.page_request import PageRequest
from holdfast.web.recovered_bookings import act_for_owner
from holdfast.web.security import content_security_policy
from holdfast.web.site import Site, json_response

# Browsers look for a new version at the same address, and let a script control only pages below its own folder.
WORKER_PATH: Final = "/push_worker.js"
SCOPE: Final = "/b/"
_WORKER: Final = make_asset(
    resources.files(__package__).joinpath("static/push_worker.js").read_bytes(), "text/javascript; charset=utf-8"
)


def push_routes(site: Site) -> list[Route]:
    return [
        Route(WORKER_PATH, site.file(send_worker), methods=["GET"]),
        Route("/b/{booking}/notify", site.page(notify), methods=["POST"]),
    ]


async def send_worker(request: Request) -> Response:
    """The script has a policy of its own: it may load nothing."""
    response = asset_response(request, _WORKER, "no-cache")
    response.headers["content-security-policy"] = content_security_policy("'none'", has_scripts=False)
    return response


async def notify(page: PageRequest) -> Response:
    """Store the subscription of a browser that has the booking. The page's script sends it, and shows the answer."""
    booking: str = page.request.path_params["booking"]
    parsed = ids.parse_booking_id(booking)
    if parsed is None or not page.site.settings.web_push:
        raise PageError(NOT_FOUND)
    await page.load_org_of(parsed[0])
    await act_for_owner(page, booking)
    fields = await page.read_fields()
    await page.customer.get_booking(booking)
    number = fields.get("key_number", "")
    subscription = parse_subscription(
        endpoint=fields.get("endpoint", ""),
        p256dh=fields.get("p256dh", ""),
        auth=fields.get("auth", ""),
        key_number=int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0,
        language=page.language,
    )
    keyring = await page.site.push_secret.keyring()
    if subscription is None or keyring.find(subscription.key_number) is None:
        raise PageError(PageProblem(422, "invalid_request"))
    if not page.site.push_services.includes(subscription.endpoint):
        raise PageError(PageProblem(422, "unknown_push_service"))
    if not await subscribe(page.site.database, *parsed, subscription):
        raise PageError(PageProblem(409, "outdated"))
    return json_response({"subscribed": True})


async def push_data(page: PageRequest, booking: BookingView) -> dict[str, Any] | None:
    """What the page's script needs to offer push messages. None: there is nothing to wait for, or nobody to send."""
    parsed = ids.parse_booking_id(booking.id)
    if not page.site.settings.web_push or not _waits_for_something(booking) or parsed is None:
        return None
    secret = (await page.site.push_secret.keyring()).signing
    return {
        "key": vapid_key(secret).public,
        "keyNumber": secret.number,
        "worker": WORKER_PATH,
        "scope": SCOPE,
        "subscribed": await list_endpoint_hashes(page.site.database, *parsed),
    }


def _waits_for_something(booking: BookingView) -> bool:
    """In the last minutes of a hold, a warning would come too late."""
    if booking.status is Status.PAYMENT_SUBMITTED:
        return True
    return booking.status is Status.HELD and (booking.expires_in_seconds or 0) > WARNING_SECONDS
