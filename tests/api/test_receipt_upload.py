"""The content of a receipt decides its type, whatever its name, and an upload is one file or a clear error."""

from collections.abc import Callable

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from holdfast.api import receipt_upload
from holdfast.api.receipt_upload import FILE_BYTES_MAX, UploadError, read_uploaded_file
from holdfast.runtime.file_types import CONTENT_TYPES, content_type
from tests.support.sample_files import SAMPLES, box_file, image_file, pdf_file, zip_file

BOUNDARY = "limit"
HEADER = f"multipart/form-data; boundary={BOUNDARY}"


def test_every_file_type_has_a_sample() -> None:
    assert set(SAMPLES) == set(CONTENT_TYPES)


@pytest.mark.parametrize("expected", SAMPLES)
def test_a_file_is_recognised_by_its_content(expected: str) -> None:
    assert content_type(SAMPLES[expected]) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (image_file("JPEG", progressive=True), "image/jpeg"),
        (image_file("JPEG", exif=Image.Exif(), comment=b"from a phone"), "image/jpeg"),
        (image_file("JPEG") + b"trailing bytes from a phone", "image/jpeg"),
        (image_file("PNG", optimize=True), "image/png"),
        (image_file("WEBP", lossless=True), "image/webp"),
        (image_file("WEBP", exif=b"Exif\0\0MM\0*"), "image/webp"),
        (box_file(b"mif1", b"heic"), "image/heic"),
        (box_file(b"heix"), "image/heic"),
        (box_file(b"msf1", b"hevc"), "image/heic"),
        (pdf_file().replace(b"%PDF-1.3", b"%PDF-2.0"), "application/pdf"),
        (pdf_file() + b"\n", "application/pdf"),
    ],
)
def test_other_variants_of_these_files_are_recognised(data: bytes, expected: str) -> None:
    assert content_type(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"paid",
        b"<!doctype html><script>alert(1)</script>",
        b"<html>" + SAMPLES["image/png"],
        b"GIF89a/*<html><script>*/=1;alert(1)</script>",
        image_file("GIF"),
        b"BM" + SAMPLES["image/jpeg"],
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
        zip_file(),
        zip_file() + SAMPLES["application/pdf"],
        b"MZ\x90\0" + bytes(60) + b"PE\0\0",
        b"\x7fELF" + bytes(60),
        b"#!/bin/sh\n",
        image_file("TIFF"),
        # Many PDF readers accept a header further down, and so does an attacker who hides a PDF in a page.
        b"\n" + SAMPLES["application/pdf"],
        b"<html><!-- " + SAMPLES["application/pdf"] + b" -->",
        b"%!PS-Adobe-3.0\n%PDF-1.4\n%%EOF",
        b"%PDF-x\n%%EOF",
        box_file(b"avif", b"mif1"),
        box_file(b"mif1", b"avif"),
        box_file(b"isom", b"mp42", b"heic"),
        box_file(b"qt  "),
        b"\0\0\0\x08ftypheic",
        b"\xff\xff\xff\xfcftypheicmif1",
        b"RIFF\x24\0\0\0WAVEfmt " + bytes(40),
        b"RIFF\xff\xff\xff\xffWEBPVP8 " + bytes(40),
        b"RIFF\x20\0\0\0WEBP<svg" + bytes(40),
        b"\xff\xd8\xff<script>\xff\xd9",
        b"\xff\xd8<html>\xff\xd9",
        b"\x89PNG\r\n\x1a\n<html>\0\0\0\0IEND",
        SAMPLES["image/png"].replace(SAMPLES["image/png"][16:20], bytes(4), 1),
    ],
)
def test_any_other_content_is_not_a_receipt(data: bytes) -> None:
    assert content_type(data) is None


@pytest.mark.parametrize("kind", ["image/jpeg", "image/png", "image/webp", "application/pdf"])
def test_half_a_file_is_not_a_receipt(kind: str) -> None:
    assert content_type(SAMPLES[kind][: len(SAMPLES[kind]) // 2]) is None


STARTS = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"RIFF", b"\0\0\0\x1cftyp", b"%PDF-"]


@given(st.sampled_from(STARTS), st.binary(max_size=200))
def test_any_content_is_a_known_type_or_none(start: bytes, rest: bytes) -> None:
    assert content_type(start + rest) in (None, *CONTENT_TYPES)


@given(st.binary(max_size=50), st.sampled_from(sorted(SAMPLES)))
def test_a_file_after_other_bytes_is_not_a_receipt(before: bytes, kind: str) -> None:
    assert content_type(b"<" + before + SAMPLES[kind]) is None


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_truncated_file_keeps_its_type_or_is_not_a_receipt(kind: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(SAMPLES[kind])))
    assert content_type(SAMPLES[kind][:length]) in (None, kind)


