"""Builds the site from the documents and the docstrings, and publishes it. Only the script that
draws diagrams in the browser is fetched, so that the site needs no other server."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mike import commands
from packaging.version import InvalidVersion, Version

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
    reference that does not exist. Diagrams also need `add_mermaid`."""
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


_PACKAGE: Final = "@mermaid-js/tiny@11.17.2"
_CHECKSUM: Final = Path(__file__).with_name("mermaid.sha256")
_TIMEOUT_S: Final = 300


def add_mermaid(site: Path) -> None:
    """Put the script that draws diagrams into a site; npm fetches it on first use. Raises
    RuntimeError if its checksum is not the pinned one."""
    checksum, name = _CHECKSUM.read_text(encoding="ascii").split()
    fetched = ROOT / ".cache" / "mermaid" / checksum / name
    if not fetched.exists():
        _fetch(checksum, fetched)
    shutil.copyfile(fetched, site / "assets" / name)


def _fetch(checksum: str, into: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = ("npm", "pack", "--silent", _PACKAGE)
        subprocess.run(
            command, cwd=folder, stdout=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=True
        )
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            member = files.extractfile(f"package/dist/{into.name}")
            assert member is not None
            content = member.read()
    found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        raise RuntimeError(f"{_PACKAGE}: found a file with checksum {found}, expected {checksum}")
    into.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same; the content is the same as well.
    partial = into.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(into)


BRANCH: Final = "gh-pages"
LATEST: Final = "latest"
"""The alias of the newest release, to which the address without a version leads."""


def publish(site: Path, version: str) -> None:
    """Commit the site as a version to the branch of the repository in the current folder, without
    a checkout; replace the version if it exists. Nothing is pushed. The layout is that of mike,
    which the site's version switch reads."""
    config = {"site_dir": str(site), "use_directory_urls": True}
    published = [str(each.version) for each in commands.list_versions(BRANCH)]
    aliases = [LATEST] if is_newest_release(version, published) else []
    with commands.deploy(
        config, version, aliases=aliases, update_aliases=True, branch=BRANCH, allow_empty=True
    ):
        pass
    released = any(LATEST in one.aliases for one in commands.list_versions(BRANCH))
    commands.set_default(LATEST if released else version, branch=BRANCH, allow_empty=True)


def is_newest_release(version: str, published: Iterable[str]) -> bool:
    """Return whether a version is a release, and no published one is newer."""
    release = _release(version)
    others = [each for each in map(_release, published) if each is not None]
    return release is not None and release >= max(others, default=release)


def _release(version: str) -> Version | None:
    """Return None for pre-releases and names such as `dev`."""
    try:
        found = Version(version)
    except InvalidVersion:
        return None
    return None if found.is_prerelease else found
