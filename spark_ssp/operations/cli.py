"""The command `spark-ssp`: its commands, errors and interruptions.

Each module of `spark_ssp.operations.commands` is a command. Its docstring begins with the name and
a summary; the module is imported when the command is called.

Exit codes: 0 without findings, 1 with one (`status`: one for each verdict), 2 for a wrong call or a
failure, 130 after Ctrl-C, 141 if the reader of a pipe ended first.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final

import click

from spark_ssp.common.errors import SspError, printable
from spark_ssp.common.spark.requirement import missing_module
from spark_ssp.operations.terminal import SYSTEM

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
