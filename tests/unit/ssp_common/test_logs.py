"""Log lines show up in a process in which nobody has configured logging."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ssp_common.logs import LEVEL_VARIABLE, abbreviate

SPEAK = """
import logging
from ssp_common.logs import show_logs
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
