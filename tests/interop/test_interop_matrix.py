"""Every version of the KCL beside us, in every way that shards can move: `make interop`."""

from __future__ import annotations

from typing import Final

import pytest

from tests.interop.report import Report
from tests.interop.scenarios import killed, relay, side_by_side, split_under_both
from tests.interop.scene import Scene
from tests.interop.starts import kcl, ours
from tests.support.kcl.jars import KclVersion

pytestmark = pytest.mark.interop

_VERSIONS: Final = pytest.mark.parametrize("version", list(KclVersion))

# KCL 2 has no graceful handoff: it takes a lease from its owner, as we do from KCL 2. Records that
# the owner has read since its last checkpoint are then read again: for each of a few such takes at
# most the records of one shard within a batch and, for us, within the second between two
# checkpoints.
_TAKEN: Final = {KclVersion.V2_7: 100, KclVersion.V3_1: 0, KclVersion.V3_5: 0}

# Records that a killed worker has read since its last checkpoint, of all its shards.
_KILLED: Final = 150


@_VERSIONS
def test_one_after_the_other(scene: Scene, report: Report, version: KclVersion) -> None:
    """Each is stopped gracefully, so that nothing comes twice."""
    seconds = relay(scene, [kcl(version), ours, kcl(version)])
    report.check(scene, seconds, duplicates=0)


@_VERSIONS
def test_shards_move_both_ways(scene: Scene, report: Report, version: KclVersion) -> None:
    seconds = side_by_side(scene, kcl(version), ours)
    report.check(scene, seconds, duplicates=_TAKEN[version])


@_VERSIONS
def test_a_split_under_both(scene: Scene, report: Report, version: KclVersion) -> None:
    seconds = split_under_both(scene, kcl(version), ours)
    report.check(scene, seconds, duplicates=_TAKEN[version])


@_VERSIONS
def test_we_go_on_when_the_kcl_is_killed(scene: Scene, report: Report, version: KclVersion) -> None:
    seconds = killed(scene, kcl(version), ours)
    report.check(scene, seconds, duplicates=_TAKEN[version] + _KILLED)


@_VERSIONS
def test_the_kcl_goes_on_when_we_are_killed(
    scene: Scene, report: Report, version: KclVersion
) -> None:
    seconds = killed(scene, ours, kcl(version))
    report.check(scene, seconds, duplicates=_TAKEN[version] + _KILLED)
