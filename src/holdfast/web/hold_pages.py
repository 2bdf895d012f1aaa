"""The form that places a hold, and the page that asks for what the form could not."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import json
from starlette.responses import Response
from starlette.routing import Route

from holdfast.api.booking_schemas import BookingView, HoldNew
from holdfast.api.requests import ContactNew
from holdfast.api.responses import EventView
from holdfast.core.buyer_form import ANSWERS_BYTES_MAX
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.sales_window import SaleState
from holdfast.core.stock_schemas import TARIFFS_MAX
from holdfast.i18n.formatting import format_moment
from holdfast.i18n.texts import translate
from holdfast.web.buyer_fields import (
    UNIT_ANSWERS_MAX,
    all_fields,
    answered_units_max,
    asks_about_units,
    find_problems,
    read_answers,
    read_contact,
)
from holdfast.web.customer_api import idempotency_key
from holdfast.web.details_page import details_page
from holdfast.web.event_listing import EventListing
from holdfast.web.event_pages import SentForm, event_page, load_event, needs_check
from holdfast.web.guest_check import CHECK_EXPIRED, verify_solution
from holdfast.web.hold_choice import TOO_MANY_UNITS, HoldChoice, read_choice
from holdfast.web.own_bookings import Notice, own_booking_link, own_booking_notice, split_conflicts
from holdfast.web.page_problems import PageError, PageProblem, problem_of, refusal_text
from holdfast.web.page_request import PageRequest
from holdfast.web.pool_offers import event_sale, pool_offers
from holdfast.web.site import Site, json_response, redirect_to_parent
from holdfast.web.unit_rules import units_correction

WRONG_FIELDS: Final = PageProblem(422, "wrong_fields")
LONG_ANSWERS: Final = PageProblem(422, "long_answers")
# The browser has to open the page that asks for the rest.
DETAILS_NEEDED: Final = PageProblem(422, "details_needed")
# Every tariff of an event has a field, and so does every answer about a unit.
HOLD_FIELDS_MAX: Final = TARIFFS_MAX + UNIT_ANSWERS_MAX + 100
# Refusals that fields of the form explain.
FIELD_CODES: Final = {"wrong_fields", "invalid_request", "contact_required", "answer_required"}


def hold_routes(site: Site) -> list[Route]:
    return [
        Route("/e/{event}/hold", site.page(place_hold), methods=["POST"]),
        Route("/e/{event}/hold", site.page(redirect_to_parent), methods=["GET"]),
    ]


async def place_hold(page: PageRequest) -> Response:
    """The same form sent twice is one hold; another choice on it is another hold."""
    listing = await load_event(page)
    fields = await page.read_fields(HOLD_FIELDS_MAX)
    try:
        choice = read_choice(fields, listing.event)
        if _needs_details(listing, choice, fields):
            return await _ask_for_details(page, listing, choice, fields)
        booking = await _place_hold(page, listing.event, _hold(page, listing.event, choice, fields), fields)
    except (RefusedError, PageError) as error:
        return await _refused_response(page, listing, problem_of(error), fields)
    page.keep_session_for(listing.event)
    if page.wants_json:
        return json_response({"booking": f"/b/{booking.id}"}, 201)
    return page.redirect(f"/b/{booking.id}")


def _needs_details(listing: EventListing, choice: HoldChoice, fields: Mapping[str, str]) -> bool:
    """Whether the buyer has chosen, but not seen all questions yet. Without scripts, the page cannot ask about each
    unit before it knows how many there are, and the form for the best seats asks nothing."""
    event = listing.event
    if choice.units > (answered_units_max(event) or choice.units):
        raise PageError(TOO_MANY_UNITS)
    if asks_about_units(event):
        needs_details = fields.get("asked") != str(choice.units)
    else:
        asks = bool(event.contact.required or event.questions)
        needs_details = choice.best is not None and "asked" not in fields and asks
    return needs_details and event_sale(pool_offers(listing)).state is SaleState.OPEN


async def _ask_for_details(
    page: PageRequest, listing: EventListing, choice: HoldChoice, fields: Mapping[str, str]
) -> Response:
    if page.wants_json:
        return json_response({"code": DETAILS_NEEDED.code}, DETAILS_NEEDED.status)
    return await details_page(page, listing, choice, SentForm(fields))


def _hold(page: PageRequest, event: EventView, choice: HoldChoice, fields: Mapping[str, str]) -> HoldNew:
    """The request for the API. The engine decides whether an answer is missing, because a buyer who already has these
    seats needs no answers."""
    problems = find_problems(all_fields(event, page.language, choice.units), fields)
    if any(problem != "required" for problem in problems.values()):
        raise PageError(WRONG_FIELDS)
    wanted: dict[str, Any] = {"best_available": choice.best} if choice.best else {"items": list(choice.items)}
    contact = read_contact(event, page.language, fields)
    email = contact.pop("email", None)
    if any(contact.values()):
        wanted["contact"] = ContactNew(**contact)
    if answers := read_answers(event, fields, choice.units):
        if len(json.encode(answers)) > ANSWERS_BYTES_MAX:
            raise PageError(LONG_ANSWERS)
        wanted["answers"] = answers
    return HoldNew(**wanted, email=email, language=page.language)


async def _place_hold(page: PageRequest, event: EventView, hold: HoldNew, fields: dict[str, str]) -> BookingView:
    if not needs_check(page, event):
        return await page.customer.place_hold(event.id, hold, idempotency_key(fields, hold))
    # The solution is the idempotency key, so it is valid for one hold, however often the browser sends the form.
    seed = verify_solution(page.keyring, event.id, page.session.guest, event.policy.guest_check_bits, fields)
    try:
        return await page.customer.place_hold(event.id, hold, seed)
    except RefusedError as error:
        if error.refused.refusal is Refusal.IDEMPOTENCY_KEY_REUSED:
            raise PageError(CHECK_EXPIRED) from None
        raise


async def _refused_response(
    page: PageRequest, listing: EventListing, problem: PageProblem, fields: Mapping[str, str]
) -> Response:
    """The page keeps what the buyer typed and chose."""
    event = listing.event
    choice = _sent_choice(fields, event)
    errors = _field_errors(page, event, choice, problem, fields)
    notice = await _notice(page, listing, problem, fields, is_marked=bool(errors))
    if page.wants_json:
        return json_response(_refusal_data(problem, notice, errors), problem.status)
    sent = SentForm(fields, errors, notice)
    if errors and choice is not None and (choice.best is not None or asks_about_units(event)):
        return await details_page(page, listing, choice, sent, problem.status)
    return await event_page(page, listing, sent, problem.status)


def _sent_choice(fields: Mapping[str, str], event: EventView) -> HoldChoice | None:
    try:
        return read_choice(fields, event)
    except (PageError, RefusedError):
        return None


def _field_errors(
    page: PageRequest, event: EventView, choice: HoldChoice | None, problem: PageProblem, fields: Mapping[str, str]
) -> dict[str, str]:
    if problem.code not in FIELD_CODES or choice is None or choice.units > (answered_units_max(event) or choice.units):
        return {}
    problems = find_problems(all_fields(event, page.language, choice.units), fields)
    return {name: translate(page.language, f"field.{found}") for name, found in problems.items()}


def _refusal_data(problem: PageProblem, notice: Notice, errors: Mapping[str, str]) -> dict[str, Any]:
    data: dict[str, Any] = {"code": problem.code, "text": notice.text, "conflicts": problem.conflicts}
    if notice.url is not None:
        data |= {"url": notice.url, "link": notice.link}
    return data | ({"errors": errors} if errors else {})


async def _notice(
    page: PageRequest, listing: EventListing, problem: PageProblem, fields: Mapping[str, str], *, is_marked: bool
) -> Notice:
    event, language = listing.event, page.language
    if is_marked and problem.code == "invalid_request":
        problem = WRONG_FIELDS
    limit = event.policy.max_units_per_user
    hint = _hint(event, problem, language)
    text = refusal_text(language, problem, limit=limit, of_best="best_pool" in fields, hint=hint)
    booking = await _own_booking(page, problem)
    if booking is None:
        return Notice(text)
    if problem.code == "seat_taken":
        return _own_seats_notice(language, problem, booking)
    if problem.code == "limit_reached" and limit != 1:
        return Notice(text, f"/b/{booking.id}", own_booking_link(language, booking))
    return own_booking_notice(language, booking)


def _hint(event: EventView, problem: PageProblem, language: str) -> str:
    if problem.code == "unit_count":
        return units_correction(event, language)
    if problem.sales_open_at is not None:
        when = format_moment(problem.sales_open_at, event.timezone, language)
        return translate(language, "sale.opens", when=when)
    return ""


def _own_seats_notice(language: str, problem: PageProblem, booking: BookingView) -> Notice:
    """Somebody else may have taken the other seats."""
    own, others = split_conflicts(problem, booking)
    taken = PageProblem(problem.status, problem.code, tuple(others))
    return own_booking_notice(language, booking, seats=own, text=refusal_text(language, taken) if others else "")


async def _own_booking(page: PageRequest, problem: PageProblem) -> BookingView | None:
    """The booking may have been transferred since."""
    try:
        return await page.customer.get_booking(problem.booking) if problem.booking is not None else None
    except RefusedError:
        return None
