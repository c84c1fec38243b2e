"""Everything that takes too long for CI, one part after the other, and a history of the results.

    make nightly                        all parts: about six hours on two cores
    make nightly PARTS="long interop"   only these

Each run draws a seed, which the history keeps; `--seed` repeats it. It concerns the simulations of
`soak`, the random faults and those of exactly once: the others draw the same examples in each run.
The folder `nightly/` has the log of each part, `history.jsonl` with an object for each part that
ran, and its table, `history.md`. Parts run in turn: side by side on two cores they take longer, and
Spark's workers miss their deadlines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_MODULE: Final = (sys.executable, "-m")

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "long": ("make", "--ignore-errors", "long"),
    "interop": ("make", "interop"),
    "soak": ("make", "--ignore-errors", "soak"),
    "broker-faults": (*_MODULE, "tests.support.kafka.broker_faults", "--runs", "3"),
    "exactly-once-faults": (
        *_MODULE,
        "tests.support.kafka.exactly_once_faults",
        *("--runs", "20", "--seed", "{seed}"),
    ),
    "random-faults": (*_MODULE, "tests.support.random_faults", "--runs", "40", "--seed", "{seed}"),
    "defects": ("make", "defects"),
    "release": ("make", "release-check"),
    "benchmarks": (*_MODULE, "benchmarks", "--small"),
}
"""The command of each part, run at the root of the checkout. A part of several suites continues
after one that fails."""

LIMIT_S: Final = 4 * 3600.0
"""The time after which a part is killed, and has failed."""

_COUNT: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_SUMMARY: Final = re.compile(r"^=*\s*\d+ (?:passed|failed|errors?|skipped)\b.* in [\d.]+s")
_IGNORED: Final = re.compile(r"^make.*: \[.*\] .+ \(ignored\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one part of a run."""

    part: str
    commit: str
    seed: int
    began: str
    seconds: int
    passed: int
    failed: int
    skipped: int
    reason: str
    """The reasons of a failure; empty if the part has passed."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run what takes too long for CI.")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--seed", type=int, help="of the simulations; default: a new one")
    parser.add_argument("--folder", type=Path, default=_ROOT / "nightly")
    given = parser.parse_args(arguments)
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"unknown part: found {', '.join(unknown)}; expected {', '.join(PARTS)}")
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    chosen = {part: PARTS[part] for part in given.parts or PARTS}
    results = run(chosen, given.folder, seed=seed, limit_s=LIMIT_S)
    print(as_markdown(results))
    sys.exit(any(result.reason for result in results))


def run(
    parts: Mapping[str, Sequence[str]], folder: Path, *, seed: int, limit_s: float
) -> list[Result]:
    """Run the parts in turn, and add their results to the history in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    history = folder / "history.jsonl"
    commit = subprocess.check_output(
        ["git", "describe", "--always", "--dirty"], cwd=_ROOT, text=True
    ).strip()
    results: list[Result] = []
    for part, command in parts.items():
        began = datetime.now(UTC)
        log = folder / f"{began:%Y%m%dT%H%M%SZ}-{commit}-{part}.log"
        print(f"--- {part}: {log}", flush=True)
        start = time.monotonic()
        ended = _ended(command, log, seed, limit_s)
        counts, reason = outcome(log.read_text(encoding="utf-8", errors="replace"), ended)
        result = Result(
            part=part,
            commit=commit,
            seed=seed,
            began=began.isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - start),
            **counts,
            reason=reason,
        )
        results.append(result)
        with history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        lines = history.read_text(encoding="utf-8").splitlines()
        table = as_markdown([Result(**json.loads(line)) for line in lines])
        (folder / "history.md").write_text(table, encoding="utf-8")
    return results


def _ended(command: Sequence[str], log: Path, seed: int, limit_s: float) -> int | None:
    """Run a command; return its exit status, or None if it was killed at the limit."""
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} --hypothesis-seed={seed}".strip()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [word.replace("{seed}", str(seed)) for word in command],
            cwd=_ROOT,
            # Messages of `make` in English.
            env=os.environ | {"PYTEST_ADDOPTS": options, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def outcome(log: str, status: int | None) -> tuple[dict[str, int], str]:
    """Return the numbers of tests in the summaries of a log, and why the part has failed. A part
    without tests, as the programs of faults are, is judged by its exit status."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for line in filter(_SUMMARY.match, log.splitlines()):
        for number, kind in _COUNT.findall(line):
            kind = "failed" if kind.startswith("error") or kind == "xpassed" else kind
            counts["skipped" if kind == "xfailed" else kind] += int(number)
    ignored = sum(bool(_IGNORED.match(line)) for line in log.splitlines())
    reasons = [
        "killed at the time limit" if status is None else f"exit status {status}" if status else "",
        f"{counts['failed']} tests failed" if counts["failed"] else "",
        f"{counts['skipped']} tests skipped" if counts["skipped"] else "",
        f"{ignored} commands failed" if ignored else "",
    ]
    return counts, ", ".join(filter(None, reasons))


def as_markdown(results: Sequence[Result]) -> str:
    """Return the results as a table, the latest first."""
    rows = [
        f"| {each.began} | {each.part} | {each.commit} | {each.seed} | {each.seconds // 60} min "
        f"| {each.passed} | {each.reason or 'passed'} |"
        for each in reversed(results)
    ]
    head = ["| began | part | commit | seed | time | tests passed | result |", "|" + " --- |" * 7]
    return "\n".join([*head, *rows, ""])


if __name__ == "__main__":
    main()
