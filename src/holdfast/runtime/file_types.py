"""Recognises the type of an uploaded file.

Only the content decides. The name and type that a client claims are ignored.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

# The start of a JPEG is followed by a table, a frame, a comment or an application segment.
_JPEG_START: Final = re.compile(rb"\xff\xd8\xff[\xc0-\xcf\xdb\xdd\xe0-\xef\xfe]")
_PDF_START: Final = re.compile(rb"%PDF-[12]\.[0-9]")
_HEIF_BRANDS: Final = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS: Final = {b"avif", b"avis"}
_BRANDS_MAX: Final = 64

# With these, a browser shows an uploaded file as the type that we detected, and runs nothing in it.
SAFE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
}


def content_type(data: bytes) -> str | None:
    """The media type, if it is one of `CONTENT_TYPES`. The end marker must be there too, so that the uploader learns
    about a truncated file at once. The content in between may still be broken."""
    return next((name for name, recognises in _RECOGNISERS.items() if recognises(data)), None)


def _is_jpeg(data: bytes) -> bool:
    return _JPEG_START.match(data) is not None and b"\xff\xd9" in data


def _is_png(data: bytes) -> bool:
    has_pixels = any(data[16:20]) and any(data[20:24])
    return data[:16] == b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" and has_pixels and b"\0\0\0\0IEND" in data


def _is_webp(data: bytes) -> bool:
    size = 8 + int.from_bytes(data[4:8], "little")
    is_riff = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    return is_riff and data[12:16] in (b"VP8 ", b"VP8L", b"VP8X") and 20 < size <= len(data)


def _is_heic(data: bytes) -> bool:
    """Many image and video formats share this container; its first box lists the brands."""
    size = int.from_bytes(data[:4], "big")
    if data[4:8] != b"ftyp" or size % 4 or not 16 <= size <= min(len(data), 16 + 4 * _BRANDS_MAX):
        return False
    others = {data[at : at + 4] for at in range(16, size, 4)}
    return data[8:12] in _HEIF_BRANDS and not others & _AVIF_BRANDS


def _is_pdf(data: bytes) -> bool:
    return _PDF_START.match(data) is not None and b"%%EOF" in data


_RECOGNISERS: Final[Mapping[str, Callable[[bytes], bool]]] = {
    "image/jpeg": _is_jpeg,
    "image/png": _is_png,
    "image/webp": _is_webp,
    "image/heic": _is_heic,
    "application/pdf": _is_pdf,
}
CONTENT_TYPES: Final = tuple(_RECOGNISERS)
