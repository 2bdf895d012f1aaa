"""Receipt files that buyers upload: reads them from the request, and recognises their type.

Only the content decides about the type. The name and type that a client claims are ignored.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FILE_BYTES_MAX: Final = 10 * 1024 * 1024
# Enough for a long file name in two encodings, and cheap to parse.
HEADER_BYTES_MAX: Final = 4096
# An upload of one file has two. A million of them would keep the parser busy for seconds.
BOUNDARIES_MAX: Final = 100
FIELD: Final = b"file"

_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")

# The start of a JPEG is followed by a table, a frame, a comment or an application segment.
_JPEG_START: Final = re.compile(rb"\xff\xd8\xff[\xc0-\xcf\xdb\xdd\xe0-\xef\xfe]")
_PDF_START: Final = re.compile(rb"%PDF-[12]\.[0-9]")
_HEIF_BRANDS: Final = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS: Final = {b"avif", b"avis"}
_BRANDS_MAX: Final = 64


class UploadError(ValueError):
    """A body that is not an upload of one file. The text is for the client."""


class TooLargeError(UploadError):
    """A file of more than `FILE_BYTES_MAX` bytes."""


def content_type(data: bytes) -> str | None:
    """The media type, if a receipt may have it. The end marker must be there too, so that the buyer learns about a
    truncated file at once. The content in between may still be broken."""
    return next((name for name, recognises in _RECOGNISERS.items() if recognises(data)), None)


def uploaded_file(content_type_header: str, body: bytes) -> bytes:
    """The only part of a multipart/form-data body, named `file`."""
    boundary = _boundary(content_type_header)
    if body.count(b"--" + boundary) > BOUNDARIES_MAX:
        raise UploadError("The body contains the boundary too often.")
    upload = _Upload()
    try:
        MultipartParser(boundary, upload.callbacks()).write(body)
    except FormParserError:
        raise UploadError("The body is not well-formed multipart/form-data.") from None
    return upload.finish()


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


def _boundary(content_type_header: str) -> bytes:
    kind, options = _options(content_type_header.encode("latin-1", "backslashreplace"))
    if kind != b"multipart/form-data":
        raise UploadError("The body must be multipart/form-data.")
    if not (boundary := options.get(b"boundary")):
        raise UploadError("The Content-Type names no boundary.")
    if not _BOUNDARY.fullmatch(boundary):
        raise UploadError("The boundary in the Content-Type is too long or has invalid characters.")
    return boundary


def _options(header: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    if len(header) > HEADER_BYTES_MAX:
        raise UploadError("A header is too long.")
    try:
        kind, options = parse_options_header(header)
    except ValueError:
        raise UploadError("A header cannot be read.") from None
    return kind.lower(), options


class _Upload:
    """Collects what the parser finds. Errors raised here end the parsing."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._has_file = False
        self._is_whole = False

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_header_begin": self._begin_header,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_content,
            "on_part_data": self._take,
            "on_end": self._end,
        }

    def finish(self) -> bytes:
        if not self._is_whole:
            raise UploadError("The body ends before its last boundary.")
        if not self._has_file:
            raise UploadError("There is no part named `file`.")
        if not self._size:
            raise UploadError("The file is empty.")
        return b"".join(self._pieces)

    def _begin_header(self) -> None:
        self._header.clear()
        self._value.clear()

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)

    def _begin_content(self) -> None:
        kind, options = _options(self._disposition)
        self._disposition = b""
        if kind != b"form-data" or options.get(b"name") != FIELD:
            raise UploadError("A part is not named `file`. Send only the file.")
        if self._has_file:
            raise UploadError("There is more than one file. Send one file per request.")
        self._has_file = True

    def _take(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._size > FILE_BYTES_MAX:
            raise TooLargeError(f"The file is larger than {FILE_BYTES_MAX // 1024**2} MiB.")
        self._pieces.append(data[start:end])

    def _end(self) -> None:
        self._is_whole = True
