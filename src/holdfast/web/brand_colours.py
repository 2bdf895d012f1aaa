"""The palette of an org, derived from the one colour it chooses.

An org may choose any colour. Text in it, and text on it, must be legible on every surface of the pages, so the palette
adjusts the colour until it reaches the contrast that WCAG 2 requires.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

# WCAG level AA for text of any size.
CONTRAST_MIN: Final = 4.5
# The surfaces of the stylesheet from the page to its insets, and white for print. The last dark one is the lightest
# tint on which text in the brand colour still needs adjusting.
LIGHT_SURFACES: Final = ("#ffffff", "#fffdf9", "#f5f2ec", "#ebe6dd")
DARK_SURFACES: Final = ("#161311", "#201c18", "#2b2621", "#302a25")
# In order of preference. Where white is not legible, black is, and mostly a softer black too.
INKS: Final = ("#ffffff", "#211d18", "#000000")

Rgb = tuple[int, int, int]


class Palette(Struct, frozen=True):
    """`brand` is for surfaces and `brand_ink` for text on them. The other two are for text on the pages' surfaces."""

    brand: str
    brand_ink: str
    brand_text: str
    brand_text_dark: str


def palette(colour: str) -> Palette:
    """The palette for a colour such as `#1f6feb`."""
    brand = colour.lower()
    return Palette(
        brand=_text(_rgb(brand)),
        brand_ink=next(ink for ink in INKS if is_legible(ink, (brand,))),
        brand_text=_make_legible(brand, "#000000", LIGHT_SURFACES),
        brand_text_dark=_make_legible(brand, "#ffffff", DARK_SURFACES),
    )


def stylesheet(colours: Palette) -> str:
    names = colours.__struct_fields__
    return ":root{" + ";".join(f"--{name.replace('_', '-')}:{getattr(colours, name)}" for name in names) + "}\n"


def is_legible(colour: str, surfaces: Iterable[str]) -> bool:
    return all(contrast(colour, surface) >= CONTRAST_MIN for surface in surfaces)


def contrast(one: str, other: str) -> float:
    """The WCAG contrast ratio: 1 for equal colours, 21 for black and white."""
    darker, lighter = sorted((_luminance(_rgb(one)), _luminance(_rgb(other))))
    return (lighter + 0.05) / (darker + 0.05)


def _make_legible(colour: str, end: str, surfaces: Iterable[str]) -> str:
    """The colour, mixed with as little black or white as makes it legible."""
    mixed = (_mix(_rgb(colour), _rgb(end), part) for part in range(256))
    return next(found for found in map(_text, mixed) if is_legible(found, surfaces))


def _mix(colour: Rgb, end: Rgb, part: int) -> Rgb:
    """`part` of 255 comes from the second colour."""
    red, green, blue = (round((a * (255 - part) + b * part) / 255) for a, b in zip(colour, end, strict=True))
    return red, green, blue


def _luminance(colour: Rgb) -> float:
    """Relative luminance as WCAG 2 defines it."""
    red, green, blue = (_linear(channel / 255) for channel in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    linear: float = channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
    return linear


def _rgb(text: str) -> Rgb:
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


def _text(colour: Rgb) -> str:
    return f"#{bytes(colour).hex()}"
