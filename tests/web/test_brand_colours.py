"""Text stays readable on and in any colour an org chooses."""

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast
from holdfast.api.branding import logo_path
from holdfast.web.brand_colours import DARK_SURFACES, LIGHT_SURFACES, Palette, contrast, palette, stylesheet

STYLE = Path(holdfast.__file__).parent / "web" / "static" / "holdfast.css"
# The contrast that WCAG 2 requires for text of any size.
AA = 4.5
COLOURS = st.integers(0, 0xFFFFFF).map(lambda number: f"#{number:06x}")
STYLESHEET = re.compile(
    r":root\{--brand:(#[0-9a-f]{6});--brand-ink:(#[0-9a-f]{6})"
    r";--brand-text:(#[0-9a-f]{6});--brand-text-dark:(#[0-9a-f]{6})\}\n"
)


def check_contrast(found: Palette) -> None:
    assert contrast(found.brand_ink, found.brand) >= AA
    assert min(contrast(found.brand_text, surface) for surface in LIGHT_SURFACES) >= AA
    assert min(contrast(found.brand_text_dark, surface) for surface in DARK_SURFACES) >= AA


@given(COLOURS)
@example("#777777")
@example("#767676")
@example("#ffffff")
@example("#000000")
def test_every_colour_is_legible_on_its_surfaces(colour: str) -> None:
    check_contrast(palette(colour))


def test_colours_across_the_whole_cube_are_legible() -> None:
    for channels in itertools.product(range(0, 256, 51), repeat=3):
        check_contrast(palette(f"#{bytes(channels).hex()}"))


@given(COLOURS)
def test_the_brand_colour_is_the_one_that_the_org_chose(colour: str) -> None:
    assert palette(colour).brand == palette(colour.upper()).brand == colour


@given(COLOURS)
def test_a_legible_colour_is_not_changed(colour: str) -> None:
    found = palette(colour)
    for surfaces, text in ((LIGHT_SURFACES, found.brand_text), (DARK_SURFACES, found.brand_text_dark)):
        is_legible = min(contrast(colour, surface) for surface in surfaces) >= AA
        assert (text == colour) is is_legible


@given(COLOURS)
def test_text_colours_change_only_as_much_as_legibility_needs(
    colour: str,
) -> None:
    found = palette(colour)
    channels = [bytes.fromhex(each[1:]) for each in (found.brand_text, colour, found.brand_text_dark)]
    for darker, chosen, lighter in zip(*channels, strict=True):
        assert darker <= chosen <= lighter
    for surfaces, text in ((LIGHT_SURFACES, found.brand_text), (DARK_SURFACES, found.brand_text_dark)):
        assert text == colour or min(contrast(text, surface) for surface in surfaces) < AA + 0.15


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("#000000", "#ffffff", 21.0),
        ("#ffffff", "#767676", 4.54),
        ("#777777", "#ffffff", 4.48),
        ("#f00000", "#f00000", 1.0),
    ],
)
def test_contrast_follows_wcag(one: str, other: str, expected: float) -> None:
    assert round(contrast(one, other), 2) == expected


def test_the_colours_of_our_stylesheet_are_legible() -> None:
    ours = dict(re.findall(r"--(brand[\w-]*): (#[0-9a-f]{6});", STYLE.read_text()))
    check_contrast(Palette(**{name.replace("-", "_"): colour for name, colour in ours.items()}))


def test_every_surface_of_our_stylesheet_is_checked() -> None:
    light, dark = STYLE.read_text().split("prefers-color-scheme: dark", 1)
    for part, surfaces in ((light, LIGHT_SURFACES), (dark, DARK_SURFACES)):
        assert set(re.findall(r"--(?:paper|card|sunk): (\S+);", part)) <= set(surfaces)


@given(COLOURS)
def test_the_stylesheet_has_the_four_properties_and_nothing_else(colour: str) -> None:
    found = STYLESHEET.fullmatch(stylesheet(palette(colour)))
    assert found is not None
    assert Palette(*found.groups()) == palette(colour)


@pytest.mark.parametrize("colour", ["#12345", "#1234567", "red", "#12345g", "#fff;}body{display:none"])
def test_an_invalid_colour_never_reaches_a_stylesheet(colour: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (several parts may refuse it)
        palette(colour)


def test_the_url_of_a_logo_contains_its_hash() -> None:
    assert logo_path("acme", "0123456789abcdef" * 4) == "/logo/acme?v=0123456789ab"
    assert logo_path("acme", None) is None
