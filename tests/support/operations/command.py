"""Runs the command in this process, and compares its output with files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from spark_ssp.operations.cli import Environment, cli

WIDTHS: Final = (80, 140)
WRITE_OUTPUTS: Final = "SSP_WRITE_OUTPUTS"
"""Environment variable: write the files of expected outputs instead of comparing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        """Return the standard output as JSON."""
        return json.loads(self.out)


def _no_sleep(seconds: float) -> None:
    raise AssertionError(f"a pause of {seconds} s")


def run(
    *arguments: str,
    columns: int | None = None,
    now_ms: int | Callable[[], int] = 0,
    sleep: Callable[[float], None] = _no_sleep,
    monotonic: Callable[[], float] | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> Run:
    """Run the command. `columns` None: as in a pipe. Without `monotonic` only its pauses take time,
    whatever `now_ms` returns."""
    elapsed = 0.0

    def pause(seconds: float) -> None:
        nonlocal elapsed
        sleep(seconds)
        elapsed += seconds

    result = CliRunner().invoke(
        cli,
        arguments,
        obj=Environment(
            now_ms=now_ms if callable(now_ms) else lambda: now_ms,
            monotonic=monotonic or (lambda: elapsed),
            sleep=pause,
        ),
        env={
            "COLUMNS": None if columns is None else str(columns),
            "AWS_EC2_METADATA_DISABLED": "true",
            **(environment or {}),
        },
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Run(code=result.exit_code, out=result.stdout, err=result.stderr)


def check_output(file: Path, text: str, replaced: Mapping[str, str] | None = None) -> None:
    """Compare an output with a file, after replacing the parts that differ from run to run."""
    for found, name in (replaced or {}).items():
        text = text.replace(found, name)
    if os.environ.get(WRITE_OUTPUTS):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
