"""`holdfast bus`: the event bus."""

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from holdfast.core.notification_rules import KAFKA, NATS
from holdfast.runtime.cli_database import (
    DataFolder,
    read_settings,
    read_with_database,
    require_database,
    run_with_database,
)

bus = typer.Typer(no_args_is_help=True, help="See what waits for the event bus, retry messages, and remove a bus.")


class BusName(StrEnum):
    KAFKA = KAFKA
    NATS = NATS


BusArgument = Annotated[BusName, typer.Argument(help="The bus.")]


def register_configured_buses() -> None:
    """Register the buses of the settings before anything sells, so that no entry misses them."""
    from holdfast.notifications.bus_registry import configured_buses, register_buses

    names = configured_buses(read_settings())
    if names:
        run_with_database(None, lambda database: register_buses(database, names))


@bus.command("status")
def status(data: DataFolder = None) -> None:
    """Print what waits for each bus, as JSON.

    Exits with 1 if a broker has refused messages for good, or if a message has waited for more than 15 minutes.
    """
    from holdfast.notifications.bus_registry import bus_status

    require_database(data)
    found = read_with_database(data, bus_status)
    typer.echo(msgspec.json.format(msgspec.json.encode(found)))
    raise typer.Exit(0 if all(bus.is_healthy for bus in found) else 1)


@bus.command("retry")
def retry(name: BusArgument, data: DataFolder = None) -> None:
    """Publish again what the broker refused for good, for example after you have raised its size limit."""
    from holdfast.notifications.bus_registry import retry_failed

    require_database(data)
    count = run_with_database(data, lambda database: retry_failed(database, name))
    typer.echo(f"Holdfast publishes {count} messages again.", err=True)


@bus.command("remove")
def remove(name: BusArgument, data: DataFolder = None) -> None:
    """Stop writing to a bus, and delete what waits for it.

    First remove its URL from the settings of every server and worker, and restart them. Otherwise the next start
    registers the bus again.
    """
    from holdfast.notifications.bus_registry import remove_bus

    require_database(data)
    count = run_with_database(data, lambda database: remove_bus(database, name))
    typer.echo(f"Removed the bus {name}, and deleted {count} messages that waited for it.", err=True)
