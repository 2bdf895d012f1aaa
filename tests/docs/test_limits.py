"""The table of limits has the numbers of the code."""

import re
from pathlib import Path

import pytest

from holdfast.api import (
    app,
    body_reader,
    booking_export,
    booking_schemas,
    call,
    connection_guard,
    endpoint,
    event_handlers,
    event_search,
    requests,
    series_handlers,
    webhook_endpoint_handlers,
)
from holdfast.api.booking_handlers import PAGE_LINES_MAX
from holdfast.core import (
    buyer_form,
    event_schemas,
    quotas,
    recurrence,
    request_types,
    seat_ranking,
    settlement,
    stock_schemas,
)
from holdfast.engine import lane
from holdfast.i18n.formatting import VENUE_ADDRESS_MAX
from holdfast.i18n.texts import translate
from holdfast.notifications import push_channel, recovery_mailer, sms, sms_limits
from holdfast.runtime import request_ids, server
from holdfast.runtime.settings import Settings
from holdfast.tickets import keys, printer
from holdfast.web import event_list_pages, recovery_pages, session
from holdfast.worker import series_jobs

DOCS = Path(__file__).parents[2] / "docs"
LIMITS = DOCS / "limits.md"

NUMBERS = {
    "events that have not ended": Settings().events_per_org,
    "seats in those events together": Settings().seats_per_org,
    "valid secret keys": quotas.KEYS_MAX,
    "webhook endpoints": webhook_endpoint_handlers.ENDPOINTS_MAX,
    "origins that may embed its pages": requests.ORIGINS_MAX,
    "seats": stock_schemas.SEATS_MAX,
    "pools": stock_schemas.POOLS_MAX,
    "bytes of a seat's label": request_types.LABEL_BYTES_MAX,
    "bytes of the name of a row": stock_schemas.ROW_BYTES_MAX,
    "seats to block, or to put back on sale, in one request": event_schemas.BLOCKED_AT_ONCE_MAX,
    "tariffs in all pools together": stock_schemas.TARIFFS_MAX,
    "questions": event_schemas.QUESTIONS_MAX,
    "choices of a question": event_schemas.CHOICES_MAX,
    "characters of an answer": buyer_form.ANSWER_LENGTH_MAX,
    "size of all answers as JSON": buyer_form.ANSWERS_BYTES_MAX // 1024,
    "ticket keys in its lifetime": keys.KEYS_MAX,
    "units": booking_schemas.UNITS_MAX,
    "seats in one request for the best available seats": seat_ranking.BEST_SEATS_MAX,
    "payments": settlement.PAYMENTS_MAX,
    "receipts": settlement.RECEIPTS_MAX,
    "size of a body": call.BODY_BYTES_MAX // 1024**2,
    "unfinished bodies in memory, per process": body_reader.BUFFERED_BYTES_MAX // 1024**2,
    "time for sending a body": int(body_reader.BODY_SECONDS),
    "size of `details` as JSON": request_types.DETAILS_BYTES_MAX // 1024,
    "depth of `details`": request_types.DETAILS_LEVELS_MAX,
    "size of a query string": endpoint.QUERY_BYTES_MAX // 1024,
    "size of all headers together": server.HEADER_BYTES_MAX // 1024,
    "size of a page of the journal or of changes": event_handlers.JOURNAL_PAGE_BYTES // 1024,
    "characters of a [request id](logs.md#request-ids); a longer one is replaced": request_ids.LENGTH_MAX,
    "size of a token": endpoint.TOKEN_BYTES_MAX // 1024,
    "query parameters": endpoint.QUERY_PARAMETERS_MAX,
    "requests per second, per secret key": Settings().rate_per_key,
    "requests per second, per customer or guest": Settings().rate_per_user,
    "requests per second, per address, without a secret key": Settings().rate_per_address,
    "refused webhook events per second, per address": endpoint.REFUSED_PER_SECOND,
    "open connections per address": Settings().connections_per_address,
    "idle seconds on a connection": int(Settings().idle_seconds),
    "live sockets per address": Settings().live_sockets_per_address,
    "live sockets": Settings().live_sockets,
    "data that a watcher may send": connection_guard.LIVE_RECEIVED_BYTES_MAX // 1024,
    "seconds that a response may stay unread": int(connection_guard.UNREAD_SECONDS),
    "size of one header in a request for a page": app.PAGE_HEADER_BYTES_MAX // 1024,
    "commands that wait for one event": lane.EVENT_QUEUE_MAX,
    "commands that wait for one lane": lane.QUEUE_MAX,
    "extra room in both, for commands about money": lane.RESERVE,
    "seconds that a command waits for a locked event": int(lane.LOCKED_SECONDS),
    "lines on a page of bookings": PAGE_LINES_MAX,
    "bookings that a CSV export reads at a time": booking_export.PAGE_BOOKINGS_MAX,
    "events and series on a list for buyers": event_list_pages.CARDS_MAX,
    "dates on a page of a series": event_list_pages.DATES_MAX,
    "events that a search or a list for buyers looks at": event_search.SCANNED_MAX,
    "series": quotas.SERIES_MAX,
    "unfinished requests for many events": series_handlers.JOBS_MAX,
    "events in one request for a series": recurrence.STARTS_MAX,
    "years from the first to the last start of a recurrence rule": recurrence.HORIZON_YEARS,
    "errors that a request for many events reports": series_jobs.ERRORS_MAX,
    "characters of an address on tickets, in emails and on pages": VENUE_ADDRESS_MAX,
    "PDFs in progress or queued, per process": printer.QUEUE_MAX,
    "threads that draw PDFs, per process": printer.THREADS,
    "SMS per day, per org": Settings().sms_per_org,
    "part of those that may be about free bookings": sms_limits.FREE_PART,
    "SMS about free bookings, caused from one address": sms_limits.CLIENT_PER_HOUR,
    "segments of an SMS": sms.SEGMENTS_MAX,
    "seconds that a push service may take for a warning": int(push_channel.WARNING_SEND_SECONDS),
}


