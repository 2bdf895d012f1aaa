"""The id of the request that is being served. It ties log lines, spans and the response together."""

import re
import secrets
from contextvars import ContextVar
from itertools import count
from typing import Final

HEADER: Final = b"x-request-id"
LENGTH_MAX: Final = 128
# No spaces, quotes or control characters, which could forge a log line, and no @, because an id is no email address.
_ACCEPTABLE: Final = re.compile(rb"[A-Za-z0-9._+/=:-]{1,%d}" % LENGTH_MAX)

_current: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)

# A request costs a counter, not random bytes. The prefix keeps processes apart.
_prefix: Final = f"req_{secrets.token_hex(6)}_"
_numbers: Final = count(1)

current_request_id: Final = _current.get
set_request_id: Final = _current.set


def new_request_id() -> str:
    return f"{_prefix}{next(_numbers):x}"


def choose_request_id(headers: list[tuple[bytes, bytes]]) -> str:
    """The caller's id if it is acceptable, otherwise a new one."""
    for name, value in headers:
        if name == HEADER:
            return value.decode("ascii") if _ACCEPTABLE.fullmatch(value) else new_request_id()
    return new_request_id()
