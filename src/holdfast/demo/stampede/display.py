"""The terminal display of a stampede."""

from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.demo.stampede.report import Report, State

BAR_WIDTH: Final = 50


class Display:
    """Redraws with each report. The last one stays on the screen."""

    def __init__(self) -> None:
        self._live = Live(console=Console(), auto_refresh=False)

    def __enter__(self) -> "Display":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, report: Report) -> None:
        self._live.update(_render(report), refresh=True)


def _render(report: Report) -> RenderableType:
    bars = Table.grid(padding=(0, 2))
    taken = report.capacity - report.left
    bars.add_row("buyers", _bar(report.done, report.buyers), f"{report.done:,} of {report.buyers:,} done")
    bars.add_row("units", _bar(taken, report.capacity), f"{taken:,} of {report.capacity:,} taken")
    figures = Table.grid(padding=(0, 2))
    figures.add_row("time", f"{report.elapsed_seconds:.1f} s")
    figures.add_row("requests", f"{report.requests:,} ({report.rate:,.0f} per second)")
    figures.add_row("latency", f"p50 {_ms(report.p50_ms)}, p95 {_ms(report.p95_ms)}, p99 {_ms(report.p99_ms)}")
    figures.add_row("winners", f"{report.winners:,} buyers with {report.units:,} units")
    refusals = sorted(report.refusals.items(), key=lambda refusal: -refusal[1])
    figures.add_row("refusals", ", ".join(f"{count:,} {code}" for code, count in refusals) or "none")
    figures.add_row("errors", f"{report.errors:,} lost connections")
    return Group(bars, Text(), figures, *_render_verdict(report))


def _render_verdict(report: Report) -> list[Text]:
    verdict = report.verdict
    if verdict is None:
        is_recounting = report.state is State.RUNNING and report.done == report.buyers
        return [Text("\nRecounting …")] if is_recounting else []
    mark, style = ("✓", "bold green") if verdict.ok else ("✗", "bold red")
    return [Text(f"\n{mark} {verdict.text}", style), *(Text(f"  {finding}", "red") for finding in verdict.findings)]


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=done, width=BAR_WIDTH)


def _ms(latency_ms: float | None) -> str:
    return "none" if latency_ms is None else f"{latency_ms:,.0f} ms"
