import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import settings

from tests.support.harness import (
    IS_LONG,
    Org,
    Server,
    fresh_database,
    running_server,
    start_postgres,
    temporary_folder,
)
from tests.support.postgres_process import stop_postgres

# No test measures speed, and a busy machine may pause.
settings.register_profile("patient", deadline=None, max_examples=100 if IS_LONG else 25)
settings.load_profile("patient")

# The slowest modules start first, so that no process is left with one of them at the end.
LONGEST = [
    "test_redis_faults",
    "test_races_and_crashes",
    "test_process_crashes",
    "test_staff",
    "test_receipts",
    "test_gate_check",
    "test_odd_input",
    "test_buying_in_browser",
    "test_feed",
    "test_accessibility",
    "test_wakeups",
    "test_check_in",
    "test_live_messages",
    "test_shared_limits",
    "test_cli",
    "test_openapi_conformance",
    "test_stampede",
    "test_inbox",
    "test_reap",
    "test_benchmark",
    "test_page_security",
    "test_topologies",
    "test_invalid_requests",
    "test_migrations",
    "test_event_rules_in_browser",
    "test_event_wind_up",
    "test_printing_load",
    "test_relay",
    "test_crashes",
    "test_transfers",
    "test_refunds",
    "test_authorization",
    "test_recovery",
    "test_payment_notices_under_crashes",
    "test_linking",
    "test_sandbox_checkout_end_to_end",
    "test_sale_under_attack",
    "test_hoarding",
    "test_pages_without_script",
    "test_log_privacy",
    "test_stripe_end_to_end",
    "test_docs",
    "test_seat_gate",
    "test_seat_map",
    "test_five_businesses",
    "test_bot_demo",
    "test_sandbox_checkout_page",
    "test_no_double_sale",
    "test_against_reference_model",
    "test_ticket_formats",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    duplicates = [id_ for id_, count in Counter(item.nodeid for item in items).items() if count > 1]
    if duplicates:
        # pytest-xdist would run one test per id and silently skip the others.
        raise pytest.UsageError(f"several tests have the same id: {', '.join(duplicates)}")
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of tests and all modules stay until the end, so the garbage collector need not look at them."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def postgres() -> str:
    """The URL of an embedded PostgreSQL for the whole run."""
    return start_postgres()


@pytest.fixture
def data_folder() -> Iterator[Path]:
    """A folder for an embedded PostgreSQL of the test's own."""
    with temporary_folder() as folder:
        yield folder
        stop_postgres(folder)


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """An empty database of the test's own."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def shared_server(postgres: str) -> Iterator[Server]:
    """Two API processes and no worker, for all tests that neither kill its processes nor look beyond their own org. Its
    pages promise emails; without a worker, nothing connects to the mail server."""
    with (
        fresh_database(postgres) as url,
        running_server(url, workers=2, HOLDFAST_SMTP_URL="smtp://127.0.0.1:9") as server,
    ):
        yield server


@pytest.fixture(scope="session")
def product(postgres: str) -> Iterator[Server]:
    """One API process with a worker, which expires holds, delivers webhooks, refunds and reconciles."""
    with fresh_database(postgres) as url, running_server(url, workers=1, worker=True) as server:
        yield server


@pytest.fixture(scope="module")
def server(shared_server: Server) -> Server:
    """A module that needs a server of its own defines a fixture of this name."""
    return shared_server


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    return Org(server.database_url)


@pytest.fixture(scope="module")
def admin(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers("admin")) as client:
        yield client
