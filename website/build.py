"""Builds the site from the documents and the docstrings, without access to the network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = ROOT / ".cache" / "website"
"""The folder that Zensical takes for the project. It cannot be the checkout: Zensical keeps its
cache in the project's `.cache`, and deletes all of that folder before a clean build."""
SITE: Final = PROJECT / "site"
HERE: Final = "http://127.0.0.1:8000/"

_SOURCES: Final = ("docs", "website/theme", "website/zensical.toml")


def build(url: str = HERE) -> None:
    """Build the site into `SITE`, from nothing. `url` is the address above the folders of the
    versions. Exits with the errors printed if there is a broken link, or a name in the API
    reference that does not exist. Diagrams also need the file of `website.mermaid`."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    PROJECT.mkdir(parents=True)
    for name in _SOURCES:
        source, target = ROOT / name, PROJECT / Path(name).name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    shutil.copytree(ROOT / "website" / "assets", PROJECT / "docs" / "assets")
    config = PROJECT / "zensical.toml"
    text = config.read_text(encoding="utf-8")
    # The version switch looks for the page among the addresses of the other version's site map.
    config.write_text(text.replace("[project]", f'[project]\nsite_url = "{url}"', 1), "utf-8")
    command = (sys.executable, "-m", "zensical", "build", "--clean", "--strict")
    if status := subprocess.run(command, cwd=PROJECT, check=False).returncode:
        raise SystemExit(status)


def list_as_only_version(version: str) -> None:
    """Write the list of versions that the site expects beside its folder."""
    versions = [{"version": SITE.name, "title": version, "aliases": ["latest"]}]
    (PROJECT / "versions.json").write_text(json.dumps(versions), encoding="utf-8")
