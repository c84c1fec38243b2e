"""The runbook has a section for each alert and verdict, and commands that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from spark_ssp.operations.cli import cli
from spark_ssp.operations.health import Verdict
from spark_ssp.operations.metrics.catalogue import METRICS
from tests.support.guides import GUIDE, ROOT, blocks

PAGE: Final = GUIDE / "runbook.md"
TEXT: Final = PAGE.read_text(encoding="utf-8")
PARTS: Final = {
    part.partition("\n")[0]: re.findall(r"^### (.+)\n([\s\S]*?)(?=^##|\Z)", part, re.MULTILINE)
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
}
(_GROUP,) = yaml.safe_load((GUIDE / "prometheus-alerts.yaml").read_text("utf-8"))["groups"]
RULES: Final[list[dict[str, Any]]] = _GROUP["rules"]
COMMANDS: Final = sorted(
    {
        " ".join(found.split())
        for found in (
            *re.findall(r"^\$ (spark-ssp .+)", "\n".join(blocks(PAGE, "console")), re.MULTILINE),
            *re.findall(r"`(spark-ssp \w+ [^`]+)`", TEXT),
        )
    }
)


def test_every_alert_and_verdict_has_a_section() -> None:
    assert [name for name, _ in PARTS["Alerts"]] == [rule["alert"] for rule in RULES]
    verdicts = sorted(Verdict, key=lambda verdict: -verdict.gravity)
    order = [name for name, _ in PARTS["Verdicts"]]
    assert order == [verdict.value for verdict in verdicts]


@pytest.mark.parametrize(("name", "section"), PARTS["Alerts"], ids=[a for a, _ in PARTS["Alerts"]])
def test_a_section_has_all_steps_and_a_command(name: str, section: str) -> None:
    steps = re.findall(r"^\*\*(.+?)\.\*\*", section, re.MULTILINE)
    assert steps == ["Meaning", "Look at", "Do", "Verify"], name
    assert "```console" in section, name


def test_every_alert_links_to_its_section() -> None:
    config = tomllib.loads((ROOT / "website" / "zensical.toml").read_text("utf-8"))
    owner, name = config["project"]["repo_url"].split("/")[-2:]
    page = f"https://{owner}.github.io/{name}/latest/guide/{PAGE.stem}/"
    assert {rule["alert"]: rule["annotations"]["runbook_url"] for rule in RULES} == {
        rule["alert"]: f"{page}#{rule['alert'].lower()}" for rule in RULES
    }


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.json").write_text("{}", encoding="utf-8")
    _, name, *arguments = shlex.split(line.partition(" > ")[0])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    with command.make_context(name, arguments) as context:
        assert context.params


def test_metrics_that_guides_name_exist() -> None:
    known = {metric.name for metric in METRICS}
    named = {
        (page.name, name)
        for page in GUIDE.glob("*.md")
        for name in re.findall(r"\bssp_[a-z_]+\b", page.read_text(encoding="utf-8"))
    }
    assert len(named) > len(known)
    assert {one for one in named if one[1] not in known} == set()
