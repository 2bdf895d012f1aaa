"""The API in one table. Routes, OpenAPI, the docs and the authorization tests all come from it."""

from typing import Final

from msgspec import structs

from holdfast.api import booking_export
from holdfast.api import booking_handlers as bookings
from holdfast.api import customer_token_handlers as customer_tokens
from holdfast.api import event_handlers as events
from holdfast.api import health_handlers as health
from holdfast.api import org_handlers as orgs
from holdfast.api import payment_handlers as payments
from holdfast.api import receipt_handlers as receipts
from holdfast.api import series_handlers as series
from holdfast.api import ticket_handlers as tickets
from holdfast.api import webhook_endpoint_handlers as webhook_endpoints
from holdfast.api.access import Access
from holdfast.api.branding import LOGO_BYTES_MAX, LOGO_TYPES
from holdfast.api.call import Operation, Resource, Tag
from holdfast.api.requests import ReceiptRef, ReceiptUpload
from holdfast.core.refusals import Refusal
from holdfast.core.states import Verb, verb_refusals
from holdfast.payments.sandbox import SandboxEvent
from holdfast.runtime.file_types import CONTENT_TYPES

# A path with an id implies `not_found`; `openapi.refusals_of` adds what else follows from an operation's form.
# The rows read better dense than with one argument per line.
# fmt: off
_EVENTS: Final = (
    Operation(
        "POST", "/v1/events", events.create_event, Access.ADMIN, Resource.ORG,
        "Create an event. It stays a draft until you publish it.", status=201,
        refusals=(Refusal.UNKNOWN_PROVIDER, Refusal.ORDER_NUMBER_USED),
    ),
    Operation(
        "GET", "/v1/events", events.list_events, Access.PUBLIC, Resource.ORG,
        "List events, soonest first. Without a staff key, you get only published events.",
    ),
    Operation(
        "GET", "/v1/events/{id}", events.get_event, Access.PUBLIC, Resource.EVENT,
        "Get an event with its pools, tariffs and policy.",
    ),
    Operation(
        "PATCH", "/v1/events/{id}", events.change_event, Access.ADMIN, Resource.EVENT,
        "Change an event, its capacities and prices, or block seats.",
        refusals=(
            Refusal.EVENT_ENDED, Refusal.UNKNOWN_SEAT, Refusal.UNKNOWN_PROVIDER, Refusal.SEAT_TAKEN,
            Refusal.ORDER_NUMBER_USED, Refusal.CAPACITY_IN_USE,
        ),
    ),
    Operation(
        "POST", "/v1/events/{id}/publish", events.publish_event, Access.ADMIN, Resource.EVENT,
        "Publish a draft. Sales start at once.", refusals=(Refusal.EVENT_ENDED,),
    ),
    Operation(
        "POST", "/v1/events/{id}/complete", events.complete_event, Access.ADMIN, Resource.EVENT,
        "Complete an event that is over. Sales end, and confirmed bookings become completed.",
        refusals=(Refusal.EVENT_NOT_ON_SALE, Refusal.EVENT_ENDED),
    ),
    Operation(
        "POST", "/v1/events/{id}/cancel", events.cancel_event, Access.ADMIN, Resource.EVENT,
        "Cancel an event. All its live bookings end, and everyone who paid is refunded.",
        refusals=(Refusal.EVENT_ENDED,),
    ),
    Operation(
        "GET", "/v1/events/{id}/progress", events.get_progress, Access.ADMIN, Resource.EVENT,
        "Track the cleanup of a cancelled or completed event.",
    ),
)

_SERIES: Final = (
    Operation(
        "POST", "/v1/series", series.create_series, Access.ADMIN, Resource.ORG,
        "Create a series, such as a film with many showings or a shift every weekday.", status=201,
        refusals=(Refusal.LIMIT_REACHED,),
    ),
    Operation(
        "GET", "/v1/series", series.list_series, Access.PUBLIC, Resource.ORG,
        "List series, newest first. Without a staff key, you get only series with published events.",
    ),
    Operation("GET", "/v1/series/{id}", series.get_series, Access.PUBLIC, Resource.SERIES, "Get a series."),
    Operation(
        "PATCH", "/v1/series/{id}", series.change_series, Access.ADMIN, Resource.SERIES,
        "Change the title, the description or the details of a series.",
    ),
    Operation(
        "POST", "/v1/series/{id}/events", series.create_series_events, Access.ADMIN, Resource.SERIES,
        "Create many events from a template and a recurrence rule, in the background.", status=202,
        takes_idempotency_key=True, refusals=(Refusal.IDEMPOTENCY_KEY_REUSED, Refusal.LIMIT_REACHED),
    ),
    Operation(
        "GET", "/v1/series-jobs/{id}", series.get_series_job, Access.ADMIN, Resource.SERIES_JOB,
        "Track the progress of a request for many events.",
    ),
)

