"""Ids. Inside Holdfast an id is the 16 bytes of a UUID; outside it is a prefix and the same bytes in hexadecimal.

UUIDs are of version 7, so that new rows land at the end of an index.

The public id of a booking contains the id of its event, so that the API finds booking and lane without a lookup.
The ids of payments, receipts and tickets do the same. A ticket is one unit of one line of a booking.
"""

import hashlib
import os
import time
from typing import Final

_EVENT: Final = "ev_"
_BOOKING: Final = "bk_"
_ORG: Final = "org_"
_PAYMENT: Final = "pay_"
_RECEIPT: Final = "rc_"
_TICKET: Final = "tk_"
_ENDPOINT: Final = "we_"
_SERIES: Final = "se_"
_SERIES_JOB: Final = "sj_"


def new_id() -> bytes:
    millis = (time.time_ns() // 1_000_000).to_bytes(6, "big")
    return millis + _mark_version(os.urandom(10))


def derive_id(parent: bytes, number: int) -> bytes:
    """An id that follows from another one and a number. It sorts beside its parent, and nobody can guess it without
    knowing the parent."""
    return parent[:6] + _mark_version(hashlib.sha256(parent + number.to_bytes(4, "big")).digest()[:10])


def _mark_version(random_bits: bytes) -> bytes:
    marked = bytearray(random_bits)
    marked[0] = marked[0] & 0x0F | 0x70
    marked[2] = marked[2] & 0x3F | 0x80
    return bytes(marked)


def format_event_id(event: bytes) -> str:
    return _format(_EVENT, event)


def format_booking_id(event: bytes, booking: bytes) -> str:
    return _format(_BOOKING, event + booking)


def booking_reference(booking: bytes) -> str:
    """The end of the id, short enough to read aloud and long enough to find one of an org's bookings."""
    return booking.hex()[-10:].upper()


def format_payment_id(event: bytes, payment: bytes) -> str:
    return _format(_PAYMENT, event + payment)


def format_receipt_id(event: bytes, receipt: bytes) -> str:
    return _format(_RECEIPT, event + receipt)


def format_ticket_id(event: bytes, booking: bytes, line: int, unit: int) -> str:
    return _format(_TICKET, event + booking + line.to_bytes(2, "big") + unit.to_bytes(2, "big"))


def format_endpoint_id(endpoint: bytes) -> str:
    return _format(_ENDPOINT, endpoint)


def format_series_id(series: bytes) -> str:
    return _format(_SERIES, series)


def format_series_job_id(job: bytes) -> str:
    return _format(_SERIES_JOB, job)


def format_org_id(org: bytes) -> str:
    return _format(_ORG, org)


def parse_org_id(text: str) -> bytes | None:
    return _parse(_ORG, text, 16)


def parse_event_id(text: str) -> bytes | None:
    return _parse(_EVENT, text, 16)


def parse_booking_id(text: str) -> tuple[bytes, bytes] | None:
    return _split(_parse(_BOOKING, text, 32))


def parse_payment_id(text: str) -> tuple[bytes, bytes] | None:
    return _split(_parse(_PAYMENT, text, 32))


def parse_receipt_id(text: str) -> tuple[bytes, bytes] | None:
    return _split(_parse(_RECEIPT, text, 32))


def parse_ticket_id(text: str) -> tuple[bytes, bytes, int, int] | None:
    raw = _parse(_TICKET, text, 36)
    if raw is None:
        return None
    return raw[:16], raw[16:32], int.from_bytes(raw[32:34], "big"), int.from_bytes(raw[34:], "big")


def parse_endpoint_id(text: str) -> bytes | None:
    return _parse(_ENDPOINT, text, 16)


def parse_series_id(text: str) -> bytes | None:
    return _parse(_SERIES, text, 16)


def parse_series_job_id(text: str) -> bytes | None:
    return _parse(_SERIES_JOB, text, 16)


def _split(raw: bytes | None) -> tuple[bytes, bytes] | None:
    return (raw[:16], raw[16:]) if raw else None


def _format(prefix: str, raw: bytes) -> str:
    return prefix + raw.hex()


def _parse(prefix: str, text: str, length: int) -> bytes | None:
    """The bytes, if the text is their canonical form."""
    if len(text) != len(prefix) + 2 * length:
        return None
    try:
        raw = bytes.fromhex(text[len(prefix) :])
    except ValueError:
        return None
    return raw if prefix + raw.hex() == text else None
