"""Log lines show up in a process in which nobody has configured logging."""

from __future__ import annotations

import logging
import platform
import subprocess
import sys

import pytest

from spark_ssp.common.logs import LEVEL_VARIABLE, Detail, RepeatFilter, abbreviate, versions

SPEAK = """
import logging
from spark_ssp.common.logs import show_logs
show_logs(); show_logs()
log = logging.getLogger("spark_ssp.kinesis_source.batch_planner")
log.debug("a debug line"); log.info("an info line"); log.warning("a warning")
"""


def spoken(program: str, level: str | None) -> str:
    environment = {} if level is None else {LEVEL_VARIABLE: level}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stderr


@pytest.mark.parametrize(
    ("level", "lines"), [(None, 2), ("INFO", 2), ("debug", 3), ("WARNING", 1), ("ERROR", 0)]
)
def test_the_level_says_what_shows_and_nothing_shows_twice(level: str | None, lines: int) -> None:
    assert len(spoken(SPEAK, level).splitlines()) == lines


def test_a_message_cannot_forge_a_line() -> None:
    program = (
        SPEAK
        + r"""
log.warning("topic %s is gone", "a\n2026-01-01 INFO all is well\x1b[2J")
"""
    )
    line = spoken(program, None).splitlines()[-1]
    assert line.endswith(r"topic a\n2026-01-01 INFO all is well\x1b[2J is gone")


def test_an_unknown_level_is_said() -> None:
    assert LEVEL_VARIABLE in spoken(SPEAK, "loud").splitlines()[0]


def test_logging_that_is_set_up_already_is_left_alone() -> None:
    program = "import logging; logging.basicConfig(level='ERROR')" + SPEAK
    assert spoken(program, "DEBUG") == ""


def test_long_lists_are_cut() -> None:
    assert abbreviate(["a", "b"]) == "a, b"
    assert abbreviate([str(n) for n in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


def test_equal_warnings_are_logged_once_per_period_with_their_number() -> None:
    now = [0.0]
    repeats = RepeatFilter(lambda: now[0])

    def logged(text: str, *args: object, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("spark_ssp.any", level, "", 0, text, args, None)
        return record.getMessage() if repeats.filter(record) else None

    text = "shard %s throttled for %d s"
    assert logged(text, "a", 1) == "shard a throttled for 1 s"
    assert logged(text, "b", 1) == "shard b throttled for 1 s"
    for seconds in range(2, 30):
        now[0] = seconds
        assert logged(text, "a", seconds) is None
    now[0] = 30.0
    assert logged(text, "a", 30) == (
        "shard a throttled for 30 s (and 28 such lines since the last one)"
    )
    assert logged("again", level=logging.INFO) == logged("again", level=logging.INFO) == "again"
    assert logged("gone", level=logging.ERROR) == logged("gone", level=logging.ERROR) == "gone"
    assert logged("no arguments: %") == "no arguments: %"


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_lines_that_differ_in_details_are_equal(level: int) -> None:
    now = [0.0]
    repeats = RepeatFilter(lambda: now[0])

    def logged(shard: str, error: str) -> str | None:
        text, args = "shard %s: %s on %s", (Detail(shard), Detail(error), "orders")
        record = logging.LogRecord("spark_ssp.any", level, "", 0, text, args, None)
        return record.getMessage() if repeats.filter(record) else None

    assert logged("0", "request 17") == "shard 0: request 17 on orders"
    assert logged("1", "request 18") is None
    now[0] = 30.0
    last = logged("2", "request 19")
    assert last == "shard 2: request 19 on orders (and 1 such lines since the last one)"


def test_the_versions_are_those_that_run() -> None:
    assert f"Python {platform.python_version()}" in versions()