_BOOKINGS: Final = (
    Operation(
        "POST", "/v1/events/{id}/holds", bookings.place_hold, Access.BUYERS, Resource.EVENT,
        "Hold seats or units: all of the items, or none. Status 200: the user already has exactly this booking.",
        status=201, status_if_unchanged=200, needs_idempotency_key=True,
        refusals=(
            Refusal.EVENT_NOT_ON_SALE, Refusal.NOT_ON_SALE_YET, Refusal.SALES_CLOSED, Refusal.IDEMPOTENCY_KEY_REUSED,
            Refusal.UNKNOWN_SEAT, Refusal.UNKNOWN_POOL, Refusal.UNKNOWN_TARIFF, Refusal.CONTACT_REQUIRED,
            Refusal.ANSWER_REQUIRED, Refusal.COMPANION_REQUIRED, Refusal.UNIT_COUNT, Refusal.ALREADY_BOOKED,
            Refusal.LIMIT_REACHED, Refusal.UNPAID_LIMIT_REACHED,
            Refusal.ADDRESS_LIMIT_REACHED, Refusal.TOO_MANY_EXPIRED_HOLDS, Refusal.SEAT_TAKEN, Refusal.SOLD_OUT,
            Refusal.ORPHAN_SEAT, Refusal.ALREADY_TRANSFERRED,
        ),
    ),
    Operation(
        "GET", "/v1/bookings", bookings.list_bookings, Access.READERS, Resource.ORG,
        "List bookings, newest first. Customers see their own.",
    ),
    Operation(
        "GET", "/v1/events/{id}/bookings.csv", booking_export.export_bookings, Access.SALES, Resource.EVENT,
        "Download all bookings of an event as CSV, oldest first. Amounts are decimal numbers.",
        response_media_types=("text/csv",),
    ),
    Operation("GET", "/v1/bookings/{id}", bookings.get_booking, Access.READERS, Resource.BOOKING, "Get a booking."),
    Operation(
        "POST", "/v1/bookings/{id}/extend", bookings.extend_booking, Access.BUYERS, Resource.BOOKING,
        "Extend a hold, up to `max_expires_at`.", refusals=verb_refusals(Verb.EXTEND),
    ),
    Operation(
        "POST", "/v1/bookings/{id}/confirm", bookings.confirm_booking, Access.SALES, Resource.BOOKING,
        "Confirm a hold that was paid elsewhere.", refusals=(Refusal.HOLD_EXPIRED, *verb_refusals(Verb.CONFIRM)),
    ),
    Operation(
        "POST", "/v1/bookings/{id}/cancel", bookings.cancel_booking, Access.BUYERS, Resource.BOOKING,
        "Cancel a hold, or a booking that cost nothing.",
        refusals=(*verb_refusals(Verb.CANCEL), Refusal.ALREADY_CONFIRMED),
    ),
    Operation(
        "POST", "/v1/bookings/{id}/refund", bookings.refund_booking, Access.SALES, Resource.BOOKING,
        "Refund a confirmed booking. Its units go back on sale.", refusals=verb_refusals(Verb.REFUND),
    ),
    Operation(
        "POST", "/v1/bookings/{id}/transfer", bookings.transfer_booking, Access.BUYERS, Resource.BOOKING,
        "Transfer a confirmed booking to another user. Its tickets get new codes.",
        refusals=(
            Refusal.ALREADY_CHECKED_IN, Refusal.ALREADY_BOOKED, Refusal.LIMIT_REACHED, Refusal.ALREADY_TRANSFERRED,
            *verb_refusals(Verb.TRANSFER),
        ),
    ),
)

