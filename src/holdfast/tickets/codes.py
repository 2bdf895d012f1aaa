"""What a ticket's QR code says: which unit of which booking it lets in, signed so that it cannot be made up.

A code is the base64url text, without padding, of 105 bytes, which makes 140 characters. Numbers are unsigned, with the
high byte first:

    offset  length
         0       1  version, which is 1
         1      16  event
        17      16  booking
        33       2  line of the booking
        35       2  unit of the line
        37       2  generation: how often the booking was handed to another person
        39       2  key: which of the event's keys has signed
        41      64  Ed25519 signature (RFC 8032)

What is signed is the 16 bytes of the ASCII text `holdfast-ticket:` and after them the first 41 bytes of the code.

To check a code without a connection: refuse it unless it is 140 characters long, all of them of `A-Z a-z 0-9 - _`.
Decode it, refuse any other version, take the public key that its event has under its number, and verify the signature.
105 bytes fill 140 characters to the last bit, so there is no second way to write a code.

A genuine code was made by the holder of the key, and that is all. Whether its event is the one at the door, whether its
generation is still the booking's, and whether it was shown before, is for the door to compare.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import Struct as Layout
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Struct

VERSION: Final = 1
CODE_CHARS: Final = 140
# Whatever else a key may ever sign, it is not a ticket.
_DOMAIN: Final = b"holdfast-ticket:"
_FIELDS: Final = Layout(">B16s16sHHHH")
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


def sign(private: bytes, ref: TicketRef) -> str:
    # A shorter or longer id would be filled up or cut without a word.
    assert len(ref.event) == len(ref.booking) == 16
    fields = _FIELDS.pack(VERSION, ref.event, ref.booking, ref.line, ref.unit, ref.generation, ref.key)
    return _text(fields + Ed25519PrivateKey.from_private_bytes(private).sign(_DOMAIN + fields))


def parse(code: str) -> TicketRef | None:
    """What the code claims, if this is the one way to write it. Nothing of it is proven."""
    raw = _bytes(code)
    if raw is None:
        return None
    version, *fields = _FIELDS.unpack_from(raw)
    return TicketRef(*fields) if version == VERSION else None


def is_genuine(code: str, public: bytes) -> bool:
    """Whether the holder of the private key has signed exactly this code. That it is for this event is still to be
    compared."""
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
    """Decoders pass over characters that they do not know, so what was read has to be written the same again."""
    if len(code) != CODE_CHARS or not code.isascii():
        return None
    try:
        raw = urlsafe_b64decode(code)
    except binascii.Error:
        return None
    return raw if len(raw) == _CODE_BYTES and _text(raw) == code else None
