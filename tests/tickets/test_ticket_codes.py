"""A ticket code is valid only as the exact text that the event's key signed. One changed bit makes it invalid."""

import base64
import random
import struct
from collections.abc import Iterator
from itertools import chain

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.tickets.codes import CODE_CHARS, TicketRef, is_genuine, new_key, parse_code, sign_code
from tests.support.harness import IS_LONG

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# `make test-long` tries a hundred thousand.
SHARE = 1 if IS_LONG else 10
FORGERIES = 100_000 // SHARE

EVENT, BOOKING = bytes(range(16)), bytes(range(16, 32))
REF = TicketRef(EVENT, BOOKING, line=1, unit=2, generation=3, key=4)
PRIVATE, PUBLIC = new_key()
CODE = sign_code(PRIVATE, REF)

ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 65535)
refs = st.builds(TicketRef, ids, ids, numbers, numbers, numbers, numbers)


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(code: str) -> bytes:
    return base64.urlsafe_b64decode(code)


@settings(deadline=None)
@given(refs)
def test_a_signed_code_is_read_back_and_verified(ref: TicketRef) -> None:
    code = sign_code(PRIVATE, ref)
    assert parse_code(code) == ref
    assert is_genuine(code, PUBLIC)


@settings(deadline=None)
@given(refs)
def test_a_code_has_at_most_150_characters_that_are_safe_in_a_url(ref: TicketRef) -> None:
    code = sign_code(PRIVATE, ref)
    assert len(code) == CODE_CHARS <= 150
    assert set(code) <= set(ALPHABET)


@settings(deadline=None)
@given(st.text() | st.text(alphabet=ALPHABET, min_size=CODE_CHARS, max_size=CODE_CHARS))
def test_any_other_text_is_refused(text: str) -> None:
    parse_code(text)
    assert not is_genuine(text, PUBLIC)


def test_issued_codes_stay_valid() -> None:
    """A ticket may be bought a year before the event, so the layout of this version never changes."""
    private = bytes(range(32))
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    code = (
        "AQABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAAEAAgADAARzZC2nzRFpCHgosN"
        "O2D1NWHupM3YjiqhPqdHkgVHboBiZT4nXDvPvS-IeEab0S5Szl-edxjrycN7CRAPts3NED"
    )
    assert sign_code(private, REF) == code
    assert is_genuine(code, public)


def test_a_scanner_can_verify_a_code_from_the_documented_layout() -> None:
    raw = decode(CODE)
    assert len(raw) == 105
    assert raw[0] == 1
    assert (raw[1:17], raw[17:33]) == (EVENT, BOOKING)
    assert struct.unpack(">HHHH", raw[33:41]) == (1, 2, 3, 4)
    Ed25519PublicKey.from_public_bytes(PUBLIC).verify(raw[41:], b"holdfast-ticket:" + raw[:41])


def test_a_code_with_any_character_changed_is_refused() -> None:
    assert [forged for forged in other_characters(CODE) if is_genuine(forged, PUBLIC)] == []


def test_a_code_with_any_bit_flipped_is_refused() -> None:
    assert [forged for forged in flipped_bits(CODE) if is_genuine(forged, PUBLIC)] == []


def test_a_code_has_exactly_one_spelling() -> None:
    spellings = [
        *(CODE + more for more in ("=", "==", " ", "\n", "\0", "A", "AAAA", CODE)),
        *(more + CODE for more in (" ", "\n", "A", "\ufeff")),
        *(CODE[:at] + more + CODE[at:] for at in (1, 70, 139) for more in ("\n", " ", "=", "*", "\u200b")),
        *(CODE[:cut] for cut in range(CODE_CHARS)),
        *(CODE[: -len(end)] + end for end in ("=", "==", "\n", " ")),
        encode(decode(CODE)[:-1]),
        encode(decode(CODE) + b"\0"),
        CODE.swapcase(),
        chr(ord(CODE[0]) + 0xFEE0) + CODE[1:],
    ]
    assert [
        spelling for spelling in spellings if parse_code(spelling) is not None or is_genuine(spelling, PUBLIC)
    ] == []


def test_the_other_base64_alphabet_is_refused() -> None:
    signed = (sign_code(PRIVATE, structs.replace(REF, unit=unit)) for unit in range(1000))
    code = next(code for code in signed if "-" in code and "_" in code)
    assert parse_code(code) is not None
    for other in (code.replace("-", "+"), code.replace("_", "/"), code.replace("-", "+").replace("_", "/")):
        assert parse_code(other) is None
        assert not is_genuine(other, PUBLIC)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_even_if_it_is_signed(version: int) -> None:
    forged = sign_with_domain(b"holdfast-ticket:", bytes([version]) + decode(CODE)[1:41])
    assert parse_code(forged) is None
    assert not is_genuine(forged, PUBLIC)