_PAYMENTS: Final = (
    Operation(
        "POST", "/v1/bookings/{id}/payments", payments.start_payment, Access.BUYERS, Resource.BOOKING,
        "Start a payment for a hold. The first payment extends the hold once.", status=201, needs_idempotency_key=True,
        refusals=(
            Refusal.IDEMPOTENCY_KEY_REUSED, Refusal.UNKNOWN_PROVIDER, Refusal.LIMIT_REACHED, Refusal.REVIEW_NOT_OFFERED,
            Refusal.PROVIDER_REFUSED, Refusal.PROVIDER_UNAVAILABLE, *verb_refusals(Verb.START_PAYMENT),
        ),
    ),
    Operation(
        "GET", "/v1/payments/{id}", payments.get_payment, Access.READERS, Resource.PAYMENT,
        "Get a payment and its outcome.",
    ),
    Operation(
        "POST", "/v1/payments/{id}/refund", payments.refund_payment, Access.SALES, Resource.PAYMENT,
        "Refund a payment in review, or record that you refunded it yourself.", refusals=(Refusal.NOT_REFUNDABLE,),
    ),
    # Providers retry refused webhooks only a few times, so they are never rate limited.
    Operation(
        "POST", "/v1/webhooks/{provider}", payments.receive_notice, Access.PUBLIC, Resource.PROVIDER,
        "Receive a webhook event from a payment provider, signed over the raw body.", is_rate_limited=False,
        body_content={"application/json": SandboxEvent}, before_body=payments.check_provider,
        refusals=(Refusal.INVALID_SIGNATURE,),
    ),
)

_RECEIPTS: Final = (
    Operation(
        "POST", "/v1/bookings/{id}/receipt", receipts.submit_receipt, Access.BUYERS, Resource.BOOKING,
        "Submit a payment receipt: upload a `file`, or send `file_ref` and `message_ref`.",
        body_content={"multipart/form-data": ReceiptUpload, "application/json": ReceiptRef},
        body_bytes_max=receipts.UPLOAD_BYTES_MAX, before_body=receipts.check_receipt,
        refusals=(
            Refusal.LIMIT_REACHED, Refusal.HOLD_EXPIRED, Refusal.REVIEW_NOT_OFFERED, *verb_refusals(Verb.SUBMIT),
        ),
    ),
    Operation(
        "GET", "/v1/bookings/{id}/receipts", receipts.list_receipts, Access.REVIEW, Resource.BOOKING,
        "List the receipts of a booking, and other bookings with the same receipt.",
    ),
    Operation(
        "GET", "/v1/receipts/{id}", receipts.get_receipt, Access.REVIEW, Resource.RECEIPT,
        "Download the file of a receipt.", response_media_types=CONTENT_TYPES,
    ),
    Operation(
        "POST", "/v1/bookings/{id}/approve", bookings.approve_booking, Access.REVIEW, Resource.BOOKING,
        "Approve the receipt and confirm the booking.", refusals=verb_refusals(Verb.APPROVE),
    ),
    Operation(
        "POST", "/v1/bookings/{id}/reject", bookings.reject_booking, Access.REVIEW, Resource.BOOKING,
        "Reject the receipt. The booking ends, and the buyer gets the reason.", refusals=verb_refusals(Verb.REJECT),
    ),
)

_TICKETS: Final = (
    Operation(
        "GET", "/v1/bookings/{id}/tickets", tickets.list_tickets, Access.TICKET_READERS, Resource.BOOKING,
        "List the tickets of a confirmed booking: one for each seat or unit.",
    ),
    Operation(
        "GET", "/v1/tickets/{id}/qr.svg", tickets.get_qr_svg, Access.TICKET_READERS, Resource.TICKET,
        "Download a ticket's QR code as SVG.",
        response_media_types=("image/svg+xml",), refusals=(Refusal.TICKET_VOID,),
    ),
    Operation(
        "GET", "/v1/tickets/{id}/qr.png", tickets.get_qr_png, Access.TICKET_READERS, Resource.TICKET,
        "Download a ticket's QR code as PNG.", response_media_types=("image/png",), refusals=(Refusal.TICKET_VOID,),
    ),
    Operation(
        "GET", "/v1/tickets/{id}/ticket.pdf", tickets.get_ticket_pdf, Access.TICKET_READERS, Resource.TICKET,
        "Download a ticket to print.", response_media_types=("application/pdf",), refusals=(Refusal.TICKET_VOID,),
    ),
    Operation(
        "GET", "/v1/events/{id}/ticket-key", tickets.get_ticket_key, Access.PUBLIC, Resource.EVENT,
        "Get the public keys that verify an event's tickets offline.",
    ),
    Operation(
        "POST", "/v1/events/{id}/ticket-key/rotate", tickets.rotate_ticket_key, Access.ADMIN, Resource.EVENT,
        "Sign tickets with a new key from now on.",
    ),
)

_CHECK_IN: Final = (
    Operation(
        "POST", "/v1/checkins", tickets.check_in, Access.DOOR, Resource.ORG, "Check a ticket in, once.",
        refusals=(Refusal.INVALID_TICKET, Refusal.WRONG_EVENT, Refusal.TICKET_VOID, Refusal.ALREADY_CHECKED_IN),
    ),
)

