"""Adds a built site to the published versions: a folder for each on the branch `gh-pages`, in the
layout of mike, which the site's version switch reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mike import commands
from packaging.version import InvalidVersion, Version

BRANCH: Final = "gh-pages"
LATEST: Final = "latest"
"""The alias of the newest release, to which the address without a version leads."""


def publish(site: Path, version: str) -> None:
    """Commit the site as a version to the branch of the repository in the current folder, without
    a checkout; replace the version if it exists. Nothing is pushed."""
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
