"""Run benchmarks one after another, each in a separate process.

    python -m benchmarks                        all of them
    python -m benchmarks kafka.bulk planning.offset_size
    python -m benchmarks --small                every one in seconds, to see that it works
    python -m benchmarks --list

Each prints a table and writes its figures, as JSON with the machine's name, and its pictures into
`bench-output/`; with `--small` into `bench-output/small/`, since those figures mean nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.catalogue import CATALOGUE, Benchmark
from benchmarks.support.report import OUTPUT, OUTPUT_VARIABLE


def run_one(benchmark: Benchmark, *, small: bool) -> bool:
    """Run a benchmark and return whether it succeeded."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark.name}"]
    folder = OUTPUT / "small" if small else OUTPUT
    ended = subprocess.run(
        command + benchmark.arguments(small=small),
        env={**os.environ, OUTPUT_VARIABLE: str(folder)},
        check=False,
    )
    return ended.returncode == 0


def format_minutes(benchmarks: Sequence[Benchmark]) -> str:
    """Format the duration of all of them together."""
    minutes = sum(one.minutes for one in benchmarks)
    return f"about {minutes:.0f} minutes" if minutes >= 2 else "about a minute"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="name", help="one of --list; default: all")
    parser.add_argument("--small", action="store_true", help="in seconds, to see that they work")
    parser.add_argument("--list", action="store_true", help="name them, and how long each takes")
    arguments = parser.parse_args()
    known = {benchmark.name: benchmark for benchmark in CATALOGUE}
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in arguments.names] or list(CATALOGUE)
    if arguments.list:
        for benchmark in chosen:
            print(f"{benchmark.name}: {format_minutes([benchmark])}")
        return
    if not arguments.small:
        print(f"{len(chosen)} benchmarks, {format_minutes(chosen)} on two cores", flush=True)
    failed = []
    for number, benchmark in enumerate(chosen, start=1):
        duration = "small" if arguments.small else format_minutes([benchmark])
        print(f"\n[{number}/{len(chosen)}] {benchmark.name}: {duration}", flush=True)
        began = time.monotonic()
        if not run_one(benchmark, small=arguments.small):
            failed.append(benchmark.name)
        print(f"{benchmark.name} took {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