@pytest.mark.parametrize("limit", NUMBERS)
def test_the_table_has_the_number_of_the_code(limit: str) -> None:
    rows = re.findall(rf"^\| {re.escape(limit)} \| (.+?) \|", LIMITS.read_text(), re.MULTILINE)
    assert len(rows) == 1
    assert re.search(rf"(?<![\d,]){NUMBERS[limit]:,}(?![\d,])", rows[0])


RECOVERY_NUMBERS = {
    "requests per hour, per client address and org": (recovery_pages.REQUESTS_PER_ADDRESS,),
    "requests per hour, per org": (recovery_pages.REQUESTS_PER_ORG,),
    "emails to one recipient, from all orgs together": (
        recovery_mailer.EMAILS_PER_HOUR,
        recovery_mailer.EMAILS_PER_DAY,
    ),
    "addresses that one browser can recover": (session.RECOVERIES_MAX,),
}


@pytest.mark.parametrize("limit", RECOVERY_NUMBERS)
def test_the_table_about_recoveries_has_the_numbers_of_the_code(limit: str) -> None:
    (row,) = re.findall(rf"^\| {re.escape(limit)} \| (.+?) \|", (DOCS / "pages.md").read_text(), re.MULTILINE)
    assert re.findall(r"[\d,]*\d", row) == [f"{number:,}" for number in RECOVERY_NUMBERS[limit]]


def test_pages_and_emails_promise_the_time_that_a_link_has() -> None:
    minutes = recovery_mailer.LINK_SECONDS // 60
    assert f"expires after {minutes} minutes" in (DOCS / "pages.md").read_text()
    for language, words in {"en": f"after {minutes} minutes", "es": f"a los {minutes} minutos"}.items():
        assert words in translate(language, "page.recover.why")
        assert words in translate(language, "page.recover.dead_text")


SMS_NUMBERS = {
    "about bookings that cost nothing": (sms_limits.FREE_PER_HOUR, sms_limits.FREE_PER_DAY),
    "of those, caused by one buyer": (sms_limits.BUYER_PER_HOUR,),
    "of those, caused from one address": (
        sms_limits.CLIENT_PER_HOUR,
        sms_limits.CLIENT_PER_DAY,
        sms_limits.CLIENT_REMINDERS_PER_DAY,
    ),
    "about bookings that cost something": (sms_limits.PAID_PER_DAY,),
    "of one org, in all": (Settings().sms_per_org,),
}


@pytest.mark.parametrize("limit", SMS_NUMBERS)
def test_the_table_about_sms_has_the_numbers_of_the_code(limit: str) -> None:
    rows = re.findall(rf"^\| {re.escape(limit)} \| (.+?) \|", (DOCS / "notifications.md").read_text(), re.MULTILINE)
    assert re.findall(r"[\d,]*\d", rows[-1]) == [f"{number:,}" for number in SMS_NUMBERS[limit]]


def test_the_quotas_of_the_settings_are_those_of_the_engine() -> None:
    assert quotas.Quotas() == quotas.Quotas(Settings().events_per_org, Settings().seats_per_org)
