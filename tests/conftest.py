import atexit
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import settings

from holdfast.runtime import embedded
from tests.house import Org, Server, fresh_database, make_template, serving

# No test is about speed, and a busy machine may stop for a moment.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# What takes longest begins first, so that no process is left with it in the end.
LONGEST = [
    "test_faults",
    "test_buying",
    "test_notices",
    "test_authorization",
    "test_stampede",
    "test_bench",
    "test_schema",
    "test_cli",
    "test_inbox",
    "test_bad_input",
    "test_page_access",
    "test_refunds",
    "test_door",
    "test_winding_up",
    "test_live",
    "test_races",
    "test_seatmap",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def postgres() -> str:
    """The address of the embedded PostgreSQL, for the whole run."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    url = embedded.start(folder)
    make_template(url)
    return url


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """An empty database of the test's own."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Server]:
    """Two API processes and no worker, on a database of the module's own."""
    with fresh_database(postgres) as url, serving(url, workers=2) as server:
        yield server


@pytest.fixture(scope="module")
def org(server: Server) -> Org:
    return Org(server.database_url)


@pytest.fixture(scope="module")
def admin(server: Server, org: Org) -> Iterator[httpx.Client]:
    with server.client(org.headers("admin")) as client:
        yield client
