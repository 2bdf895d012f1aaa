"""How an org shows itself to buyers: its logo, and the colours that follow from the one it has chosen.

An org names one colour, whatever it is. Text in it, and text on it, has to be legible on every surface of our pages, so
the colours that the pages use are derived from it by the contrast that WCAG 2 asks for.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from holdfast.payments.receipt_files import content_type

LOGO_MAX: Final = 256 * 1024
LOGO_TYPES: Final = ("image/png", "image/jpeg", "image/webp")
# So much of a logo's hash tells it from the one before.
LOGO_DIGITS: Final = 12

# AA for text of any size.
CONTRAST_MIN: Final = 4.5
# Those of our stylesheet, from the plain page to what is sunk into it, and white for whatever is printed. The last of
# the dark ones is as light as a tint of the text's own colour gets while the text needs help on it.
LIGHT_SURFACES: Final = ("#ffffff", "#fffdf9", "#f5f2ec", "#ebe6dd")
DARK_SURFACES: Final = ("#161311", "#201c18", "#2b2621", "#302a25")
# By preference. On whatever white is not legible, black is; on most of it a softer black is too.
INKS: Final = ("#ffffff", "#211d18", "#000000")

Rgb = tuple[int, int, int]


class Palette(Struct, frozen=True):
    """`brand` is for surfaces and `brand_ink` for text on them; the other two are for text on surfaces of ours."""

    brand: str
    brand_ink: str
    brand_text: str
    brand_text_dark: str


# What the stylesheet has for orgs that have chosen none.
DEFAULT: Final = Palette(brand="#0b6b57", brand_ink="#ffffff", brand_text="#0b6b57", brand_text_dark="#6fd3b9")


def palette(colour: str | None) -> Palette:
    """The colours of an org that has chosen this one, as `#1f6feb`, or none."""
    if colour is None:
        return DEFAULT
    brand = colour.lower()
    return Palette(
        brand=_text(_rgb(brand)),
        brand_ink=next(ink for ink in INKS if is_legible(ink, (brand,))),
        brand_text=_legible(brand, "#000000", LIGHT_SURFACES),
        brand_text_dark=_legible(brand, "#ffffff", DARK_SURFACES),
    )


def stylesheet(colours: Palette) -> str:
    names = colours.__struct_fields__
    return ":root{" + ";".join(f"--{name.replace('_', '-')}:{getattr(colours, name)}" for name in names) + "}\n"


def is_legible(colour: str, surfaces: Iterable[str]) -> bool:
    return all(contrast(colour, surface) >= CONTRAST_MIN for surface in surfaces)


def contrast(one: str, other: str) -> float:
    """From 1, for the same colour twice, to 21, for black and white."""
    darker, lighter = sorted((_luminance(_rgb(one)), _luminance(_rgb(other))))
    return (lighter + 0.05) / (darker + 0.05)


def logo_type(data: bytes) -> str | None:
    """What the file is, by its content, if it can be a logo. Drawings with scripts in them cannot."""
    found = content_type(data)
    return found if found in LOGO_TYPES else None


def logo_path(slug: str, logo_hash: str | None) -> str | None:
    """Where our pages have the logo. Another logo has another address, so that each can be kept for ever."""
    return None if logo_hash is None else f"/logo/{slug}?v={logo_hash[:LOGO_DIGITS]}"


def _legible(colour: str, end: str, surfaces: Iterable[str]) -> str:
    """The colour, with as little of black or white in it as makes it legible."""
    mixed = (_mixed(_rgb(colour), _rgb(end), part) for part in range(256))
    return next(found for found in map(_text, mixed) if is_legible(found, surfaces))


def _mixed(colour: Rgb, end: Rgb, part: int) -> Rgb:
    """`part` of 255 is of the other colour."""
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
