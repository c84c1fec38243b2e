"""The shortest proof that a lease table is compatible: the KCL reads, we continue, it continues."""

from __future__ import annotations

import pytest

from tests.interop.report import Report
from tests.interop.scenarios import relay
from tests.interop.scene import Scene
from tests.interop.starts import kcl, ours
from tests.interop.verdict import judge
from tests.support.kcl.jars import KclVersion


@pytest.mark.interop
def test_from_the_kcl_to_spark_and_back(scene: Scene, report: Report) -> None:
    """Each was stopped gracefully, so that nothing comes twice."""
    seconds = relay(scene, [kcl(KclVersion.V3_1), ours, kcl(KclVersion.V3_1)])
    verdict = judge(scene)
    report.add(seconds, verdict)
    verdict.check(duplicates=0)