def _encode(content: bytes, name: str = "receipt") -> tuple[str, bytes]:
    """The header and body that httpx sends."""
    request = httpx.Request("POST", "http://localhost", files={"file": (name, content)})
    return request.headers["Content-Type"], request.read()


def _part(content: bytes = b"content", disposition: str = 'form-data; name="file"; filename="x"') -> bytes:
    return f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


@pytest.mark.parametrize("kind", SAMPLES)
def test_an_uploaded_file_arrives_unchanged(kind: str) -> None:
    assert read_uploaded_file(*_encode(SAMPLES[kind])) == SAMPLES[kind]


@given(st.binary(min_size=1))
@example(b"\r\n")
@example(b"--limit--")
@example(b"\r\n--limi")
@example(b"\r\n--limit" * 50)
@example(b"\r\n--limit-\r\n--limit\r\r\n--limi")
def test_any_content_arrives_unchanged(content: bytes) -> None:
    header, body = _encode(content)
    assert read_uploaded_file(header, body) == content
    if b"--limit\r\n" not in content and b"--limit--" not in content:
        assert read_uploaded_file(HEADER, _part(content) + END) == content


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "a;b.pdf", 'a"b.pdf', "квитанция.pdf", "a\r\nb.pdf", "x" * 255, "\\\\host\\share\\a.pdf"],
)
def test_the_name_of_the_file_does_not_matter(name: str) -> None:
    assert read_uploaded_file(*_encode(b"content", name)) == b"content"


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Multipart/Form-Data; boundary=limit", _part() + END),
        ('multipart/form-data; charset=utf-8; boundary="limit"', _part() + END),
        (HEADER, b"\r\n" + _part() + END),
        (HEADER, _part() + END.rstrip()),
        (HEADER, _part() + END + b"an epilogue"),
        (HEADER, _part(disposition="form-data; name=file") + END),
        (HEADER, _part().replace(b"Content-Disposition", b"content-disposition") + END),
        (HEADER, _part().replace(b"\r\n\r\n", b"\r\nContent-Type: text/html\r\n\r\n", 1) + END),
    ],
)
def test_requests_of_other_clients_are_accepted(header: str, body: bytes) -> None:
    assert read_uploaded_file(header, body) == b"content"


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        ("", _part() + END, "must be multipart/form-data"),
        ("application/json", b"{}", "must be multipart/form-data"),
        ("multipart/mixed; boundary=limit", _part() + END, "must be multipart/form-data"),
        ("multipart/form-data", _part() + END, "no boundary"),
        ("multipart/form-data; boundary=", _part() + END, "no boundary"),
        ('multipart/form-data; boundary=""', _part() + END, "no boundary"),
        ("multipart/form-data; boundary=" + "x" * 71, _part() + END, "boundary in the Content-Type"),
        ('multipart/form-data; boundary="a\r\nb"', _part() + END, "boundary in the Content-Type"),
        ("multipart/form-data; boundary=лимит", _part() + END, "boundary in the Content-Type"),
        ("multipart/form-data; boundary=x; a=" + "x" * 5000, _part() + END, "too long"),
        (HEADER, b"", "ends before"),
        (HEADER, _part(), "ends before"),
        (HEADER, _part() + END[:-3], "ends before"),
        (HEADER, _part()[:30], "ends before"),
        (HEADER, _part() + END[2:], "ends before"),
        (HEADER, b"\r\n" * 1000, "ends before"),
        (HEADER, b"--other\r\n", "not well-formed"),
        (HEADER, b"file=content", "not well-formed"),
        (HEADER, b"--limit\r\nno header at all\r\n\r\n", "not well-formed"),
        (HEADER, END, "no part named `file`"),
        (HEADER, _part(b"") + END, "empty"),
        (HEADER, _part(b"\r\n--limit-" * 1000) + END, "too often"),
        (HEADER, _part() + _part() + END, "more than one"),
        (HEADER, _part(disposition='form-data; name="note"') + END, "not named `file`"),
        (HEADER, _part() + _part(b"hello", 'form-data; name="note"') + END, "not named `file`"),
        (HEADER, _part(disposition='form-data; name="FILE"') + END, "not named `file`"),
        (HEADER, _part(disposition='attachment; name="file"') + END, "not named `file`"),
        (HEADER, _part(disposition="form-data") + END, "not named `file`"),
        (HEADER, _part(disposition="form-data; name*=utf-8''file") + END, "not named `file`"),
        (HEADER, b"--limit\r\n\r\ncontent\r\n" + END, "not named `file`"),
        (HEADER, _part() + b"--limit\r\n\r\ncontent\r\n" + END, "not named `file`"),
        (
            HEADER,
            _part(disposition='form-data; name="file"; filename="' + "x" * 5000 + '"') + END,
            "too long|not well-formed",
        ),
    ],
)
def test_an_upload_that_is_not_one_file_is_refused_with_a_clear_message(header: str, body: bytes, message: str) -> None:
    with pytest.raises(UploadError, match=message):
        read_uploaded_file(header, body)


