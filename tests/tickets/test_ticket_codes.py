"""A ticket's code is exactly the text that the event's key signed. One changed bit, and it is refused."""

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


def text_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def bytes_of(code: str) -> bytes:
    return base64.urlsafe_b64decode(code)


@settings(deadline=None)
@given(refs)
def test_a_signed_code_is_read_back_and_verified(ref: TicketRef) -> None:
    code = sign_code(PRIVATE, ref)
    assert parse_code(code) == ref
    assert is_genuine(code, PUBLIC)


@settings(deadline=None)
@given(refs)
def test_a_code_is_at_most_150_characters_that_pass_through_any_url(ref: TicketRef) -> None:
    code = sign_code(PRIVATE, ref)
    assert len(code) == CODE_CHARS <= 150
    assert set(code) <= set(ALPHABET)


@settings(deadline=None)
@given(st.text() | st.text(alphabet=ALPHABET, min_size=CODE_CHARS, max_size=CODE_CHARS))
def test_any_text_is_refused_with_an_answer(text: str) -> None:
    parse_code(text)
    assert not is_genuine(text, PUBLIC)


def test_the_codes_that_were_sent_out_stay_good() -> None:
    """A ticket may be bought a year before the door opens, so the layout of this version never changes."""
    private = bytes(range(32))
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    code = (
        "AQABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAAEAAgADAARzZC2nzRFpCHgosN"
        "O2D1NWHupM3YjiqhPqdHkgVHboBiZT4nXDvPvS-IeEab0S5Szl-edxjrycN7CRAPts3NED"
    )
    assert sign_code(private, REF) == code
    assert is_genuine(code, public)


def test_a_device_can_check_a_code_by_the_written_layout_alone() -> None:
    raw = bytes_of(CODE)
    assert len(raw) == 105
    assert raw[0] == 1
    assert (raw[1:17], raw[17:33]) == (EVENT, BOOKING)
    assert struct.unpack(">HHHH", raw[33:41]) == (1, 2, 3, 4)
    Ed25519PublicKey.from_public_bytes(PUBLIC).verify(raw[41:], b"holdfast-ticket:" + raw[:41])


def test_every_single_character_changed_to_another_is_refused() -> None:
    assert [forged for forged in other_characters(CODE) if is_genuine(forged, PUBLIC)] == []


def test_every_single_bit_flipped_is_refused() -> None:
    assert [forged for forged in flipped_bits(CODE) if is_genuine(forged, PUBLIC)] == []


def test_a_code_has_exactly_one_spelling() -> None:
    ways = [
        *(CODE + more for more in ("=", "==", " ", "\n", "\0", "A", "AAAA", CODE)),
        *(more + CODE for more in (" ", "\n", "A", "\ufeff")),
        *(CODE[:at] + more + CODE[at:] for at in (1, 70, 139) for more in ("\n", " ", "=", "*", "\u200b")),
        *(CODE[:cut] for cut in range(CODE_CHARS)),
        *(CODE[: -len(end)] + end for end in ("=", "==", "\n", " ")),
        text_of(bytes_of(CODE)[:-1]),
        text_of(bytes_of(CODE) + b"\0"),
        CODE.swapcase(),
        chr(ord(CODE[0]) + 0xFEE0) + CODE[1:],
    ]
    assert [way for way in ways if parse_code(way) is not None or is_genuine(way, PUBLIC)] == []


def test_the_other_base64_alphabet_is_refused() -> None:
    signed = (sign_code(PRIVATE, structs.replace(REF, unit=unit)) for unit in range(1000))
    code = next(code for code in signed if "-" in code and "_" in code)
    assert parse_code(code) is not None
    for other in (code.replace("-", "+"), code.replace("_", "/"), code.replace("-", "+").replace("_", "/")):
        assert parse_code(other) is None
        assert not is_genuine(other, PUBLIC)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_even_when_it_is_signed(version: int) -> None:
    forged = signed_as(b"holdfast-ticket:", bytes([version]) + bytes_of(CODE)[1:41])
    assert parse_code(forged) is None
    assert not is_genuine(forged, PUBLIC)


