"""An event whose pools have times of their own, and the people who book it."""

from typing import Any, Final

import httpx

from tests.support.harness import example_event, post_hold
from tests.support.html_client import redirect_target
from tests.support.http_assertions import expect_ok

PRICE: Final = [{"code": "adult", "name": "Adult", "price": 1200}]
# The event's own time is that of the exhibition. In Madrid, all times are an hour later.
TOURS: Final[list[dict[str, Any]]] = [
    {
        "code": "ten",
        "name": "Morning tour",
        "capacity": 5,
        "tariffs": PRICE,
        "starts_at": "2027-03-06T09:00:00Z",
        "ends_at": "2027-03-06T10:30:00Z",
    },
    {
        "code": "noon",
        "name": "Noon tour",
        "capacity": 5,
        "tariffs": PRICE,
        "starts_at": "2027-03-07T11:00:00Z",
    },
    {"code": "exhibition", "name": "Exhibition only", "capacity": 5, "tariffs": PRICE},
]
MORNING: Final = "Saturday, March 6, 2027, 10:00 AM – 11:30 AM (Central European Standard Time)"  # noqa: RUF001
NOON: Final = "Sunday, March 7, 2027, 12:00 PM (Central European Standard Time)"
EVENT: Final = "Friday, March 5, 2027, 8:00 PM (Central European Standard Time)"


def tour_event(**changes: Any) -> dict[str, Any]:
    fields = {"title": "The museum", "timezone": "Europe/Madrid", "ends_at": "2027-03-08T19:00:00Z", "pools": TOURS}
    return example_event(**{**fields, "policy": {"review": "manual"}, **changes})


def hold_pools(client: httpx.Client, event: str, *pools: str, **hold: Any) -> str:
    """Hold one unit of each pool and return the booking."""
    booking: str = expect_ok(post_hold(client, event, items=[{"pool": pool} for pool in pools], **hold), 201)["id"]
    return booking


def book_pools(client: httpx.Client, event: str, *pools: str, **hold: Any) -> str:
    booking = hold_pools(client, event, *pools, **hold)
    expect_ok(client.post(f"/v1/bookings/{booking}/confirm"))
    return booking


def sign_in(browser: httpx.Client, admin: httpx.Client, user: str) -> None:
    token = expect_ok(admin.post("/v1/customer-tokens", json={"user": user}), 201)["token"]
    redirect_target(browser.get("/enter", params={"token": token}))
