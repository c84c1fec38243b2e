"""The demo from the command line: `make demo`, or `python -m examples.flights`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from examples.flights import DemoError
from examples.flights.run import Plan, run
from examples.flights.screen import PLAIN_WIDTH

ALL = 336_776
FULL_SECONDS = 90.0
SHORTEST_SECONDS = 12.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when the demo's own check passes, 1 when it does not, 2 when there is no result."""
    options = _parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    share = (options.departures or ALL) / ALL
    plan = Plan(
        departures=options.departures,
        seconds=options.seconds or max(SHORTEST_SECONDS, FULL_SECONDS * share),
        slots=options.slots,
        folder=options.output,
    )
    try:
        return run(plan, console)
    except DemoError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        console.print("stopped")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flights",
        description="Departures of 2013 through a Kinesis stream that is split and merged at "
        "the same time, into Parquet; checks itself.",
    )
    parser.add_argument(
        "--departures", type=_positive, help=f"only so many, instead of all {ALL:,}"
    )
    parser.add_argument("--seconds", type=float, help="put them over this number of seconds")
    parser.add_argument("--slots", type=_positive, default=4, help="tasks per batch (4)")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="a folder, emptied first"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
