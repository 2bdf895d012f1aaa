"""The QR code of a ticket, as a drawing for pages and as a picture for mail."""

import io
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import segno

# The margin that readers need to find the code, in modules.
QUIET_MODULES: Final = 4
# The code of a ticket has 49 modules: 513 pixels with the margin.
PNG_SCALE: Final = 9

Run = tuple[int, int, int]


def qr_runs(code: str) -> tuple[int, list[Run]]:
    """The width of the code in modules, without margin, and its dark parts row by row: x, y, and how many modules."""
    rows = [list(row) for row in _make(code).matrix_iter(border=0)]
    return len(rows), [(x, y, modules) for y, row in enumerate(rows) for x, modules in _dark(row)]


def qr_svg(code: str) -> bytes:
    """As large as the page wants it. All dark parts are one path: drawn one by one, neighbours show a seam."""
    modules, runs = qr_runs(code)
    width = modules + 2 * QUIET_MODULES
    path = "".join(f"M{x + QUIET_MODULES} {y + QUIET_MODULES}h{long}v1h-{long}z" for x, y, long in runs)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {width}" shape-rendering="crispEdges">'
        f'<path fill="#fff" d="M0 0h{width}v{width}H0z"/><path fill="#000" d="{path}"/></svg>'
    ).encode()


def qr_png(code: str) -> bytes:
    snapshot = io.BytesIO()
    _make(code).save(snapshot, kind="png", scale=PNG_SCALE, border=QUIET_MODULES)
    return snapshot.getvalue()


def _make(code: str) -> segno.QRCode:
    """A signature looks like noise under any mask; looking for the best one would take most of the time."""
    return segno.make_qr(code, error="m", mask=0)


def _dark(row: list[int]) -> Iterator[tuple[int, int]]:
    x = 0
    for dark, group in groupby(row):
        modules = len(list(group))
        if dark:
            yield x, modules
        x += modules
