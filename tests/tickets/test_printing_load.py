"""No text makes a ticket slow to print, and no rush for tickets takes the threads of everything else."""

import asyncio
import threading
from datetime import UTC, datetime

import pytest
from msgspec import structs

from holdfast.core.refusals import Refusal, RefusedError
from holdfast.i18n.formatting import VENUE_ADDRESS_MAX, shorten
from holdfast.tickets.pdf import tickets_pdf
from holdfast.tickets.printed_ticket import PrintedTicket
from holdfast.tickets.printer import Printer
from tests.support.call_counter import count_calls
from tests.support.engine_harness import async_test
from tests.support.harness import Org, Server, example_event, publish_event
from tests.support.ticket_reader import texts_in_pdf
from tests.support.ticket_sales import buy_booking
from tests.tickets.test_ticket_formats import TICKET

HUGE = 40_000


@pytest.mark.parametrize("text", ["x" * HUGE, "word " * (HUGE // 5), "a\n" * (HUGE // 2)], ids=["x", "words", "lines"])
def test_a_huge_text_costs_little_more_than_one_that_fills_its_field(text: str) -> None:
    tickets_pdf([TICKET], "en")
    usual = count_calls(lambda: tickets_pdf([ticket_with("word " * 40)], "en"))
    assert count_calls(lambda: tickets_pdf([ticket_with(text)], "en")) < 3 * usual
    assert "…" in texts_in_pdf(tickets_pdf([ticket_with(text)], "en"))[0]


def ticket_with(text: str) -> PrintedTicket:
    return structs.replace(TICKET, address=text, event_title=text, org_name=text, pool=text, tariff=text, seat=text)


def test_a_text_is_cut_where_it_is_too_long_and_the_cut_is_marked() -> None:
    assert shorten("abcd", 4) == "abcd"
    assert shorten("abc de", 5) == "abc…"
    assert len(shorten("x" * 1_000, VENUE_ADDRESS_MAX)) == VENUE_ADDRESS_MAX


def test_pages_and_tickets_show_only_the_beginning_of_a_huge_address(server: Server) -> None:
    address = "Long Street " * 1_000
    org = Org(server.database_url)
    with server.client(org.headers()) as client:
        details = {"address": address}
        event = publish_event(client, example_event(details=details, policy={"max_units_per_user": None}))
        booking = buy_booking(client, event, {"pool": "standing", "tariff": "full", "quantity": 1})
        (ticket,) = client.get(f"/v1/bookings/{booking}/tickets").json()
        pdf = client.get(f"/v1/tickets/{ticket['id']}/ticket.pdf").content
        assert "Long Street" in texts_in_pdf(pdf)[0]
        for path in (f"/e/{event}", f"/o/{org.slug}"):
            page = client.get(path).text
            assert page.count("Long Street") <= 3 * (VENUE_ADDRESS_MAX // 12 + 1)
            assert "Long Street" in page


@async_test
async def test_drawings_beyond_the_queue_are_refused_as_busy_and_the_default_threads_stay_free() -> None:
    may_draw = threading.Event()

    def draw() -> bytes:
        assert may_draw.wait(30)
        return threading.current_thread().name.encode()

    printer = Printer(threads=1, queue_max=3)
    drawings = [asyncio.create_task(printer.run(draw)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(RefusedError) as refused:
        await printer.run(draw)
    assert refused.value.refused.refusal is Refusal.BUSY
    # Somebody who leaves does not make room: the drawing goes on.
    drawings[0].cancel()
    await asyncio.sleep(0)
    with pytest.raises(RefusedError):
        await printer.run(draw)
    assert await asyncio.to_thread(lambda: datetime.now(UTC)) is not None
    may_draw.set()
    assert all(name.startswith(b"printer") for name in await asyncio.gather(*drawings[1:]))
    assert (await printer.run(draw)).startswith(b"printer")