def test_the_largest_file_is_accepted_and_one_byte_more_is_refused() -> None:
    largest = bytes(FILE_BYTES_MAX)
    assert read_uploaded_file(HEADER, _part(largest) + END) == largest
    with pytest.raises(UploadError, match="larger than 10 MiB"):
        read_uploaded_file(HEADER, _part(largest + b"x") + END)


def _read_or_refuse(header: str, body: bytes) -> bytes | UploadError:
    try:
        return read_uploaded_file(header, body)
    except UploadError as error:
        return error


def _check_outcome(header: str, body: bytes) -> None:
    """The reader returns a part of the body or refuses it, and raises nothing else."""
    outcome = _read_or_refuse(header, body)
    assert isinstance(outcome, UploadError) or outcome in body


@given(st.text(), st.binary())
def test_any_header_and_body_are_read_or_refused(text: str, body: bytes) -> None:
    for header in (text, f"multipart/form-data;{text}", f"multipart/form-data; boundary={text}", HEADER):
        _check_outcome(header, body)


PIECES = [b"--limit", b"--limit\r\n", b"--limit--", b"\r\n", b"\r", b"\n", b"--", b":", b";", b'"', b"\\", b"=", b"*"]
PIECES += [
    b"Content-Disposition: form-data",
    b'; name="file"',
    b"; name*0=",
    b"; filename*=utf-8''%ff",
    b"x",
    b"\0\xff",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join))
@example(b"--limit\r\nContent-Disposition: form-data; name*0*=nothing''%ff; name*=file\r\n\r\n")
def test_any_mixture_of_the_parts_of_an_upload_is_read_or_refused(body: bytes) -> None:
    _check_outcome(HEADER, body)
    _check_outcome(HEADER, b"--limit\r\nContent-Disposition: form-data" + body + b"\r\n\r\n\r\n--limit--")


@given(st.data())
def test_a_truncated_upload_is_refused(data: st.DataObject) -> None:
    whole = _part(SAMPLES["image/png"]) + END.rstrip()
    with pytest.raises(UploadError):
        read_uploaded_file(HEADER, whole[: data.draw(st.integers(0, len(whole) - 1))])


MakeBody = Callable[[int], bytes]


@pytest.mark.parametrize(
    ("make_body", "outcome"),
    [
        (lambda size: b"\r\n" * (size // 2), UploadError),
        (lambda size: b"-" * size, UploadError),
        (lambda size: _part(b"\r" * size) + END, bytes),
        (lambda size: _part(b"\r\n--limi" * (size // 8)) + END, bytes),
        (lambda size: _part(b"\r\n--limit" * (size // 9)) + END, UploadError),
        (lambda size: _part(b"\r\n--limit-" * (size // 10)) + END, UploadError),
        (lambda size: b"--limit\r\n" + b"a:b\r\n" * (size // 5), UploadError),
        (lambda size: b"--limit\r\n" + b"a" * size, UploadError),
        (lambda size: b"--limit\r\na:" + b"b" * size, UploadError),
        (lambda size: _part(disposition="form-data" + ';"' * (size // 2)) + END, UploadError),
        (lambda size: _part() * (size // 70) + END, UploadError),
        (lambda size: _part() + END + b"\r\n--limit" * (size // 9), UploadError),
    ],
)
def test_a_large_hostile_body_is_read_or_refused(make_body: MakeBody, outcome: type[bytes | UploadError]) -> None:
    assert isinstance(_read_or_refuse(HEADER, make_body(FILE_BYTES_MAX)), outcome)


@pytest.mark.parametrize("slice_bytes", [1, 7, 64, 1_000])
def test_an_upload_reads_the_same_in_slices_of_any_size(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_upload, "SLICE_BYTES", slice_bytes)
    for content in SAMPLES.values():
        assert read_uploaded_file(*_encode(content)) == content


def test_a_boundary_that_crosses_slices_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for slice_bytes in range(1, 20):
        monkeypatch.setattr(receipt_upload, "SLICE_BYTES", slice_bytes)
        assert receipt_upload._count(b"x--ab" * 5, b"--ab") == 5
