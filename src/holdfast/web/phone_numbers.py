"""Phone numbers as people type them, in the form that the API takes."""

import re
import unicodedata
from typing import Final

# Dialled only within the country.
_TRUNK_PREFIX: Final = re.compile(r"(?<=\d)\s*\(0\)")
# What people put between digits.
_SEPARATORS: Final = re.compile(r"[\s().\-/\u2010-\u2015]+")


def normalise_phone(text: str) -> str:
    """`+44 (0)20 7946-0123` and `0044 20 7946 0123` become `+442079460123`. The API decides
    whether the result is a phone number."""
    digits = _SEPARATORS.sub("", _TRUNK_PREFIX.sub("", unicodedata.normalize("NFKC", text)))
    return "+" + digits[2:] if digits.startswith("00") else digits
