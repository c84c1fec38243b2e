"""The entry point of the command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from spark_ssp import __main__ as main
from tests.architecture.layers import ROOT
from tests.support.operations.command import run


@pytest.mark.parametrize("name", ["click", "rich"])
def test_a_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    found = capsys.readouterr().err
    assert found.startswith(f"[unsupported] spark-ssp: found no package {name} in")
    *_, step = found.strip().partition("Next step: ")
    command, verb, *packages = shlex.split(step)
    assert (command, verb) == ("pip", "install")
    assert {Requirement(one).name for one in packages} >= {"click", "rich", "starlette"}
    assert found.count("\n") == 1


def test_every_command_has_help() -> None:
    commands = [
        line.split()[0]
        for line in run("--help").out.partition("Commands:")[2].splitlines()
        if line.startswith("  ") and not line.startswith("   ")
    ]
    assert {"checkpoint", "leases", "shards", "topics", "tail", "doctor", "plan"} <= set(commands)
    for name in commands:
        if name.isalpha() and name.islower():
            found = run(name, "--help")
            assert (found.code, "--json" in found.out) == (0, True), name
    unknown = run("edit-leases")
    assert unknown.code == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["watch", "checkpoint", "--token", ""], "--token is empty"),
        (["watch", "checkpoint", "--token= "], "--token is empty"),
        (["leases", "etl", "--stream", "\t"], "--stream is empty"),
        (["checkpoint", ""], "an argument is empty"),
        (["topics", "orders", "", "--bootstrap-servers", "localhost:9092"], "an argument is empty"),
        (["watch", "checkpoint", "--once", "page.html", ""], "an argument is empty"),
    ],
)
def test_values_of_variables_that_are_not_set_are_refused(arguments: list[str], named: str) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (2, "")
    assert named in found.err


def test_a_failure_is_the_last_line_after_warnings() -> None:
    """As a process: its log is set up for the whole process."""
    arguments = ["--region=us-east-1", "--endpoint-url=http://127.0.0.1:1"]
    arguments.append("--option=retry.maxAttempts=2")
    found = subprocess.run(
        [sys.executable, "-m", "spark_ssp", "shards", "orders", *arguments],
        env=os.environ | {"AWS_SECRET_ACCESS_KEY": "local", "AWS_ACCESS_KEY_ID": "local"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (2, "")
    warning, failure = found.stderr.splitlines()
    assert warning.startswith("spark-ssp: EndpointConnectionError on DescribeStreamSummary")
    assert failure.startswith("spark-ssp: [service-unavailable] stream orders: ")
