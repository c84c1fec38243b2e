"""Every command of `spark-ssp` has a test and a section of the guide."""

from __future__ import annotations

import re

import click
import pytest

from spark_ssp.operations.cli import cli
from tests.architecture.layers import ROOT

COMMANDS = cli.list_commands(click.Context(cli))


def test_the_modules_are_the_commands() -> None:
    folder = ROOT / "spark_ssp" / "operations" / "commands"
    assert sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__") == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_help_json_a_test_and_its_part_of_the_guide(name: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None, f"{name}.py has no {name}_command"
    assert "--json" in command.get_help(context)
    formatter = click.HelpFormatter(width=200)
    cli.format_commands(context, formatter)
    line = re.search(rf"^ *{name} +(.*)$", formatter.getvalue(), re.MULTILINE)
    assert line, f"the docstring of {name}.py does not begin with `spark-ssp {name}`: and a summary"
    guide = (ROOT / "docs" / "guide" / "command.md").read_text(encoding="utf-8")
    assert f"$ spark-ssp {name} " in guide, "docs/guide/command.md has no example of it"
    tests = [
        file
        for kind in ("unit", "contract")
        for file in (ROOT / "tests" / kind / "operations").rglob("test_*.py")
        if re.search(rf"\brun\(\s*\"{name}\"", file.read_text(encoding="utf-8"))
    ]
    assert tests, f'no test below tests/*/operations has run("{name}", ...)'
