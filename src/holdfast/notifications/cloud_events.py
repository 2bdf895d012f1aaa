"""Journal entries as CloudEvents, for the event bus. Types and data are those of webhooks: one fact has one shape."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Generic, TypeVar

from msgspec import Meta, Raw, Struct, json

from holdfast.core.notification_rules import (
    BOOKING_WEBHOOK_KINDS,
    EVENT_WEBHOOK_KINDS,
    BookingWebhookData,
    EventWebhookData,
)
from holdfast.notifications.channel import Delivery
from holdfast.notifications.webhook_channel import message_id
from holdfast.runtime import ids

CONTENT_TYPE: Final = "application/cloudevents+json; charset=UTF-8"
SCHEMA_PATH: Final = "/asyncapi.json#/components/schemas/"

Data = TypeVar("Data")


class Topic(StrEnum):
    """What a message is about: the last part of its Kafka topic, and a part of its NATS subject."""

    BOOKINGS = "bookings"
    PAYMENTS = "payments"
    EVENTS = "events"


TOPICS: Final = {kind: Topic(f"{kind.partition('.')[0]}s") for kind in (*BOOKING_WEBHOOK_KINDS, *EVENT_WEBHOOK_KINDS)}


class CloudEvent(Struct, Generic[Data], frozen=True, kw_only=True):
    """A CloudEvent 1.0 in structured mode. `source` is the org. `id` is the same on every attempt, on every bus, and in
    the header `webhook-id` of the webhook about the same fact."""

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str
    time: Annotated[datetime, Meta(tz=True)]
    datacontenttype: str = "application/json"
    dataschema: str
    data: Data


class BusMessage(Struct, frozen=True, kw_only=True):
    """A CloudEvent with what a bus needs to route it. Messages with the same `key` stay in order."""

    id: str
    topic: Topic
    org: str
    kind: str
    key: str
    content: bytes


def bus_message(delivery: Delivery, org_slug: str, public_url: str) -> BusMessage:
    key = _subject(delivery)
    event = CloudEvent(
        id=message_id(delivery),
        source=f"/orgs/{org_slug}",
        type=delivery.kind,
        subject=key,
        time=delivery.created_at,
        dataschema=f"{public_url.rstrip('/')}{SCHEMA_PATH}{_data_type(delivery.kind).__name__}",
        data=Raw(delivery.body.encode()),
    )
    return BusMessage(
        id=event.id,
        topic=TOPICS[delivery.kind],
        org=org_slug,
        kind=delivery.kind,
        key=key,
        content=json.encode(event),
    )


def _subject(delivery: Delivery) -> str:
    """The booking, or the event if the message is about the event as a whole."""
    if delivery.stream == delivery.event:
        return ids.format_event_id(delivery.event)
    return ids.format_booking_id(delivery.event, delivery.stream)


def _data_type(kind: str) -> type[BookingWebhookData | EventWebhookData]:
    return EventWebhookData if TOPICS[kind] is Topic.EVENTS else BookingWebhookData
