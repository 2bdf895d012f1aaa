"""Whether the brokers of the event bus answer, and have a place for every message. The check publishes nothing."""

import asyncio

from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.notifications.channel import UndeliveredError
from holdfast.runtime.settings import Settings


async def check_bus(installation: Installation) -> Results:
    settings = installation.settings
    if settings.kafka_url is not None:
        async for result in _check_kafka(settings, settings.kafka_url):
            yield result
    if settings.nats_url is not None:
        async for result in _check_nats(settings, settings.nats_url):
            yield result


async def _check_kafka(settings: Settings, url: str) -> Results:
    try:
        # Its package is optional.
        from holdfast.notifications.kafka_bus import find_missing_topics

        missing = await asyncio.to_thread(find_missing_topics, url, settings.bus_prefix)
    except ValueError:
        return  # The check of the settings has reported it.
    except UndeliveredError as error:
        yield problem(
            f"Kafka does not answer, so messages wait ({error}).",
            "Check HOLDFAST_KAFKA_URL, and that this machine may connect to all brokers.",
        )
        return
    if missing:
        yield warning(
            f"Kafka does not have these topics, or does not show them to this user: {', '.join(missing)}.",
            "Create them, unless your brokers create topics automatically. docs/event-bus.md says how.",
        )
    else:
        yield ok("Kafka answers, and has all topics.")


async def _check_nats(settings: Settings, url: str) -> Results:
    try:
        # Its package is optional.
        from holdfast.notifications.nats_bus import NatsBus

        missing = await NatsBus(url, settings.bus_prefix).find_missing_subjects()
    except ValueError:
        return  # The check of the settings has reported it.
    except UndeliveredError as error:
        yield problem(
            f"NATS does not answer as expected, so messages may wait ({error}).",
            "Check HOLDFAST_NATS_URL, that JetStream is on, and that this machine may connect to the server.",
        )
        return
    if missing.are_some:
        yield problem(
            f"No JetStream stream takes these subjects: {', '.join(missing.subjects)}.",
            "Add them to your stream. docs/event-bus.md says what else Holdfast needs.",
        )
    else:
        yield ok(
            "NATS answers, and " + ("Holdfast will create its stream." if missing.subjects else "has all streams.")
        )
