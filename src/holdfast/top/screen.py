"""How `holdfast top` looks in a terminal."""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.top.database_sample import BACKLOG_MAX, HOLDS_MAX
from holdfast.top.figures import EventFigures, Figures, ServerFigures

BAR_WIDTH: Final = 10
TITLE_MAX: Final = 40
# Three times the interval of a worker's slowest job, which compares Redis with PostgreSQL.
JOB_LATE_SECONDS: Final = 900.0


def render(figures: Figures) -> RenderableType:
    """Everything on one screen."""
    parts: list[RenderableType] = [_render_overall(figures), Text()]
    if figures.servers is not None:
        parts += [_render_servers(figures.servers), Text()]
    parts += [Text(each, "yellow") for each in figures.missing]
    parts.append(_render_events(figures))
    if figures.other_changes:
        parts.append(Text(f"{figures.other_changes:,} changes in other events", "dim"))
    return Group(*parts)


def render_error(message: str) -> RenderableType:
    return Text(message, "bold red")


def _render_overall(figures: Figures) -> Text:
    rates = figures.rates
    text = Text()
    text.append(f"{figures.at:%H:%M:%S} UTC", "bold")
    text.append(
        f"  {rates.holds:,.1f} holds/s  {rates.confirmed:,.1f} confirmed/s  {rates.expired:,.1f} expired/s"
        f"  {figures.events_on_sale:,} events on sale\n"
        f"{_capped(figures.deliveries_waiting, BACKLOG_MAX)} notifications wait, "
        f"{_capped(figures.refunds_due, BACKLOG_MAX)} refunds due, "
        f"{figures.lanes} lanes and {figures.other_connections} other connections"
    )
    return text


def _render_servers(servers: ServerFigures) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_row("hold latency", f"p50 {_ms(servers.p50_ms)}, p95 {_ms(servers.p95_ms)}")
    refusals = sorted(servers.refusals_per_second.items(), key=lambda refusal: -refusal[1])
    table.add_row("refusals/s", ", ".join(f"{rate:,.1f} {_printable(code)}" for code, rate in refusals) or "none")
    table.add_row("queue", f"{_number(servers.queue_depth)} commands wait in the lanes")
    table.add_row("Redis", _describe_breakers(servers.breakers_open))
    table.add_row("live feed", f"{_number(servers.live_sockets)} sockets")
    table.add_row("workers", _describe_jobs(servers.job_ages_seconds))
    if servers.audit_findings:
        table.add_row("auditor", Text(f"{servers.audit_findings:,.0f} findings. Run holdfast audit.", "bold red"))
    return table


def _render_events(figures: Figures) -> RenderableType:
    if not figures.events:
        return Text("No event has sold anything since the last look.", "dim")
    table = Table(box=None, pad_edge=False, header_style="underline")
    # The only column that gives way on a narrow screen.
    table.add_column("event", max_width=TITLE_MAX)
    for name in ("holds/s", "sold/s", "held", "sold", "of"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fill", no_wrap=True)
    # Holds that expire within a minute, and holds that nobody has expired in time.
    table.add_column("soon", justify="right", no_wrap=True)
    table.add_column("late", justify="right", no_wrap=True)
    for event in figures.events:
        table.add_row(
            Text(_printable(event.title)),
            f"{event.rates.holds:,.1f}",
            f"{event.rates.confirmed:,.1f}",
            f"{event.held:,}",
            f"{event.sold:,}",
            f"{event.capacity:,}",
            _bar(event),
            _capped(event.expiring_soon, HOLDS_MAX),
            _capped(event.overdue, HOLDS_MAX),
        )
    return table


def _bar(event: EventFigures) -> Text:
    """Sold, held and free units."""
    capacity = max(event.capacity, 1)
    sold = min(BAR_WIDTH, round(BAR_WIDTH * event.sold / capacity))
    taken = min(BAR_WIDTH, round(BAR_WIDTH * (event.sold + event.held) / capacity))
    bar = Text()
    bar.append("█" * sold, "green")
    bar.append("▒" * (taken - sold), "yellow")
    bar.append("·" * (BAR_WIDTH - taken), "dim")
    return bar.append(f" {(event.sold + event.held) / capacity:.0%}")


def _describe_breakers(count: float | None) -> Text:
    if count is None:
        return Text("unknown")
    if count:
        return Text(f"{count:.0f} processes work without it: their circuit breaker is open", "yellow")
    return Text("no circuit breaker is open")


def _describe_jobs(ages: dict[str, float]) -> Text:
    if not ages:
        return Text("none seen; pass the address of their metrics with --url", "yellow")
    late = {name: age for name, age in ages.items() if age > JOB_LATE_SECONDS}
    if late:
        return Text(", ".join(f"{_printable(name)} last ran {age:,.0f} s ago" for name, age in late.items()), "yellow")
    return Text(f"all {len(ages)} jobs run")


def _printable(text: str) -> str:
    """Orgs choose titles. A control character in one could rewrite the operator's screen."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _capped(count: int, most: int) -> str:
    return f"{most:,}+" if count >= most else f"{count:,}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f} ms"
