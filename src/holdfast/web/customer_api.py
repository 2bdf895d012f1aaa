"""The API as one browser uses it: in this process, as a customer of one org."""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct, json

from holdfast.api.auth import customer_caller
from holdfast.api.booking_schemas import BookingList, BookingView, HoldNew
from holdfast.api.call import ApiResponse
from holdfast.api.in_process import InProcessApi
from holdfast.api.requests import BookingsQuery, PaymentNew
from holdfast.api.responses import PaymentView, SeatMap, TicketView
from holdfast.core.event_schemas import RequestModel

T = TypeVar("T")

TicketFile = Literal["qr.svg", "ticket.pdf"]
_TICKET_FILES: Final[dict[TicketFile, str]] = {
    "qr.svg": "get_qr_svg",
    "ticket.pdf": "get_ticket_pdf",
}


class CustomerApi:
    """Every call counts against the rate limit of the browser's address."""

    def __init__(self, api: InProcessApi, address: str, org: bytes, user: str) -> None:
        self._api = api
        self._address = address
        self._caller = customer_caller(org, user)

    async def list_bookings(self, query: BookingsQuery) -> list[BookingView]:
        return _view(BookingList, (await self._call("list_bookings", query=query)).body).items

    async def get_booking(self, booking: str) -> BookingView:
        return _view(BookingView, (await self._call("get_booking", booking)).body)

    async def extend_booking(self, booking: str) -> BookingView:
        return _view(BookingView, (await self._call("extend_booking", booking)).body)

    async def cancel_booking(self, booking: str) -> BookingView:
        return _view(BookingView, (await self._call("cancel_booking", booking)).body)

    async def place_hold(self, event: str, hold: HoldNew, key: str) -> BookingView:
        return _view(BookingView, (await self._call("place_hold", event, body=hold, headers=_key_header(key))).body)

    async def start_payment(self, booking: str, payment: PaymentNew, key: str) -> PaymentView:
        answer = await self._call("start_payment", booking, body=payment, headers=_key_header(key))
        return _view(PaymentView, answer.body)

    async def submit_receipt(self, booking: str, file: bytes) -> None:
        boundary = secrets.token_hex(16).encode()
        headers = {b"content-type": b"multipart/form-data; boundary=" + boundary}
        await self._call("submit_receipt", booking, body=_multipart(boundary, file), headers=headers)

    async def list_tickets(self, booking: str) -> list[TicketView]:
        return _view(list, (await self._call("list_tickets", booking)).body)

    async def get_ticket_file(self, ticket: str, file: TicketFile) -> tuple[bytes, str]:
        """The file and its content type."""
        answer = await self._call(_TICKET_FILES[file], ticket)
        return _view(bytes, answer.body), answer.content_type.decode()

    async def _call(
        self,
        operation: str,
        id: str = "",  # noqa: A002 (as the path parameter is called)
        *,
        query: RequestModel | None = None,
        body: Struct | bytes | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> ApiResponse[Any]:
        return await self._api.call(
            operation, self._caller, self._address, id=id, query=query, body=body, headers=headers
        )


async def get_seats(api: InProcessApi, address: str, event: str) -> SeatMap:
    answer = await api.call("get_seats", None, address, id=event)
    return json.decode(_view(bytes, answer.body), type=SeatMap)


def idempotency_key(form: Mapping[str, str], body: Struct) -> str:
    """A form sent twice with the same choice gives the same key; a different choice gives another."""
    return hashlib.sha256(form.get("key", "").encode() + b"\0" + json.encode(body)).hexdigest()


def _key_header(key: str) -> dict[bytes, bytes]:
    return {b"idempotency-key": key.encode()}


def _view(kind: type[T], body: object) -> T:
    assert isinstance(body, kind), type(body)
    return body


def _multipart(boundary: bytes, file: bytes) -> bytes:
    head = b'--%b\r\nContent-Disposition: form-data; name="file"; filename="receipt"\r\n\r\n' % boundary
    return b"%b%b\r\n--%b--\r\n" % (head, file, boundary)
