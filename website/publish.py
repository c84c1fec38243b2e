"""Adds a built site to the published versions: a folder for each on the branch `gh-pages`, in the
layout of mike, which the site's version switch reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mike import commands

BRANCH: Final = "gh-pages"
LATEST: Final = "latest"
"""The alias of the newest release, to which the address without a version leads."""


def publish(site: Path, version: str, *, is_latest: bool) -> None:
    """Commit the site as a version to the branch of the repository in the current folder, without
    a checkout; replace the version if it exists. Nothing is pushed."""
    config = {"site_dir": str(site), "use_directory_urls": True}
    aliases = [LATEST] if is_latest else []
    with commands.deploy(
        config, version, aliases=aliases, update_aliases=True, branch=BRANCH, allow_empty=True
    ):
        pass
    released = any(LATEST in one.aliases for one in commands.list_versions(BRANCH))
    commands.set_default(LATEST if released else version, branch=BRANCH, allow_empty=True)
