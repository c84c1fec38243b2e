"""Text and tables on the screen, JSON for programs; the clock and the pauses of the commands. In a
pipe there are no colours and lines have any length, unless the environment variable COLUMNS sets a
width. Where a width limits the lines, long sequence numbers are shortened in the middle."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, TextIO

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_ssp.common import clock
from spark_ssp.common.errors import ServiceUnavailableError, printable
from spark_ssp.common.times import time_text
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Latest,
    Position,
    ShardEnd,
)

_UNLIMITED: Final = 100_000
_LONGEST_NUMBER: Final = 16
_LONGEST_CELL: Final = 1_000
"""Other users choose some of the names, such as those in a lease table."""
_NARROWEST: Final = 8
_GAP: Final = 2
_UNUSUAL: Final = re.compile(r"[^\n\x20-\x7e]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine, except for files and connections."""

    now_ms: Callable[[], int]
    """This machine's clock, in milliseconds since the epoch."""
    sleep: Callable[[float], None]
    """Waits, in seconds."""


SYSTEM = Environment(now_ms=clock.now_ms, sleep=time.sleep)


class Screen:
    """The standard output."""

    def __init__(self, file: TextIO | None = None) -> None:
        stream = sys.stdout if file is None else file
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) else None
        is_terminal = stream.isatty()
        if width is None and not is_terminal:
            width = _UNLIMITED
        self._console = Console(
            file=stream,
            width=width,
            color_system="auto" if is_terminal else None,
            force_terminal=None if is_terminal else False,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        self.is_limited = self._console.width < _UNLIMITED

    def clear(self) -> None:
        """Clear the screen; in a pipe, write an empty line."""
        if self._console.is_terminal:
            self._console.clear()
        else:
            self._console.file.write("\n")

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line, wrapped at the width."""
        self._write(Text(printable(text), style=style))

    def row(self, text: str) -> None:
        """Write a line of any length, as the terminal wraps it."""
        self._console.file.write(f"{printable(text)}\n")
        self._console.file.flush()

    def table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[object]],
        right: Iterable[str] = (),
        wrapped: Iterable[str] = (),
    ) -> None:
        """Write a table without lines. Columns whose header is in `right` hold numbers. Those in
        `wrapped` are narrowed first where the width is limited. A column without any content is
        left out."""
        cells = [[_cell(value) for value in row] for row in rows]
        shown = [n for n in range(len(headers)) if any(row[n] not in ("", "-") for row in cells)]
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        is_folded = not self._fits(headers, cells, shown, set(wrapped))
        for n in shown:
            justify: Any = "right" if headers[n] in right else "left"
            table.add_column(
                headers[n],
                justify=justify,
                overflow="fold",
                no_wrap=not is_folded and headers[n] not in wrapped,
            )
        for row in cells:
            table.add_row(*(Text(row[n]) for n in shown))
        self._write(table)

    def _fits(
        self,
        headers: Sequence[str],
        cells: Sequence[Sequence[str]],
        shown: Sequence[int],
        wrapped: Collection[str],
    ) -> bool:
        """Return whether a table fits if only the columns in `wrapped` are narrowed."""
        widths = {n: max(cell_len(row[n]) for row in [headers, *cells]) for n in shown}
        least = [
            min(width, _NARROWEST) if headers[n] in wrapped else width
            for n, width in widths.items()
        ]
        return sum(least) + _GAP * (len(least) - 1) <= self._console.width

    def position(self, position: Position | Latest | None) -> str:
        """Return the text of a position, shortened if the width is limited."""
        match position:
            case None:
                return "-"
            case AfterRecord(sequence_number=number, sub=sub):
                return self.number(number) + (f"/{sub}" if sub else "")
            case AtTimestamp(millis=millis):
                return time_text(millis)
            case ShardEnd():
                return "SHARD_END"
            case Latest():
                return "LATEST"
        return "TRIM_HORIZON"

    def number(self, text: str) -> str:
        """Return a sequence number, shortened if the width is limited."""
        if not self.is_limited or len(text) <= _LONGEST_NUMBER:
            return text
        return f"{text[:5]}…{text[-8:]}"

    def _write(self, content: Text | Table) -> None:
        with self._console.capture() as capture:
            self._console.print(content)
        for line in capture.get().splitlines():
            self._console.file.write(f"{line.rstrip()}\n")
        self._console.file.flush()


def _cell(value: object) -> str:
    text = "-" if value is None else printable(str(value))
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"


def to_document(value: Any) -> Any:
    """Return the JSON document of a value: its fields in camelCase, the keys of mappings as they
    are."""
    if is_dataclass(value):
        return {_camel(f.name): to_document(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_document(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_document(each) for each in value]
    return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def write_json(document: object, *, lines: bool = False) -> None:
    """Write a document; with `lines`, on one line."""
    text = json.dumps(document, ensure_ascii=False, indent=None if lines else 2)
    click.echo(_UNUSUAL.sub(_escaped, text))


def _escaped(match: re.Match[str]) -> str:
    """Escape a character within JSON that a terminal may interpret."""
    sign = match[0]
    return sign if sign.isprintable() else json.dumps(sign)[1:-1]


def note(text: str) -> None:
    """Write a remark to the standard error."""
    click.echo(f"spark-ssp: {printable(text)}", err=True)


@contextmanager
def unavailable_noted() -> Iterator[None]:
    """Note that a service is unavailable instead of raising it, for a command that reads again and
    again until Ctrl-C."""
    try:
        yield
    except ServiceUnavailableError as error:
        note(str(error))
