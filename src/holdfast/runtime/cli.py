"""The command line: `holdfast <command>`."""

import os
from contextlib import suppress
from typing import Annotated

import msgspec
import typer
import uvloop

from holdfast import __version__
from holdfast.demo.data import fill_demo
from holdfast.runtime import ids
from holdfast.runtime.cli_audit import audit
from holdfast.runtime.cli_bot import bot
from holdfast.runtime.cli_bus import bus, register_configured_buses
from holdfast.runtime.cli_database import (
    DataFolder,
    fail,
    open_database,
    read_settings,
    require_receipts_folder,
    run_with_database,
)
from holdfast.runtime.cli_doctor import doctor
from holdfast.runtime.cli_erase import erase
from holdfast.runtime.cli_gate import gate
from holdfast.runtime.cli_keys import keys
from holdfast.runtime.cli_metrics import MetricsOption, parse_metrics_address, report_unusable_address
from holdfast.runtime.cli_migrate import migrate
from holdfast.runtime.cli_orgs import orgs
from holdfast.runtime.cli_reap import reap
from holdfast.runtime.cli_secrets import secrets
from holdfast.runtime.cli_top import top
from holdfast.runtime.logs import configure_command_logs, configure_logs
from holdfast.runtime.server import is_port_free
from holdfast.runtime.server import serve as serve_forever
from holdfast.runtime.tracing import configure_tracing

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(orgs, name="orgs")
app.add_typer(keys, name="keys")
app.add_typer(bot, name="bot")
app.add_typer(gate, name="gate")
app.add_typer(bus, name="bus")
app.add_typer(secrets, name="secrets")


def run() -> None:
    """The program `holdfast`."""
    configure_command_logs()
    app()


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Holdfast sells scarce things without ever selling one twice."""


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Number of API processes.")] = 2,
    data: DataFolder = None,
    worker: Annotated[bool, typer.Option(help="Also run a background worker.")] = True,
) -> None:
    """Serve the API and the pages, and run a background worker.

    Without HOLDFAST_DATABASE_URL, Holdfast starts an embedded PostgreSQL.
    """
    if not is_port_free(host, port):
        fail(f"Port {port} on {host} is already in use. Stop the other program, or choose another port with --port.")
    open_database(data, to_sell=True)
    _check_settings()
    require_receipts_folder()
    register_configured_buses()
    url = f"http://{url_host(host)}:{port}"
    os.environ.setdefault("HOLDFAST_PUBLIC_URL", url)
    # Holdfast sells even if the disk is full or the terminal is closed.
    with suppress(OSError):
        typer.echo(f"Holdfast is serving {url}. API docs: {url}/docs", err=True)
    serve_forever(host, port, workers, with_worker=worker, idle_seconds=read_settings().idle_seconds)


def url_host(host: str) -> str:
    """The host in URLs of this server. A server that listens on all addresses has no address of its own."""
    if host in ("0.0.0.0", "::"):  # noqa: S104
        return "localhost"
    return f"[{host}]" if ":" in host else host


@app.command()
def worker(
    data: DataFolder = None, metrics: MetricsOption = None, child: Annotated[bool, typer.Option(hidden=True)] = False
) -> None:
    """Run a background worker, which expires holds, sends refunds and notifications, and audits events.

    You can run any number of them.
    """
    # The worker's modules take as long to import as everything else together.
    from holdfast.worker.runner import run_worker

    configure_logs(read_settings())
    open_database(data, to_sell=True)
    _check_settings()
    configure_tracing(read_settings(), "worker")
    register_configured_buses()
    with report_unusable_address():
        uvloop.run(run_worker(read_settings(), parse_metrics_address(metrics), child=child))


app.command()(migrate)


@app.command()
def demo(data: DataFolder = None) -> None:
    """Create the org `demo` with one event per preset, and list the events. Existing events do not change."""
    for line in run_with_database(data, fill_demo):
        typer.echo(line)


app.command()(audit)
app.command()(erase)
app.command()(reap)
app.command()(doctor)
app.command()(top)


@app.command()
def stampede(
    event: Annotated[str, typer.Option(help="Event on sale, such as one that `holdfast demo` lists.")],
    buyers: Annotated[int, typer.Option(min=1, max=100_000, help="Number of buyers.")] = 5000,
    seconds: Annotated[float, typer.Option(min=0, help="Time in which the buyers arrive.")] = 10,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Number of processes that run the buyers.")] = 2,
    url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000",
    data: DataFolder = None,
    json: Annotated[bool, typer.Option("--json", help="Print reports as lines of JSON.")] = False,
    stampede_id: Annotated[str | None, typer.Option("--id", hidden=True)] = None,
) -> None:
    """Send simulated buyers to an event over HTTP, then recount. Exits with 1 if the recount finds an error.

    The buyers take real holds. Do not run this on an event with real buyers.
    """
    from holdfast.demo.stampede.display import Display
    from holdfast.demo.stampede.report import StampedeError
    from holdfast.demo.stampede.run import Plan, ReportListener, run_stampede

    event_id = ids.parse_event_id(event)
    if event_id is None:
        fail(f"{event} is not an event id. An event id is ev_ and 32 hexadecimal digits; `holdfast demo` prints some.")
    plan = Plan(
        event=event_id,
        buyers=buyers,
        seconds=seconds,
        processes=processes,
        url=url,
        id=bytes.fromhex(stampede_id) if stampede_id else None,
    )

    def run(on_report: ReportListener) -> bool:
        report = run_with_database(data, lambda database: run_stampede(database, plan, on_report))
        return report.verdict is not None and report.verdict.ok

    try:
        if json:
            is_ok = run(lambda report: typer.echo(msgspec.json.encode(report).decode()))
        else:
            with Display() as display:
                is_ok = run(display.show)
    except StampedeError as error:
        fail(str(error))
    raise typer.Exit(0 if is_ok else 1)


def _check_settings() -> None:
    """Report settings that cannot work before anything starts with them."""
    from holdfast.doctor.unusable_settings import find_unusable_settings

    for setting in find_unusable_settings(read_settings()):
        fail(f"Cannot use {setting.name}: {setting.reason}")
