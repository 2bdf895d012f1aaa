"""The AsyncAPI 3.0 document: what Holdfast sends to the event bus and over the live feed."""

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from holdfast import __version__
from holdfast.api.live_socket import PATH
from holdfast.api.openapi import SCHEMA_REFERENCE
from holdfast.core.notification_rules import BookingWebhookData, EventWebhookData
from holdfast.live.messages import ChangeMessage, Heartbeat, MergedChanges, SnapshotMessage
from holdfast.notifications.bus import stream_name
from holdfast.notifications.cloud_events import CONTENT_TYPE, TOPICS, CloudEvent, Topic

JsonObject = dict[str, Any]

LIVE_MESSAGES: Final[dict[str, type]] = {
    "snapshot": SnapshotMessage,
    "change": ChangeMessage,
    "several": MergedChanges,
    "beat": Heartbeat,
}
DATA_TYPES: Final[dict[Topic, type]] = {
    Topic.BOOKINGS: BookingWebhookData,
    Topic.PAYMENTS: BookingWebhookData,
    Topic.EVENTS: EventWebhookData,
}
ENVELOPES: Final[dict[type, Any]] = {
    BookingWebhookData: CloudEvent[BookingWebhookData],
    EventWebhookData: CloudEvent[EventWebhookData],
}


def asyncapi_document(public_url: str = "http://localhost", prefix: str = "holdfast") -> bytes:
    types = [*ENVELOPES, *ENVELOPES.values(), *LIVE_MESSAGES.values()]
    references, schemas = msgspec.json.schema_components(types, ref_template=SCHEMA_REFERENCE)
    by_type = dict(zip(types, references, strict=True))
    channels = {"live": _live_channel(), **_kafka_channels(prefix), **_nats_channels(prefix)}
    document = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "What Holdfast sends without being asked. Webhooks are part of the OpenAPI document.",
            "license": {"name": "Apache License 2.0"},
        },
        "defaultContentType": "application/json",
        "servers": _servers(public_url),
        "channels": channels,
        "operations": {
            f"send_{name}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/{message}"} for message in channel["messages"]],
            }
            for name, channel in channels.items()
        },
        "components": {
            "schemas": schemas,
            "messages": {
                **{name: _live_message(kind, by_type[kind]) for name, kind in LIVE_MESSAGES.items()},
                **{kind: _bus_message(kind, by_type) for kind in TOPICS},
            },
        },
    }
    return msgspec.json.encode(document)


def _servers(public_url: str) -> JsonObject:
    """The brokers are yours, so the document names none. Their addresses are nobody else's business."""
    url = urlsplit(public_url)
    brokers = {"description": "Your broker.", "default": "localhost"}
    return {
        "live": {"host": url.netloc, "protocol": "wss" if url.scheme == "https" else "ws"},
        "kafka": {"host": "{broker}", "protocol": "kafka", "variables": {"broker": brokers}},
        "nats": {"host": "{broker}", "protocol": "nats", "variables": {"broker": brokers}},
    }


def _live_channel() -> JsonObject:
    return {
        "address": PATH,
        "title": "Live feed",
        "description": "A snapshot of an event, and then every change.",
        "servers": [{"$ref": "#/servers/live"}],
        "parameters": {"id": {"description": "The event's id."}},
        "messages": _message_references(LIVE_MESSAGES),
        "bindings": {
            "ws": {
                "method": "GET",
                "query": {
                    "type": "object",
                    "properties": {"after": {"type": "integer", "description": "The last version that you saw."}},
                },
                "bindingVersion": "0.1.0",
            }
        },
    }


def _kafka_channels(prefix: str) -> JsonObject:
    return {
        f"kafka_{topic}": {
            "address": f"{prefix}.{topic}",
            "description": "The key of a message is its subject, so the messages of one booking stay in order.",
            "servers": [{"$ref": "#/servers/kafka"}],
            "messages": _message_references(_kinds_of(topic)),
            "bindings": {"kafka": {"topic": f"{prefix}.{topic}", "bindingVersion": "0.5.0"}},
        }
        for topic in Topic
    }


def _nats_channels(prefix: str) -> JsonObject:
    return {
        f"nats_{topic}": {
            "address": f"{prefix}.{{org}}.{topic}.{{what}}",
            "description": f"A subject of the JetStream stream {stream_name(prefix)}.",
            "servers": [{"$ref": "#/servers/nats"}],
            "parameters": {
                "org": {"description": "The org's slug."},
                "what": {
                    "description": "What happened.",
                    "enum": [kind.partition(".")[2] for kind in _kinds_of(topic)],
                },
            },
            "messages": _message_references(_kinds_of(topic)),
        }
        for topic in Topic
    }


def _kinds_of(topic: Topic) -> list[str]:
    return [kind for kind, its_topic in TOPICS.items() if its_topic is topic]


def _message_references(names: Iterable[str]) -> JsonObject:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _live_message(kind: type, reference: JsonObject) -> JsonObject:
    return {"summary": (kind.__doc__ or "").strip().partition("\n")[0], "payload": reference}


def _bus_message(kind: str, by_type: dict[Any, JsonObject]) -> JsonObject:
    envelope = by_type[ENVELOPES[DATA_TYPES[TOPICS[kind]]]]
    return {
        "name": kind,
        "contentType": CONTENT_TYPE,
        "payload": {"allOf": [envelope, {"type": "object", "properties": {"type": {"const": kind}}}]},
        "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": "0.5.0"}},
    }
