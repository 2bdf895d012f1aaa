"""Reports have database connections of their own, so that however many of them hang, no sale waits for one."""

import asyncio

import httpx

from tests.support.engine_harness import async_test
from tests.support.harness import (
    Org,
    Server,
    connection_to,
    example_event,
    fresh_database,
    post_hold,
    publish_event,
    running_server,
)

# More than an API process has connections for reads.
REPORTS = 12


def test_reports_that_hang_do_not_delay_a_sale(postgres: str) -> None:
    with fresh_database(postgres) as url, running_server(url, workers=1) as server:
        reader, seller = Org(url), Org(url)
        with server.client(reader.headers()) as client:
            endpoint = client.post("/v1/webhook-endpoints", json={"url": "http://127.0.0.1:9/hook"}).json()["id"]
        with server.client(seller.headers()) as client:
            event = publish_event(client, example_event())
            booking = post_hold(client, event, items=[{"seat": "A-1"}]).json()["id"]
        async_test(_sell_while_reports_hang)(
            server, f"/v1/webhook-endpoints/{endpoint}/deliveries", reader.headers(), event, booking, seller.headers()
        )


async def _sell_while_reports_hang(
    server: Server, report: str, reader: dict[str, str], event: str, booking: str, seller: dict[str, str]
) -> None:
    url = server.database_url
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        async with connection_to(url) as observer, connection_to(url) as blocker, blocker.transaction():
            await blocker.execute("LOCK TABLE delivery IN ACCESS EXCLUSIVE MODE")
            reports = [asyncio.create_task(client.get(report, headers=reader)) for _ in range(REPORTS)]
            while (await observer.fetchval(BLOCKED)) == 0:
                await asyncio.sleep(0.02)
            hold = await client.post(
                f"/v1/events/{event}/holds",
                json={"user": "u-2", "items": [{"seat": "A-2"}]},
                headers={"Idempotency-Key": "k", **seller},
            )
            read = await client.get(f"/v1/bookings/{booking}", headers=seller)
            assert not any(report.done() for report in reports)
            assert (hold.status_code, read.status_code) == (201, 200)
        await asyncio.gather(*reports)


BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
