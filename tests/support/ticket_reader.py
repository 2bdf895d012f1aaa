"""Read tickets the way a person and a scanner do: text and QR codes of PDF pages and images."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

import pypdfium2  # type: ignore[import-untyped]
import zxingcpp
from PIL import Image, ImageDraw

SVG = "{http://www.w3.org/2000/svg}"


@contextmanager
def open_pdf(pdf: bytes) -> Iterator[pypdfium2.PdfDocument]:
    document = pypdfium2.PdfDocument(pdf)
    try:
        yield document
    finally:
        document.close()


def read_qr_codes(picture: Image.Image) -> list[str]:
    return [
        found.text for found in zxingcpp.read_barcodes(picture, zxingcpp.BarcodeFormats(zxingcpp.BarcodeFormat.QRCode))
    ]


def qr_codes_in_pdf(pdf: bytes, dpi: int = 72) -> list[list[str]]:
    with open_pdf(pdf) as document:
        return [read_qr_codes(page.render(scale=dpi / 72).to_pil()) for page in document]


def texts_in_pdf(pdf: bytes) -> list[str]:
    """The text of each page, with whitespace collapsed."""
    with open_pdf(pdf) as document:
        return [" ".join(page.get_textpage().get_text_range().split()) for page in document]


def render_svg(svg: ElementTree.Element) -> Image.Image:
    """Render the drawing, whose dark path consists of rectangles, at ten pixels per unit of its view."""
    _, _, width, height = map(int, svg.attrib["viewBox"].split())
    picture = Image.new("L", (width * 10, height * 10), 255)
    background, dark = svg.findall(f"{SVG}path")
    assert background.attrib == {"fill": "#fff", "d": f"M0 0h{width}v{height}H0z"}
    rectangles = re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", dark.attrib["d"])
    assert "".join("M{} {}h{}v1h-{}z".format(*found, found[2]) for found in rectangles) == dark.attrib["d"]
    for x, y, length in (map(int, found) for found in rectangles):
        ImageDraw.Draw(picture).rectangle((x * 10, y * 10, (x + length) * 10 - 1, y * 10 + 9), fill=0)
    return picture
