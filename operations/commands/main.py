"""The entry point of the command `spark-ssp`. Imports click and rich, which are optional."""

from __future__ import annotations

import sys

_EXTRA = frozenset({"click", "rich"})


def main() -> None:
    """Run the command; exit with 2 if the extra `cli` is not installed."""
    try:
        from operations.commands.cli import cli
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write(
            f"spark-ssp: the package {error.name} is not installed: pip install 'spark-ssp[cli]'\n"
        )
        sys.exit(2)
    cli(prog_name="spark-ssp")
