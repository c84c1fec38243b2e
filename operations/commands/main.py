"""The entry point of the command `spark-ssp`. Imports click and rich, which are optional."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from operations.model.extras import missing_extra
from ssp_common.logs import hide_logs, show_logs


def main() -> None:
    """Run the command; exit with 2 if the extra `cli` is not installed. Warnings, as of calls that
    are made again, are lines on the standard error."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"{missing_extra('spark-ssp', 'cli', *missing)}\n")
        sys.exit(2)
    from operations.commands.cli import cli

    show_logs("spark-ssp: %(message)s", default="WARNING")
    try:
        cli(prog_name="spark-ssp")
    finally:
        hide_logs()  # Clients that end repeat the reason of a failure.
