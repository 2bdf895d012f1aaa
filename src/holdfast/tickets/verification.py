"""Verifies the code of a ticket against the keys of the event that it names."""

from datetime import datetime

from msgspec import Struct

from holdfast import sql
from holdfast.i18n.formatting import format_moment
from holdfast.runtime.db import Database
from holdfast.tickets.codes import TicketRef, is_genuine, parse_code


class VerifiedTicket(Struct, frozen=True):
    """A genuine ticket, and the event that it is for."""

    ref: TicketRef
    title: str
    starts_at: datetime
    timezone: str

    @property
    def event_text(self) -> str:
        """Such as "Friday night, Friday, March 5, 2027, 8:00 PM (Central European Standard Time)"."""
        return f"{self.title}, {format_moment(self.starts_at, self.timezone, 'en')}"


class _VerificationRow(Struct, frozen=True):
    public: bytes
    title: str
    starts_at: datetime
    timezone: str


async def verify_code(database: Database, org: bytes, code: str) -> VerifiedTicket | None:
    """The ticket for a code signed with a valid key of one of the org's events. It may be void or used."""
    ref = parse_code(code)
    if ref is None:
        return None
    row = await database.event(ref.event).row(_VerificationRow, sql.tickets.verification, ref.event, ref.key, org)
    if row is None or not is_genuine(code, row.public):
        return None
    return VerifiedTicket(ref, row.title, row.starts_at, row.timezone)
