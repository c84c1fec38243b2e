"""The entry point of the command `spark-ssp`. Imports click and rich, which are optional."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from operations.model.extras import missing_extra


def main() -> None:
    """Run the command; exit with 2 if the extra `cli` is not installed."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"{missing_extra('spark-ssp', 'cli', *missing)}\n")
        sys.exit(2)
    from operations.commands.cli import cli

    cli(prog_name="spark-ssp")
