"""The error of a query in its user's terminal: near its end, where Spark allows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kinesis.fan_out_mode import python_path
from tests.support.spark.drivers import ENVIRONMENT, FREE_CONNECT_PORT

_PROGRAM = Path(__file__).parents[1] / "programs" / "fail.py"
_NEAR = 5


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "session",
    [
        pytest.param("local[2]", marks=pytest.mark.core("errors near the end of the output")),
        "connect",
    ],
)
def test_the_message_is_in_the_last_lines(tmp_path: Path, session: str) -> None:
    port = FREE_CONNECT_PORT if session == "connect" else {}
    found = subprocess.run(
        [sys.executable, str(_PROGRAM), session, str(tmp_path / "checkpoint")],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | port | python_path(_PROGRAM.parents[3]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    texts = re.findall(r"^--- (.+)\n((?:(?!---).*\n)*)", found.stderr, re.MULTILINE)
    sections = {name: text.splitlines() for name, text in texts}
    for name, kind in (
        ("option", "[invalid-options]"),
        ("query, as in the guide", "[service-unavailable]"),
    ):
        assert any(kind in line for line in sections[name][-_NEAR:]), sections[name]
    # Here Spark adds the offsets and the plan; the guide has the numbers of lines.
    messages = [line for line in sections["query"] if "[service-unavailable]" in line]
    assert messages
    assert all("Next step: " in line for line in messages)
