"""Verifies the code of a ticket against the keys of the event that it names."""

from holdfast import sql
from holdfast.runtime.db import Database
from holdfast.tickets.codes import TicketRef, is_genuine, parse_code


async def verify_code(database: Database, org: bytes, code: str) -> TicketRef | None:
    """The ticket for a code signed with a valid key of one of the org's events. It may be void or used."""
    ref = parse_code(code)
    if ref is None:
        return None
    public = await database.event(ref.event).fetchval(sql.tickets.verification_key, ref.event, ref.key, org)
    return ref if public is not None and is_genuine(code, public) else None
