"""Every statement of the product, by name, from the `.sql` files beside this one.

A statement begins with `-- name: <name>`; comment lines after it say why it is as it is.
"""

import re
from importlib import resources
from types import SimpleNamespace
from typing import Final


def _load(file: str) -> SimpleNamespace:
    text = resources.files(__package__).joinpath(file).read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return SimpleNamespace(**{name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)})


engine: Final = _load("engine.sql")
events: Final = _load("events.sql")
reads: Final = _load("reads.sql")
credentials: Final = _load("credentials.sql")
worker: Final = _load("worker.sql")
notifications: Final = _load("notifications.sql")
payments: Final = _load("payments.sql")
tickets: Final = _load("tickets.sql")
webhook_endpoints: Final = _load("webhook_endpoints.sql")
sandbox: Final = _load("sandbox.sql")
secrets: Final = _load("secrets.sql")
stampede: Final = _load("stampede.sql")


def migrations() -> list[tuple[int, str]]:
    """The numbered steps of the schema, in order."""
    folder = resources.files(__package__).joinpath("migrations")
    return sorted((int(file.name[:4]), file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql"))
