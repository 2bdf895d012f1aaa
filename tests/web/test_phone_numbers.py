"""Phone numbers as people type them."""

import pytest

from holdfast.web.phone_numbers import normalise_phone


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("+34911234567", "+34911234567"),
        (" +34 911 23 45 67 ", "+34911234567"),
        ("+1 (212) 555-0123", "+12125550123"),
        ("+44 (0)20 7946.0123", "+442079460123"),
        ("0044 20/7946 0123", "+442079460123"),
        ("+34\u00a0911\u2013234\u2011567", "+34911234567"),
        ("\uff0b34 911 234 567", "+34911234567"),
        ("911 234 567", "911234567"),
        ("call me", "callme"),
        ("(0)20", "020"),
        ("", ""),
    ],
)
def test_separators_do_not_matter(typed: str, number: str) -> None:
    assert normalise_phone(typed) == number
