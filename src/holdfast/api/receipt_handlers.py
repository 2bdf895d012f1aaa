"""Payment receipts: buyers upload them, and reviewers read them."""

import asyncio
import hashlib
from datetime import datetime
from typing import Final

import structlog
from msgspec import Struct, json

from holdfast import sql
from holdfast.api.booking_handlers import booking_response, require_booking
from holdfast.api.booking_schemas import BookingView
from holdfast.api.call import ApiResponse, Call
from holdfast.api.endpoint import decode_json
from holdfast.api.receipt_upload import FILE_BYTES_MAX, TooLargeError, UploadError, read_uploaded_file
from holdfast.api.requests import ReceiptRef
from holdfast.api.responses import ReceiptList, ReceiptView
from holdfast.core.commands import Receipt, SubmitReceipt
from holdfast.core.refusals import Refusal, RefusedError
from holdfast.core.request_types import invalid_field
from holdfast.core.settlement import RECEIPTS_MAX
from holdfast.core.states import ENDINGS, TRANSITIONS, EventStatus, Status, Verb
from holdfast.runtime import ids
from holdfast.runtime.file_types import CONTENT_TYPES, SAFE_HEADERS, content_type
from holdfast.runtime.storage import StorageError

log = structlog.get_logger()

# The largest file, with room for the multipart headers around it.
UPLOAD_BYTES_MAX: Final = FILE_BYTES_MAX + 64 * 1024

_FILE_HEADERS: Final = tuple((name.encode(), value.encode()) for name, value in SAFE_HEADERS.items())

_reference_decoder: Final = json.Decoder(ReceiptRef)


class StoredReceiptRow(Struct, frozen=True):
    id: bytes
    at: datetime
    content_type: str | None
    size: int | None
    file_ref: str | None
    message_ref: str | None
    also_on: list[str]


class ReceiptFileRow(Struct, frozen=True):
    org_id: bytes
    hash: bytes
    content_type: str | None


class ReceiptAccess(Struct, frozen=True):
    """Everything that decides whether a booking accepts a receipt."""

    status: Status
    is_free: bool
    event_status: EventStatus
    is_reviewed: bool
    is_too_late: bool

    @property
    def refusal(self) -> Refusal | None:
        """The refusal that the engine would give, or None if it probably accepts a receipt."""
        status = ENDINGS.get(self.event_status, {}).get((self.status, self.is_free), self.status)
        target = TRANSITIONS[status, Verb.SUBMIT]
        if isinstance(target, Refusal):
            return target
        if not self.is_reviewed:
            return Refusal.REVIEW_NOT_OFFERED
        return Refusal.HOLD_EXPIRED if self.is_too_late else None


async def check_receipt(call: Call) -> None:
    """Refuse a receipt before the server reads its file."""
    event, booking = call.path_id(ids.parse_booking_id)
    refusal = (await _load_access(call, event, booking)).refusal
    if refusal is not None:
        raise RefusedError(refusal)


async def submit_receipt(call: Call, body: bytes) -> ApiResponse[BookingView]:
    event, booking = call.path_id(ids.parse_booking_id)
    receipt, file = await asyncio.to_thread(_read_receipt, call, body)
    access = await _load_access(call, event, booking)
    if file is not None and access.refusal is None:
        await _store(call, event, booking, receipt, file)
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
    return await booking_response(call, outcome)


async def _load_access(call: Call, event: bytes, booking: bytes) -> ReceiptAccess:
    access = await call.services.database.event(event).row(
        ReceiptAccess, sql.payments.receipt_access, event, booking, call.caller.org, call.caller.user
    )
    if access is None:
        raise RefusedError(Refusal.NOT_FOUND)
    return access


