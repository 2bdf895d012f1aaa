"""Ticket codes: which unit of which booking a QR code admits, signed so that nobody can forge one.

A code is 105 bytes as base64url without padding, which makes 140 characters. Numbers are unsigned and big-endian:

    offset  length
         0       1  version, which is 1
         1      16  event
        17      16  booking
        33       2  line of the booking
        35       2  unit of the line
        37       2  generation: how often the booking was transferred
        39       2  key: the number of the event's key that signed the code
        41      64  Ed25519 signature (RFC 8032)

The signature covers the 16 ASCII bytes `holdfast-ticket:` followed by the first 41 bytes of the code.

To check a code offline: refuse it unless it has exactly 140 characters of `A-Z a-z 0-9 - _`. Decode it, refuse any
other version, look up the event's public key with that number, refuse the code if the key has a `revoked_at`, and
verify the signature. 105 bytes fill 140 characters to the last bit, so every code has exactly one spelling.

A genuine code proves only that the holder of the key signed it. The door still has to check that the event is the right
one, that the generation is the booking's current one, and that nobody has used the ticket before.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import Struct as Packing
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

VERSION: Final = 1
CODE_CHARS: Final = 140
# Keeps a signature for some other purpose from ever passing as a ticket.
_DOMAIN: Final = b"holdfast-ticket:"
_FIELDS: Final = Packing(">B16s16sHHHH")
_CODE_BYTES: Final = _FIELDS.size + 64


class TicketRef(Struct, frozen=True):
    """One unit of a line of a booking. `line`, `unit`, `generation` and `key` are 0 to 65535."""

    event: bytes
    booking: bytes
    line: int
    unit: int
    generation: int
    key: int


def new_key() -> tuple[bytes, bytes]:
    """A private and a public key, 32 raw bytes each."""
    key = Ed25519PrivateKey.generate()
    return key.private_bytes_raw(), key.public_key().public_bytes_raw()


def sign_code(private: bytes, ref: TicketRef) -> str:
    # struct would silently pad or cut an id of another length.
    assert len(ref.event) == len(ref.booking) == 16
    fields = _FIELDS.pack(VERSION, ref.event, ref.booking, ref.line, ref.unit, ref.generation, ref.key)
    return _text(fields + Ed25519PrivateKey.from_private_bytes(private).sign(_DOMAIN + fields))


def parse_code(code: str) -> TicketRef | None:
    """What the code claims, without checking the signature. None if it is not a well-formed code."""
    raw = _bytes(code)
    if raw is None:
        return None
    version, *fields = _FIELDS.unpack_from(raw)
    return TicketRef(*fields) if version == VERSION else None


def is_genuine(code: str, public: bytes) -> bool:
    """Whether the holder of the private key signed exactly this code. The caller compares the event."""
    raw = _bytes(code)
    if raw is None or raw[0] != VERSION:
        return False
    fields, signature = raw[: _FIELDS.size], raw[_FIELDS.size :]
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _DOMAIN + fields)
    except InvalidSignature:
        return False
    return True


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode()


def _bytes(code: str) -> bytes | None:
    """The decoder skips characters outside its alphabet, so only a code that encodes back to itself is accepted."""
    if len(code) != CODE_CHARS or not code.isascii():
        return None
    try:
        raw = urlsafe_b64decode(code)
    except binascii.Error:
        return None
    return raw if len(raw) == _CODE_BYTES and _text(raw) == code else None
