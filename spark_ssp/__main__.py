"""The entry point of the command `spark-ssp`, also as `python -m spark_ssp`. Imports click and
rich, which are optional."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from spark_ssp.common.logs import hide_logs, show_logs
from spark_ssp.common.spark.requirement import missing_extra


def main() -> None:
    """Run the command; exit with 2 if the extra `cli` is not installed. Warnings, as of calls that
    are made again, are lines on the standard error."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(f"{missing_extra('spark-ssp', 'cli', *missing)}\n")
        sys.exit(2)
    from spark_ssp.operations.cli import cli

    show_logs("spark-ssp: %(message)s", default="WARNING")
    try:
        cli(prog_name="spark-ssp")
    finally:
        hide_logs()  # Clients that end repeat the reason of a failure.


if __name__ == "__main__":
    main()
