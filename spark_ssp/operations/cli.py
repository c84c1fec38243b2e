"""The command `spark-ssp`: its commands, errors and interruptions, and the output of all.

Each module of `spark_ssp.operations.commands` is a command. Its docstring begins with the name and
a summary; the module is imported when the command is called.

Exit codes: 0 without findings, 1 with one (`status`: one for each verdict), 2 for a wrong call or a
failure, 130 after Ctrl-C, 141 if the reader of a pipe ended first.

Text and tables are for the screen, JSON for programs. In a pipe there are no colours and lines have
any length, unless the environment variable COLUMNS sets a width. Where a width limits the lines,
long sequence numbers are shortened in the middle.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TextIO

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_ssp.common import now_ms
from spark_ssp.common.errors import ServiceUnavailableError, SspError, printable
from spark_ssp.common.spark.requirement import missing_module
from spark_ssp.common.times import time_text
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    Position,
    ShardEnd,
)

# --- Output --------------------------------------------------------------------------------------


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
    monotonic: Callable[[], float]
    """Seconds that only differ by the time between two calls, even if the clock is set."""
    sleep: Callable[[float], None]
    """Waits, in seconds."""


SYSTEM = Environment(now_ms=now_ms, monotonic=time.monotonic, sleep=time.sleep)


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

    def position(self, position: Position | None) -> str:
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


# --- Commands ------------------------------------------------------------------------------------


FINDING: Final = 1
FAILURE: Final = 2
INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141

_COMMANDS: Final = "spark_ssp.operations.commands"


class FailureError(click.ClickException):
    """A failure as the user gets it: one line, without a traceback."""

    exit_code = FAILURE

    def show(self, file: Any = None) -> None:
        """Write the message to the standard error."""
        click.echo(f"spark-ssp: {self.message}", err=True)


def write_file(file: Path, text: str, option: str) -> None:
    """Write a file that an option names. Raises FailureError."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FailureError(f"{file}: {error.strerror}; name another file by {option}") from None


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [entry.name for entry in files(_COMMANDS).iterdir()]
        return sorted(
            name.removesuffix(".py") for name in names if re.fullmatch(r"[a-z]+\.py", name)
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = import_module(f"{_COMMANDS}.{cmd_name}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        _check_not_blank(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SspError as error:
            raise FailureError(str(error)) from None
        except BrokenPipeError:
            # What is still buffered would raise again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(_PIPE_CLOSED)
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            if ctx.params.get("traceback"):
                raise
            raise FailureError(_unexpected(error)) from None


def _summary(command: str) -> str:
    """Return what a command shows, from the docstring of its module, which is not imported."""
    source = files(_COMMANDS).joinpath(f"{command}.py").read_text(encoding="utf-8")
    paragraph, _, _ = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    return " ".join(paragraph.partition("`: ")[2].split())


def _check_not_blank(arguments: Sequence[str]) -> None:
    """Refuse empty arguments and values, which variables of a shell that are not set leave: a
    default would take their place, with another scope or access."""
    for before, argument in pairwise(["", *arguments]):
        name, equals, value = argument.partition("=")
        if not argument.strip():
            option = before if before.startswith("--") and "=" not in before else None
        elif name.startswith("--") and equals and not value.strip():
            option = name
        else:
            continue
        raise click.UsageError(
            f"{'an argument' if option is None else option} is empty: set the variable that it "
            "comes from, or leave it out"
        )


def _unexpected(error: Exception) -> str:
    """Describe an unexpected error without its text, which may contain record data."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("spark_ssp"):
        return str(missing_module("spark-ssp", error))
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return printable(
        f"[defect] {type(error).__name__}{place}. Next step: run spark-ssp --traceback with the "
        "same arguments, and report it"
    )


@click.group(
    cls=_Commands,
    epilog="Exit codes: 0 without findings, 1 with a finding (status: one for each verdict), 2 for "
    "a wrong call or a failure. Every command only reads, except acceptance, which asks first.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(version("spark-ssp"), prog_name="spark-ssp")
@click.option("--traceback", is_flag=True, help="Show the traceback of an unexpected error.")
@click.pass_context
def cli(context: click.Context, traceback: bool) -> None:
    """Look into queries of kinesis-ssp and kafka-ssp, their checkpoints, leases and streams."""
    if context.obj is None:
        context.obj = SYSTEM
