from collections.abc import Iterator

import pytest

from holdfast.bot.aiogram_import import import_aiogram
from tests.support.bot_harness import Agencies, Agency, running_agencies
from tests.support.harness import fresh_database

# As `holdfast bot` does, before a test module imports aiogram.
import_aiogram()


@pytest.fixture(scope="session")
def agencies(postgres: str) -> Iterator[Agencies]:
    with fresh_database(postgres) as url, running_agencies(url) as found:
        yield found


@pytest.fixture
def staffed(agencies: Agencies) -> Iterator[Agency]:
    """An agency with a linked chat and channel, beside those of other tests. Its bot is running."""
    with agencies.open() as found:
        yield found
