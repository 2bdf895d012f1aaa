"""The API as one browser uses it: in this process, as a customer of one org."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeVar

from msgspec import Struct, json

from holdfast.api import booking_handlers as bookings
from holdfast.api import payment_handlers as payments
from holdfast.api import receipt_handlers as receipts
from holdfast.api import ticket_handlers as tickets
from holdfast.api.auth import customer_caller
from holdfast.api.booking_schemas import BookingView, HoldNew
from holdfast.api.call import ApiResponse, Call
from holdfast.api.in_process import InProcessApi
from holdfast.api.receipt_upload import form_with_file
from holdfast.api.requests import BookingsQuery, PaymentNew
from holdfast.api.responses import PaymentView, TicketView
from holdfast.core.request_types import RequestModel

Content = TypeVar("Content")

TicketFile = Literal["qr.svg", "ticket.pdf"]
_TICKET_FILES: Final[dict[TicketFile, Callable[[Call], Awaitable[ApiResponse[bytes]]]]] = {
    "qr.svg": tickets.get_qr_svg,
    "ticket.pdf": tickets.get_ticket_pdf,
}


class CustomerApi:
    def __init__(self, api: InProcessApi, address: str, org: bytes, user: str, *, is_guest: bool) -> None:
        self._api = api
        self._address = address
        self._caller = customer_caller(org, user, is_guest=is_guest)

    async def list_bookings(self, query: BookingsQuery) -> list[BookingView]:
        return (await self._call(bookings.list_bookings, query=query)).content.items

    async def get_booking(self, booking: str) -> BookingView:
        return (await self._call(bookings.get_booking, booking)).content

    async def extend_booking(self, booking: str) -> BookingView:
        return (await self._call(bookings.extend_booking, booking)).content

    async def cancel_booking(self, booking: str) -> BookingView:
        return (await self._call(bookings.cancel_booking, booking)).content

    async def place_hold(self, event: str, hold: HoldNew, key: str) -> BookingView:
        return (await self._call(bookings.place_hold, event, body=hold, headers=_key_header(key))).content

    async def start_payment(self, booking: str, payment: PaymentNew, key: str) -> PaymentView:
        return (await self._call(payments.start_payment, booking, body=payment, headers=_key_header(key))).content

    async def check_receipt(self, booking: str) -> None:
        """Refuse a receipt before the server reads it."""
        await self._api.check(receipts.submit_receipt, self._caller, id=booking)

    async def submit_receipt(self, booking: str, file: bytes) -> None:
        headers, body = form_with_file(file)
        await self._call(receipts.submit_receipt, booking, body=body, headers=headers)

    async def list_tickets(self, booking: str) -> list[TicketView]:
        return (await self._call(tickets.list_tickets, booking)).content

    async def get_ticket_file(self, ticket: str, file: TicketFile) -> tuple[bytes, str]:
        """The file and its content type."""
        response = await self._call(_TICKET_FILES[file], ticket)
        assert isinstance(response.body, bytes)
        return response.body, response.content_type.decode()

    async def _call(
        self,
        handler: Callable[..., Awaitable[ApiResponse[Content]]],
        id: str = "",  # noqa: A002 (as the path parameter is called)
        *,
        query: RequestModel | None = None,
        body: Struct | bytes | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> ApiResponse[Content]:
        return await self._api.call(
            handler, self._caller, address=self._address, id=id, query=query, body=body, headers=headers
        )


def idempotency_key(form: Mapping[str, str], body: Struct) -> str:
    """A form sent twice with the same choice gives the same key; a different choice gives another."""
    return hashlib.sha256(form.get("key", "").encode() + b"\0" + json.encode(body)).hexdigest()


def _key_header(key: str) -> dict[bytes, bytes]:
    return {b"idempotency-key": key.encode()}
