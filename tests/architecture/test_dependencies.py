"""Dependencies without known vulnerabilities, at versions that platforms have.

A new advisory is a new line here: its test fails until the lock, the jars and the floors include
the fix. A floor may stay below a fix where platforms ship older versions, with a reason. The
versions of the platforms are a table of the design record.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spark_ssp.testing.kafka.broker import _ARTIFACT
from tests.architecture.layers import ROOT

FIXED_IN: Final[Mapping[str, tuple[str, str]]] = {
    "flask-cors": ("6.0.0", "CVE-2024-6839, CVE-2024-6844, CVE-2024-6866"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "orjson": ("3.11.6", "CVE-2025-67221"),
    "pyarrow": ("23.0.1", "CVE-2026-25087"),
    "requests": ("2.32.4", "CVE-2024-47081"),
    "urllib3": ("2.7.0", "CVE-2026-21441 (2.6.3), CVE-2026-44432"),
    "werkzeug": ("3.1.4", "CVE-2025-66221"),
}
"""By package: the version with the fix, and the advisories."""

FLOORS_BELOW: Final[Mapping[str, str]] = {
    "pyarrow": "the fix concerns reading IPC files with pre-buffering, which is not used here",
    "urllib3": "boto3 chooses it; only responses of untrusted servers exploit the vulnerabilities",
}
"""Packages that platforms ship in older versions, with the reason why these are safe here."""

JARS_FIXED_IN: Final[Mapping[str, tuple[str, str]]] = {
    "commons-beanutils": ("1.11.0", "CVE-2025-48734"),
    "kafka-clients": ("4.1.1", "the first patch of 4.1"),
    "log4j-core": ("2.25.3", "CVE-2025-68161"),
    "lz4-java": ("1.10.1", "CVE-2025-12183, CVE-2025-66566"),
}


def _project() -> list[Requirement]:
    """Return the requirements of the distribution, with its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(text) for text in sum(extras, project["dependencies"])]


def _floor(requirement: Requirement) -> Version:
    floors = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
    return max(floors, default=Version("0"))


@pytest.mark.parametrize("name", FIXED_IN)
def test_the_lock_has_the_fix(name: str) -> None:
    lock = (ROOT / "requirements" / "dev.txt").read_text()
    (pinned,) = re.findall(rf"^{re.escape(name)}==(\S+)", lock, re.MULTILINE)
    assert Version(pinned) >= Version(FIXED_IN[name][0])


def test_floors_have_the_fix_or_a_reason() -> None:
    below = {
        one.name
        for one in _project()
        if one.name in FIXED_IN and _floor(one) < Version(FIXED_IN[one.name][0])
    }
    assert below == FLOORS_BELOW.keys()


@pytest.mark.parametrize("name", JARS_FIXED_IN)
def test_the_jars_of_the_local_kafka_have_the_fix(name: str) -> None:
    listed = _ARTIFACT.checksums.read_text()
    (pinned,) = re.findall(rf"  {re.escape(name)}-(\d[\d.]*)\.jar$", listed, re.MULTILINE)
    assert Version(pinned) >= Version(JARS_FIXED_IN[name][0])


def _table(title: str) -> list[list[str]]:
    """Return the rows of the table below a title of the record on the platforms' packages."""
    record = (ROOT / "docs" / "design" / "platforms.md").read_text(encoding="utf-8")
    section = record.split(f"\n### {title}\n")[1].split("\n##")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [row for row in cells if set(row[0]) != {"-"}]


def test_installing_on_a_platform_replaces_only_the_listed_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {
        one.name: one.specifier
        for one in map(
            Requirement, project["dependencies"] + project["optional-dependencies"]["pipelines"]
        )
    }
    wanted["Python"] = SpecifierSet(project["requires-python"])
    header, *rows = _table("Versions")
    assert {row[0] for row in rows} == wanted.keys()
    replaced = {
        (name, platform)
        for name, *versions in rows
        for platform, version in zip(header[1:], versions, strict=True)
        if version and version not in wanted[name]
    }
    listed = {
        (name, platform)
        for name, where, reason in _table("Upgraded by pip")[1:]
        for platform in where.split(", ")
        if reason
    }
    assert replaced == listed
    assert len(header) == 4
