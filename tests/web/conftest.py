from collections.abc import Iterator

import httpx
import pytest

from tests.support.harness import Server
from tests.support.html_client import new_visitor


@pytest.fixture
def buyer(server: Server) -> Iterator[httpx.Client]:
    with new_visitor(server) as client:
        yield client


@pytest.fixture
def spanish_buyer(server: Server) -> Iterator[httpx.Client]:
    with new_visitor(server, "es-CO,en;q=0.5") as client:
        yield client