_LIVE: Final = (
    Operation(
        "GET", "/v1/events/{id}/availability", events.get_availability, Access.PUBLIC, Resource.EVENT,
        "Get the units left in each pool.", has_etag=True,
    ),
    Operation(
        "GET", "/v1/events/{id}/seats", events.get_seats, Access.PUBLIC, Resource.EVENT,
        "Get the seat map with the state of every seat.", has_etag=True,
    ),
    Operation(
        "GET", "/v1/events/{id}/changes", events.list_changes, Access.PUBLIC, Resource.EVENT,
        "List the changes since `after`, in order and without gaps.",
    ),
)

_WEBHOOKS: Final = (
    Operation(
        "POST", "/v1/webhook-endpoints", webhook_endpoints.create_endpoint, Access.ADMIN, Resource.ORG,
        "Create a webhook endpoint. Holdfast posts signed events to its URL.", status=201,
        refusals=(Refusal.LIMIT_REACHED,),
    ),
    Operation(
        "GET", "/v1/webhook-endpoints", webhook_endpoints.list_endpoints, Access.ADMIN, Resource.ORG,
        "List your org's webhook endpoints.",
    ),
    Operation(
        "GET", "/v1/webhook-endpoints/{id}", webhook_endpoints.get_endpoint, Access.ADMIN, Resource.ENDPOINT,
        "Get a webhook endpoint.",
    ),
    Operation(
        "PATCH", "/v1/webhook-endpoints/{id}", webhook_endpoints.change_endpoint, Access.ADMIN, Resource.ENDPOINT,
        "Change a webhook endpoint, disable it, or enable it again.",
    ),
    Operation(
        "POST", "/v1/webhook-endpoints/{id}/rotate", webhook_endpoints.rotate_endpoint, Access.ADMIN,
        Resource.ENDPOINT, "Rotate the signing secret. The old secret keeps signing for one more day.",
    ),
    Operation(
        "DELETE", "/v1/webhook-endpoints/{id}", webhook_endpoints.delete_endpoint, Access.ADMIN, Resource.ENDPOINT,
        "Delete a webhook endpoint and drop its pending deliveries.",
    ),
    Operation(
        "GET", "/v1/webhook-endpoints/{id}/deliveries", webhook_endpoints.list_deliveries, Access.ADMIN,
        Resource.ENDPOINT, "List deliveries to the endpoint and their status, newest first.",
    ),
)

_ORG: Final = (
    Operation("GET", "/v1/org", orgs.get_org, Access.ADMIN, Resource.ORG, "Get your org as buyers see it."),
    Operation(
        "PATCH", "/v1/org", orgs.change_org, Access.ADMIN, Resource.ORG,
        "Change your org's name and colour, and the sites that may embed its pages.",
    ),
    Operation(
        "PUT", "/v1/org/logo", orgs.set_logo, Access.ADMIN, Resource.ORG,
        "Upload your org's logo. The body is the image file.",
        body_content=dict.fromkeys((*LOGO_TYPES, "application/octet-stream")), body_bytes_max=LOGO_BYTES_MAX,
    ),
    Operation("DELETE", "/v1/org/logo", orgs.delete_logo, Access.ADMIN, Resource.ORG, "Delete your org's logo."),
    Operation(
        "POST", "/v1/customer-tokens", customer_tokens.create_customer_token, Access.SALES, Resource.ORG,
        "Create a short-lived token for one of your customers.", status=201,
    ),
)

_HEALTH_AND_AUDIT: Final = (
    Operation(
        "GET", "/v1/events/{id}/journal", events.list_journal, Access.ADMIN, Resource.EVENT,
        "List the audit log of an event: who did what, and when.",
    ),
    Operation(
        "GET", "/healthz", health.healthz, Access.PUBLIC, Resource.NOTHING, "Check that this process is alive."
    ),
    Operation(
        "GET", "/readyz", health.readyz, Access.PUBLIC, Resource.NOTHING,
        "Check that this process can serve requests, and read the auditor's last findings.",
    ),
)

# fmt: on
_TABLE: Final = {
    Tag.EVENTS: _EVENTS,
    Tag.SERIES: _SERIES,
    Tag.BOOKINGS: _BOOKINGS,
    Tag.PAYMENTS: _PAYMENTS,
    Tag.RECEIPTS: _RECEIPTS,
    Tag.TICKETS: _TICKETS,
    Tag.CHECK_IN: _CHECK_IN,
    Tag.LIVE: _LIVE,
    Tag.WEBHOOKS: _WEBHOOKS,
    Tag.ORG: _ORG,
    Tag.OPERATIONS: _HEALTH_AND_AUDIT,
}

OPERATIONS: Final = tuple(structs.replace(row, tag=tag) for tag, rows in _TABLE.items() for row in rows)