@pytest.mark.parametrize("domain", [b"", b"holdfast:", b"holdfast-receipt:"])
def test_a_signature_for_another_purpose_is_no_ticket(domain: bytes) -> None:
    assert not is_genuine(signed_as(domain, bytes_of(CODE)[:41]), PUBLIC)
    assert is_genuine(signed_as(b"holdfast-ticket:", bytes_of(CODE)[:41]), PUBLIC)


def test_a_signature_proves_its_own_fields_and_no_others() -> None:
    for ref in (
        structs.replace(REF, event=bytes(16)),
        structs.replace(REF, booking=bytes(16)),
        structs.replace(REF, line=0),
        structs.replace(REF, unit=0),
        structs.replace(REF, generation=0),
        structs.replace(REF, key=0),
    ):
        forged = text_of(bytes_of(sign_code(PRIVATE, ref))[:41] + bytes_of(CODE)[41:])
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
def test_nothing_is_signed_that_could_not_be_read_back(ref: TicketRef) -> None:
    with pytest.raises((AssertionError, struct.error)):
        sign_code(PRIVATE, ref)


def test_no_forgery_is_accepted() -> None:
    chance = random.Random(7)
    genuine = [sign_code(PRIVATE, random_ref(chance)) for _ in range(20 // SHARE)]
    assert all(is_genuine(code, PUBLIC) for code in genuine)
    tried, accepted = set(genuine), []
    for forged in forgeries(chance, genuine):
        if forged not in tried:
            tried.add(forged)
            accepted += [forged] if is_genuine(forged, PUBLIC) else []
    assert accepted == []
    assert len(tried) - len(genuine) >= FORGERIES


def forgeries(chance: random.Random, genuine: list[str]) -> Iterator[str]:
    """From the subtle, which only the signature gives away, to the clumsy."""
    return chain(
        chain.from_iterable(flipped_bits(code) for code in genuine),
        other_characters(genuine[0]),
        swapped_signatures(genuine),
        signed_by_others(chance, 5_000 // SHARE),
        (text_of(b"\1" + chance.randbytes(104)) for _ in range(10_000 // SHARE)),
        cut_and_extended(genuine),
        (text_of(chance.randbytes(105)) for _ in range(20_000 // SHARE)),
        ("".join(chance.choices(ALPHABET, k=chance.randrange(1, 300))) for _ in range(30_000 // SHARE)),
        ("".join(map(chr, chance.choices(range(0xD800), k=CODE_CHARS))) for _ in range(15_000 // SHARE)),
    )


def flipped_bits(code: str) -> Iterator[str]:
    whole = int.from_bytes(bytes_of(code), "big")
    return (text_of((whole ^ 1 << bit).to_bytes(105, "big")) for bit in range(105 * 8))


def other_characters(code: str) -> Iterator[str]:
    for at, was in enumerate(code):
        yield from (code[:at] + letter + code[at + 1 :] for letter in ALPHABET if letter != was)


def swapped_signatures(genuine: list[str]) -> Iterator[str]:
    raws = [bytes_of(code) for code in genuine]
    return (text_of(one[:41] + other[41:]) for one in raws for other in raws if one != other)


def signed_by_others(chance: random.Random, count: int) -> Iterator[str]:
    """As good as genuine, each by the key of another event."""
    return (sign_code(new_key()[0], random_ref(chance)) for _ in range(count))


def cut_and_extended(genuine: list[str]) -> Iterator[str]:
    for code in genuine:
        yield from (code[:length] for length in range(CODE_CHARS))
        yield from (code + more for more in [*ALPHABET, "=", "==", " ", "\n"])


def random_ref(chance: random.Random) -> TicketRef:
    return TicketRef(chance.randbytes(16), chance.randbytes(16), *(chance.randrange(65536) for _ in range(4)))


def signed_as(domain: bytes, fields: bytes) -> str:
    return text_of(fields + Ed25519PrivateKey.from_private_bytes(PRIVATE).sign(domain + fields))
