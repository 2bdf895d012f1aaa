"""`holdfast top`: what is being sold right now."""

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Final

import asyncpg
import msgspec
import typer

from holdfast.runtime.cli_database import DataFolder, fail, read_settings
from holdfast.runtime.embedded_url import find_embedded_url

if TYPE_CHECKING:
    from holdfast.top.figures import Figures
    from holdfast.top.monitor import Monitor

FILE_WIDTH: Final = 120

_DATABASE_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, ValueError)


def top(
    url: Annotated[
        list[str] | None, typer.Option(help="Address of a server, for its metrics. Repeat it for several.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 2,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print the figures and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --once, print the figures as JSON.")] = False,
    token: Annotated[
        str | None,
        typer.Option(envvar="HOLDFAST_METRICS_TOKEN", show_envvar=True, hidden=True, help="Token of the metrics."),
    ] = None,
    data: DataFolder = None,
) -> None:
    """Show the events that are being sold, how fast, and what waits. Press q to quit.

    The figures of events come from the database, and cost it a bounded number of index lookups every two seconds.
    Latencies, refusals and the state of Redis come from the metrics of the servers at --url. If the servers need
    HOLDFAST_METRICS_TOKEN, set it here too. Exits with 2 if the database does not answer.
    """
    from holdfast.top.metrics_sample import MetricsSampler
    from holdfast.top.monitor import Monitor

    if json and not once:
        fail("--json needs --once.")
    if not once and not sys.stdout.isatty():
        fail("There is no terminal to draw on. Use --once.")
    for address in url or ():
        if not address.startswith(("http://", "https://")):
            fail(f"--url {address} needs http:// or https:// at its start. An example: --url http://127.0.0.1:8000")
    settings = read_settings()
    folder = data or settings.data_dir
    database_url = settings.database_url or find_embedded_url(folder)
    if database_url is None:
        fail(
            f"No database runs in the folder {folder}. Start `holdfast serve`, set HOLDFAST_DATABASE_URL, "
            "or choose another folder with --data."
        )

    async def run() -> None:
        monitor = Monitor(database_url, MetricsSampler(url, token) if url else None)
        try:
            if once:
                _print(await _look_twice(monitor, interval), as_json=json)
            else:
                await _watch(monitor, interval)
        finally:
            await monitor.close()

    asyncio.run(run())


async def _look_twice(monitor: "Monitor", interval: float) -> "Figures":
    try:
        await monitor.look()
        await asyncio.sleep(interval)
        return await monitor.look()
    except _DATABASE_ERRORS as error:
        fail(_explain(error))


def _print(figures: "Figures", *, as_json: bool) -> None:
    from rich.console import Console

    from holdfast.top.screen import render

    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(figures)))
    else:
        # A file has no width, so nothing has to be cut off.
        Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH).print(render(figures))


async def _watch(monitor: "Monitor", interval: float) -> None:
    """Draw until somebody quits. A database that does not answer may come back."""
    from rich.console import Console
    from rich.live import Live

    from holdfast.top.keyboard import quit_key
    from holdfast.top.screen import render, render_error

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with (
        Live(console=Console(highlight=False), screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        quit_key(stopping.set),
    ):
        looking: asyncio.Task[Figures] | None = None
        quitting = asyncio.create_task(stopping.wait())
        try:
            while not stopping.is_set():
                looking = asyncio.create_task(monitor.look())
                await asyncio.wait([looking, quitting], return_when=asyncio.FIRST_COMPLETED)
                if looking.done():
                    try:
                        live.update(render(looking.result()), refresh=True)
                    except _DATABASE_ERRORS as error:
                        live.update(render_error(_explain(error)), refresh=True)
                    await asyncio.wait([quitting], timeout=interval)
        finally:
            quitting.cancel()
            if looking is not None:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)


def _explain(error: BaseException) -> str:
    """Not the text of the error, which may quote the URL."""
    return f"The database does not answer ({type(error).__name__}). Run `holdfast doctor` to find out why."
