"""The QR code of a ticket as SVG, as PNG, and as rectangles for the PDF."""

import io
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Final

import segno

# Scanners need this margin around the code.
QUIET_MODULES: Final = 4
# A ticket's code has 49 modules, so this makes 513 pixels with the margin.
PNG_SCALE: Final = 9
# A QR code takes up to 10 ms to draw and about a kilobyte to keep. Pages show the same one again and again.
CACHED_MAX: Final = 1_000

Run = tuple[int, int, int]


def qr_runs(code: str) -> tuple[int, list[Run]]:
    """The width of the code in modules, without margin, and its dark runs as x, y and length."""
    rows = [list(row) for row in _make(code).matrix_iter(border=0)]
    return len(rows), [(x, y, modules) for y, row in enumerate(rows) for x, modules in _dark_runs(row)]


@lru_cache(CACHED_MAX)
def qr_svg(code: str) -> bytes:
    """Scales to any size. All dark runs are one path, because separate shapes show seams between them."""
    modules, runs = qr_runs(code)
    width = modules + 2 * QUIET_MODULES
    path = "".join(f"M{x + QUIET_MODULES} {y + QUIET_MODULES}h{length}v1h-{length}z" for x, y, length in runs)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {width}" shape-rendering="crispEdges">'
        f'<path fill="#fff" d="M0 0h{width}v{width}H0z"/><path fill="#000" d="{path}"/></svg>'
    ).encode()


@lru_cache(CACHED_MAX)
def qr_png(code: str) -> bytes:
    png = io.BytesIO()
    _make(code).save(png, kind="png", scale=PNG_SCALE, border=QUIET_MODULES)
    return png.getvalue()


def _make(code: str) -> segno.QRCode:
    """A signature looks like noise under any mask, so searching for the best mask would only cost time."""
    return segno.make_qr(code, error="m", mask=0)


def _dark_runs(row: list[int]) -> Iterator[tuple[int, int]]:
    x = 0
    for dark, group in groupby(row):
        modules = len(list(group))
        if dark:
            yield x, modules
        x += modules
