"""Small files of each type that a buyer may upload as a receipt, and of some that they may not."""

import zipfile
from io import BytesIO

from fpdf import FPDF
from PIL import Image


def image_file(form: str, **options: object) -> bytes:
    file = BytesIO()
    Image.effect_noise((40, 30), 80).convert("RGB").save(file, form, **options)
    return file.getvalue()


def pdf_file() -> bytes:
    pdf = FPDF()
    pdf.add_page()
    pdf.set_font("helvetica")
    pdf.cell(text="Paid: 30.00 EUR")
    return bytes(pdf.output())


def box_file(major: bytes, *others: bytes) -> bytes:
    """The beginning of a file in the ISO base media format: HEIC, AVIF, MP4."""
    box = b"ftyp" + major + bytes(4) + b"".join(others)
    return (4 + len(box)).to_bytes(4, "big") + box + b"\0\0\0\x08meta"


SAMPLES = {
    "image/jpeg": image_file("JPEG"),
    "image/png": image_file("PNG"),
    "image/webp": image_file("WEBP"),
    "image/heic": box_file(b"heic", b"mif1", b"heic"),
    "application/pdf": pdf_file(),
}


def zip_file() -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("receipt.pdf", pdf_file())
    return file.getvalue()


MIB = 1024 * 1024


def jpeg_of_size(size: int) -> bytes:
    """A JPEG of exactly this size, padded after its end."""
    picture = SAMPLES["image/jpeg"]
    return picture + b"\0" * (size - len(picture))
