"""All SQL statements by name, from the `.sql` files beside this one.

A statement starts with `-- name: <name>`. Its parameters are either numbered (`$1`) or named (`:event`); a statement
with named parameters is a `NamedStatement`, any other is a plain string.

Double braces include a fragment (`-- fragment: <name>` in one of `FRAGMENT_FILES`) or a list of statuses from
`core.states`.
"""

import re
from collections.abc import Collection
from importlib import resources
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from holdfast.core.states import CLAIMING, ENDINGS, HOLDING, LIVE, PAYABLE, SOLD, TIMED, Status

FRAGMENT_FILES: Final = ("engine.sql", "reads.sql", "pages.sql", "series.sql", "gate.sql", "telegram.sql", "push.sql")

# Strings, comments and casts come first, so that a colon inside them is not taken for a parameter.
_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|--[^\n]*|::|:([a-z_][a-z0-9_]*)")


class NamedStatement:
    """A statement with `:name` parameters. Call it with a value for each name to get the arguments of a fetch:

    `await connection.fetchval(*sql.engine.load(events=events, due_max=500, ...))`
    """

    def __init__(self, text: str) -> None:
        self.parameters = tuple(dict.fromkeys(name for name in _TOKEN.findall(text) if name))
        self.text = _TOKEN.sub(self._number, text)
        self._names = frozenset(self.parameters)
        if re.search(r"\$\d", text):
            raise ValueError("a statement cannot mix named and numbered parameters")

    def __call__(self, **values: Any) -> tuple[Any, ...]:
        if values.keys() != self._names:
            missing, unknown = sorted(self._names - values.keys()), sorted(values.keys() - self._names)
            raise TypeError(f"missing parameters: {missing}, unknown parameters: {unknown}")
        return (self.text, *[values[name] for name in self.parameters])

    def _number(self, token: re.Match[str]) -> str:
        name = token.group(1)
        return f"${self.parameters.index(name) + 1}" if name else token.group()


def parse_statements(text: str) -> dict[str, str | NamedStatement]:
    return {name: _parse(_expand(body)) for kind, name, body in _sections(text) if kind == "name"}


def _sections(text: str) -> list[tuple[str, str, str]]:
    parts = re.split(r"^-- (name|fragment): (\w+)\n", text, flags=re.MULTILINE)[1:]
    return [(kind, name, body.strip()) for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)]


def _expand(text: str) -> str:
    while "{{" in text:
        text = re.sub(r"\{\{(\w+)\}\}", lambda match: _INCLUDES[match.group(1)], text)
    return text


def _parse(text: str) -> str | NamedStatement:
    return NamedStatement(text) if any(_TOKEN.findall(text)) else text


def _read(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text()


def _list(statuses: Collection[Status]) -> str:
    """The statuses as literals, in the order of the enum, which is the order of the indexes' predicates."""
    return ", ".join(f"'{status}'" for status in Status if status in statuses)


_INCLUDES: Final = {
    "timed": _list(TIMED),
    "live": _list(LIVE),
    "holding": _list(HOLDING),
    "sold": _list(SOLD),
    "claiming": _list(CLAIMING),
    # A hold that ended in one of these was paid for, or ran out.
    "outcomes": _list(SOLD | {Status.EXPIRED}),
    # A booking with a check-in was confirmed once. It can have been cancelled or refunded since.
    "once_confirmed": _list(SOLD | {Status.CANCELLED, Status.REFUNDED}),
    "payable": _list(PAYABLE),
    # Holds are left out: they end within minutes, and anybody can place them with somebody else's address for free.
    "recoverable": _list(SOLD | {Status.PAYMENT_SUBMITTED, Status.REFUNDED}),
    # The user ids of guests, which the pages assign. A merchant's own users have others.
    "guest": "'^guest-[0-9a-f]{32}$'",
    "ended": ", ".join(f"'{event}'" for event in ENDINGS),
    # Pairs of an ended event's status and the status of a booking that ends with it.
    "endings": ", ".join(
        dict.fromkeys(f"('{event}', '{status}')" for event, endings in ENDINGS.items() for status, _ in endings)
    ),
    **{name: body for file in FRAGMENT_FILES for kind, name, body in _sections(_read(file)) if kind == "fragment"},
}


def _load(file: str) -> SimpleNamespace:
    return SimpleNamespace(**parse_statements(_read(file)))


engine: Final = _load("engine.sql")
events: Final = _load("events.sql")
reads: Final = _load("reads.sql")
credentials: Final = _load("credentials.sql")
worker: Final = _load("worker.sql")
audit: Final = _load("audit.sql")
notifications: Final = _load("notifications.sql")
payments: Final = _load("payments.sql")
tickets: Final = _load("tickets.sql")
webhook_endpoints: Final = _load("webhook_endpoints.sql")
sandbox: Final = _load("sandbox.sql")
pages: Final = _load("pages.sql")
stampede: Final = _load("stampede.sql")
recovery: Final = _load("recovery.sql")
series: Final = _load("series.sql")
gate: Final = _load("gate.sql")
telegram: Final = _load("telegram.sql")
figures: Final = _load("figures.sql")
doctor: Final = _load("doctor.sql")
top: Final = _load("top.sql")
event_bus: Final = _load("event_bus.sql")
reminders: Final = _load("reminders.sql")
sms: Final = _load("sms.sql")
push: Final = _load("push.sql")
erase: Final = _load("erase.sql")
roles: Final = _load("roles.sql")


class Migration(NamedTuple):
    """A numbered step of the schema."""

    number: int
    text: str

    @property
    def is_rolling(self) -> bool:
        """Whether a process that does not know this step can go on running beside it."""
        return self.text.startswith("-- rolling: yes\n")


def migrations() -> list[Migration]:
    """The numbered steps of the schema, in order."""
    folder = resources.files(__package__).joinpath("migrations")
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(Migration(int(file.name[:4]), file.read_text()) for file in files)