@pytest.mark.parametrize("domain", [b"", b"holdfast:", b"holdfast-receipt:"])
def test_a_signature_for_another_purpose_is_refused(domain: bytes) -> None:
    assert not is_genuine(sign_with_domain(domain, decode(CODE)[:41]), PUBLIC)
    assert is_genuine(sign_with_domain(b"holdfast-ticket:", decode(CODE)[:41]), PUBLIC)


def test_a_signature_is_valid_only_for_its_own_fields() -> None:
    for ref in (
        structs.replace(REF, event=bytes(16)),
        structs.replace(REF, booking=bytes(16)),
        structs.replace(REF, line=0),
        structs.replace(REF, unit=0),
        structs.replace(REF, generation=0),
        structs.replace(REF, key=0),
    ):
        forged = encode(decode(sign_code(PRIVATE, ref))[:41] + decode(CODE)[41:])
        assert parse_code(forged) == ref
        assert not is_genuine(forged, PUBLIC)


@pytest.mark.parametrize(
    "ref",
    [
        structs.replace(REF, event=bytes(15)),
        structs.replace(REF, booking=bytes(17)),
        structs.replace(REF, line=-1),
        structs.replace(REF, unit=65536),
        structs.replace(REF, generation=65536),
        structs.replace(REF, key=-1),
    ],
)
def test_a_reference_that_cannot_be_parsed_is_not_signed(ref: TicketRef) -> None:
    with pytest.raises((AssertionError, struct.error)):
        sign_code(PRIVATE, ref)


def test_no_forgery_is_accepted() -> None:
    rng = random.Random(7)
    genuine = [sign_code(PRIVATE, random_ref(rng)) for _ in range(20 // SHARE)]
    assert all(is_genuine(code, PUBLIC) for code in genuine)
    seen, accepted = set(genuine), []
    for forged in forgeries(rng, genuine):
        if forged not in seen:
            seen.add(forged)
            accepted += [forged] if is_genuine(forged, PUBLIC) else []
    assert accepted == []
    assert len(seen) - len(genuine) >= FORGERIES


def forgeries(rng: random.Random, genuine: list[str]) -> Iterator[str]:
    """Forged codes, from those that only the signature gives away to random text."""
    return chain(
        chain.from_iterable(flipped_bits(code) for code in genuine),
        other_characters(genuine[0]),
        swapped_signatures(genuine),
        signed_by_others(rng, 5_000 // SHARE),
        (encode(b"\1" + rng.randbytes(104)) for _ in range(10_000 // SHARE)),
        truncated_and_extended(genuine),
        (encode(rng.randbytes(105)) for _ in range(20_000 // SHARE)),
        ("".join(rng.choices(ALPHABET, k=rng.randrange(1, 300))) for _ in range(30_000 // SHARE)),
        ("".join(map(chr, rng.choices(range(0xD800), k=CODE_CHARS))) for _ in range(15_000 // SHARE)),
    )


def flipped_bits(code: str) -> Iterator[str]:
    whole = int.from_bytes(decode(code), "big")
    return (encode((whole ^ 1 << bit).to_bytes(105, "big")) for bit in range(105 * 8))


def other_characters(code: str) -> Iterator[str]:
    for at, original in enumerate(code):
        yield from (code[:at] + character + code[at + 1 :] for character in ALPHABET if character != original)


def swapped_signatures(genuine: list[str]) -> Iterator[str]:
    raws = [decode(code) for code in genuine]
    return (encode(one[:41] + other[41:]) for one in raws for other in raws if one != other)


def signed_by_others(rng: random.Random, count: int) -> Iterator[str]:
    """Well-formed codes, each signed with the key of another event."""
    return (sign_code(new_key()[0], random_ref(rng)) for _ in range(count))


def truncated_and_extended(genuine: list[str]) -> Iterator[str]:
    for code in genuine:
        yield from (code[:length] for length in range(CODE_CHARS))
        yield from (code + more for more in [*ALPHABET, "=", "==", " ", "\n"])


def random_ref(rng: random.Random) -> TicketRef:
    return TicketRef(rng.randbytes(16), rng.randbytes(16), *(rng.randrange(65536) for _ in range(4)))


def sign_with_domain(domain: bytes, fields: bytes) -> str:
    return encode(fields + Ed25519PrivateKey.from_private_bytes(PRIVATE).sign(domain + fields))
