"""The nightly run: which parts it has, what it keeps, and when a part has failed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.nightly import PARTS, outcome, run

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for command in PARTS.values():
        if command[0] == "make":
            assert command[-1] in targets
        else:
            path = ROOT / command[2].replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_the_workflow_runs_every_part() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text("utf-8"))
    assert workflow["jobs"]["part"]["strategy"]["matrix"]["part"] == list(PARTS)


def test_results_are_kept_from_run_to_run(tmp_path: Path) -> None:
    def script(text: str) -> tuple[str, ...]:
        return sys.executable, "-c", text

    seed = "import os; assert os.environ['PYTEST_ADDOPTS'].endswith('--hypothesis-seed={seed}')"
    seed += "; assert {seed} == 7"
    parts = {
        "good": script(seed + "; print('==== 3 passed, 2 deselected in 1.50s ====')"),
        "bad": script("raise SystemExit(3)"),
        "slow": script("import time; time.sleep(60)"),
    }
    slow = {"slow": parts.pop("slow")}
    results = run(parts, tmp_path, seed=7, limit_s=60) + run(slow, tmp_path, seed=7, limit_s=1)
    assert [(one.part, one.passed, bool(one.reason)) for one in results] == [
        ("good", 3, False),
        ("bad", 0, True),
        ("slow", 0, True),
    ]
    run({"good": parts["good"]}, tmp_path, seed=7, limit_s=60)
    lines = (tmp_path / "history.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["part"] for line in lines] == ["good", "bad", "slow", "good"]
    assert len((tmp_path / "history.md").read_text("utf-8").splitlines()) == 2 + len(lines)
    assert len(list(tmp_path.glob("*.log"))) >= 3


@pytest.mark.parametrize(
    ("log", "status", "counts", "failed"),
    [
        ("12 passed in 3.20s", 0, (12, 0, 0), False),
        (
            "= 12 passed, 9 warnings in 75.00s (0:01:15) =\n= 4 passed in 2.0s =",
            0,
            (16, 0, 0),
            False,
        ),
        ("= 1 failed, 12 passed in 3.20s =", 0, (12, 1, 0), True),
        ("= 12 passed, 2 errors in 3.20s =", 0, (12, 2, 0), True),
        ("= 12 passed, 1 skipped in 3.20s =", 0, (12, 0, 1), True),
        ("12 passed in 3.20s\nmake: [Makefile:58: long] Error 1 (ignored)", 0, (12, 0, 0), True),
        ("3 passed in 1.0s\nmake: [Makefile:4: long] Killed (ignored)", 0, (3, 0, 0), True),
        ("make: [Makefile:4: soak] Aborted (core dumped) (ignored)", 0, (0, 0, 0), True),
        ("", 1, (0, 0, 0), True),
        ("", None, (0, 0, 0), True),
        ("kill: 20 runs; lost 0", 0, (0, 0, 0), False),
    ],
)
def test_a_part_fails_by_its_status_or_by_any_test_that_did_not_pass(
    log: str, status: int | None, counts: tuple[int, int, int], failed: bool
) -> None:
    found, reason = outcome(log, status)
    assert (found["passed"], found["failed"], found["skipped"]) == counts
    assert bool(reason) is failed
