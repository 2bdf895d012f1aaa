"""Reads the receipt file that a buyer uploads from the request."""

import re
import secrets
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
# Searching bytes holds the GIL, and some boundaries are slow to search for. Other threads run between two slices.
SLICE_BYTES: Final = 1024 * 1024

_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


class UploadError(ValueError):
    """A body that is not an upload of one file. The text is for the client."""


class TooLargeError(UploadError):
    """A file of more than `FILE_BYTES_MAX` bytes."""


def read_uploaded_file(content_type_header: str, body: bytes) -> bytes:
    """The only part of a multipart/form-data body, named `file`. Call this in a thread."""
    boundary = _boundary(content_type_header)
    if _count(body, b"--" + boundary) > BOUNDARIES_MAX:
        raise UploadError("The body contains the boundary too often.")
    upload = _Upload()
    parser = MultipartParser(boundary, upload.callbacks())
    try:
        for start in range(0, len(body), SLICE_BYTES):
            parser.write(body[start : start + SLICE_BYTES])
    except FormParserError:
        raise UploadError("The body is not well-formed multipart/form-data.") from None
    return upload.finish()


def _count(body: bytes, needle: bytes) -> int:
    """How often the body contains the needle, without overlaps within a slice."""
    overlap = len(needle) - 1
    return sum(body.count(needle, start, start + SLICE_BYTES + overlap) for start in range(0, len(body), SLICE_BYTES))


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


def form_with_file(file: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """The headers and the body of an upload of this file, for callers in the same process."""
    boundary = secrets.token_hex(16).encode()
    head = b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="receipt"\r\n\r\n' % (boundary, FIELD)
    headers = {b"content-type": b"multipart/form-data; boundary=" + boundary}
    return headers, b"%b%b\r\n--%b--\r\n" % (head, file, boundary)