async def _store(call: Call, event: bytes, booking: bytes, receipt: Receipt, file: bytes) -> None:
    """Store the file before the row: a file without a row does no harm, a row without a file does."""
    if not await _reserve(call, event, booking, receipt.hash):
        raise RefusedError(Refusal.LIMIT_REACHED, f"A booking can have at most {RECEIPTS_MAX} receipts.")
    try:
        await call.services.storage.put(f"{call.caller.org.hex()}/{receipt.hash.hex()}", file)
    except StorageError as error:
        log.error("receipt_not_stored", error=type(error).__name__)
        raise RefusedError(Refusal.BUSY, "The receipt cannot be stored right now. Try again in a moment.") from None


async def _reserve(call: Call, event: bytes, booking: bytes, hash_: bytes) -> bool:
    """Return whether the booking may store the file. A reservation survives a crash, so it bounds a booking's files
    even if the engine never records a receipt for them."""
    async with call.services.database.event(event).transaction() as scope:
        await scope.execute(sql.payments.lock_receipt_files, int.from_bytes(booking[-8:], "big", signed=True))
        reserved = await scope.fetchval(
            *sql.payments.reserve_receipt_file(event=event, booking=booking, hash=hash_, files_max=RECEIPTS_MAX)
        )
    return reserved is not None


async def list_receipts(call: Call) -> ApiResponse[ReceiptList]:
    event, booking = call.path_id(ids.parse_booking_id)
    await require_booking(call, event, booking)
    rows = await call.services.database.event(event).rows(
        StoredReceiptRow, sql.payments.receipts, event, booking, call.caller.org
    )
    return ApiResponse(ReceiptList(items=[_receipt_view(event, row) for row in rows], next=None))


def _receipt_view(event: bytes, row: StoredReceiptRow) -> ReceiptView:
    id_ = ids.format_receipt_id(event, row.id)
    return ReceiptView(
        id=id_,
        at=row.at,
        content_type=row.content_type,
        size=row.size,
        file_ref=row.file_ref,
        message_ref=row.message_ref,
        file_url=f"/v1/receipts/{id_}" if row.content_type else None,
        also_on=row.also_on,
    )


async def get_receipt(call: Call) -> ApiResponse[bytes]:
    event, receipt = call.path_id(ids.parse_receipt_id)
    row = await call.services.database.event(event).row(
        ReceiptFileRow, sql.payments.receipt, event, receipt, call.caller.org
    )
    if row is None or row.content_type not in CONTENT_TYPES:
        raise RefusedError(Refusal.NOT_FOUND)
    try:
        file = await call.services.storage.get(f"{row.org_id.hex()}/{row.hash.hex()}")
    except StorageError:
        raise RefusedError(Refusal.BUSY, "The receipt cannot be read right now. Try again in a moment.") from None
    if file is None:
        raise RefusedError(Refusal.NOT_FOUND, "The file is no longer in storage.")
    return ApiResponse(file, headers=_FILE_HEADERS, content_type=row.content_type.encode())


def _read_receipt(call: Call, body: bytes) -> tuple[Receipt, bytes | None]:
    header = call.headers.get(b"content-type", b"").decode("latin-1")
    if header.partition(";")[0].strip().lower() == "multipart/form-data":
        return _read_file(header, body)
    return _read_reference(body), None


def _read_file(header: str, body: bytes) -> tuple[Receipt, bytes]:
    try:
        file = read_uploaded_file(header, body)
    except TooLargeError as error:
        raise RefusedError(Refusal.PAYLOAD_TOO_LARGE, str(error)) from None
    except UploadError as error:
        raise invalid_field("file", f"cannot be read: {str(error).rstrip('.')}") from None
    media_type = content_type(file)
    if media_type is None:
        raise invalid_field("file", "must be a JPEG, PNG, WebP, HEIC or PDF file")
    digest = hashlib.sha256(file).digest()
    return Receipt(id=ids.new_id(), hash=digest, content_type=media_type, size=len(file)), file


def _read_reference(body: bytes) -> Receipt:
    reference = decode_json(_reference_decoder, body)
    digest = hashlib.sha256(b"ref:" + reference.file_ref.encode()).digest()
    return Receipt(id=ids.new_id(), hash=digest, file_ref=reference.file_ref, message_ref=reference.message_ref)
