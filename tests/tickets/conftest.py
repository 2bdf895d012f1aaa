from collections.abc import Iterator

import pytest

from tests.support.harness import Server, fresh_database, running_server
from tests.support.mail_server import Mailbox, mail_server
from tests.support.ticket_sales import SENDER


@pytest.fixture(scope="package")
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture(scope="package")
def server(postgres: str, mailbox: Mailbox) -> Iterator[Server]:
    """The product with a mail server."""
    with fresh_database(postgres) as url, mail_server(mailbox) as address:
        mail = {"HOLDFAST_SMTP_URL": f"smtp://{address}", "HOLDFAST_EMAIL_FROM": SENDER}
        with running_server(url, workers=2, worker=True, **mail) as server:
            yield server
