"""Receipts: handed in by buyers, looked at by those who review them."""

import hashlib
from typing import Final

import msgspec
import structlog

from holdfast import sql
from holdfast.api.booking_handlers import booking_answer, named_booking, visible_booking
from holdfast.api.call import ApiResponse, Call
from holdfast.api.endpoint import check_text, invalid_body
from holdfast.api.requests import ReceiptRef
from holdfast.api.responses import ReceiptList, ReceiptView
from holdfast.core.commands import Receipt, SubmitReceipt
from holdfast.core.event_schemas import invalid_field
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.settlement import RECEIPTS_MAX
from holdfast.payments.receipt_files import (
    CONTENT_TYPES,
    FILE_MAX,
    TooLargeError,
    UploadError,
    content_type,
    uploaded_file,
)
from holdfast.runtime import ids
from holdfast.runtime.storage import StorageError

log = structlog.get_logger()

# Around a file of the largest size.
UPLOAD_MAX: Final = FILE_MAX + 64 * 1024

# Whatever a file contains, a browser is to show it as what we found it to be, and run nothing of it.
SAFE_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"cache-control", b"private, no-store"),
)


async def submit_receipt(call: Call) -> ApiResponse:
    event, booking = named_booking(call)
    receipt, file = _receipt(call)
    known = await call.services.pool.fetchrow(
        sql.payments.reviewable, event, booking, call.caller.org, call.caller.user
    )
    if known is None:
        raise RefusedError(Refusal.NOT_FOUND)
    if file is not None and known["takes"]:
        await _store(call, receipt, file)
    outcome = await call.services.engine.submit(
        SubmitReceipt(
            event=event,
            org=call.caller.org,
            booking=booking,
            payment=ids.new_id(),
            receipt=receipt,
            actor=call.caller.actor,
            owner=call.caller.user,
        )
    )
    return booking_answer(outcome)


async def _store(call: Call, receipt: Receipt, file: bytes) -> None:
    """A file without a row is of no harm; a row without its file would be. What the desk would refuse is not stored."""
    event, booking = named_booking(call)
    if await call.services.pool.fetchval(sql.payments.count_receipts, event, booking, receipt.hash) >= RECEIPTS_MAX:
        return
    try:
        await call.services.storage.put(f"{call.caller.org.hex()}/{receipt.hash.hex()}", file)
    except StorageError as error:
        log.error("receipt_not_stored", error=type(error).__name__)
        raise RefusedError(Refusal.BUSY, "The receipt cannot be stored right now.") from None


async def list_receipts(call: Call) -> ApiResponse:
    event, booking = named_booking(call)
    pool = call.services.pool
    await visible_booking(call, event, booking)
    rows = await pool.fetch(sql.payments.receipts, event, booking, call.caller.org)
    items = []
    for row in rows:
        id_ = ids.format_receipt_id(event, row["id"])
        fields = ("at", "content_type", "size", "file_ref", "message_ref", "also_on")
        file_url = f"/v1/receipts/{id_}" if row["content_type"] else None
        items.append(ReceiptView(id=id_, file_url=file_url, **{name: row[name] for name in fields}))
    return ApiResponse(ReceiptList(items=items, next=None))


async def get_receipt(call: Call) -> ApiResponse:
    named = ids.parse_receipt_id(call.path["id"])
    row = named and await call.services.pool.fetchrow(sql.payments.receipt, *named, call.caller.org)
    if not row or row["content_type"] not in CONTENT_TYPES:
        raise RefusedError(Refusal.NOT_FOUND)
    try:
        file = await call.services.storage.get(f"{row['org_id'].hex()}/{row['hash'].hex()}")
    except StorageError:
        raise RefusedError(Refusal.BUSY, "The receipt cannot be read right now.") from None
    if file is None:
        raise RefusedError(Refusal.NOT_FOUND, "The file is no longer in the storage.")
    return ApiResponse(file, headers=SAFE_HEADERS, content_type=row["content_type"].encode())


def _receipt(call: Call) -> tuple[Receipt, bytes | None]:
    header = call.headers.get(b"content-type", b"").decode("latin-1")
    if header.partition(";")[0].strip().lower() == "multipart/form-data":
        return _file(header, call.body)
    return _reference(call.body), None


def _file(header: str, body: bytes) -> tuple[Receipt, bytes]:
    try:
        file = uploaded_file(header, body)
    except TooLargeError as error:
        raise RefusedError(Refusal.PAYLOAD_TOO_LARGE, str(error)) from None
    except UploadError as error:
        raise invalid_field("file", str(error).rstrip(".")) from None
    kind = content_type(file)
    if kind is None:
        raise invalid_field("file", "is none of JPEG, PNG, WebP, HEIC and PDF")
    digest = hashlib.sha256(file).digest()
    return Receipt(id=ids.new_id(), hash=digest, content_type=kind, size=len(file)), file


def _reference(body: bytes) -> Receipt:
    check_text(body)
    try:
        ref = msgspec.json.decode(body or b"{}", type=ReceiptRef)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_body(error) from None
    digest = hashlib.sha256(b"ref:" + ref.file_ref.encode()).digest()
    return Receipt(id=ids.new_id(), hash=digest, file_ref=ref.file_ref, message_ref=ref.message_ref)
