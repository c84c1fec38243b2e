"""The planted defects are still defects of the product's code (`make defects` plants them)."""

from __future__ import annotations

import pytest

from tests.support.planted_defects import DEFECTS, ROOT, SUITES, Defect


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_the_text_to_replace_is_there_once(defect: Defect) -> None:
    assert defect.old != defect.new
    assert (ROOT / defect.file).read_text(encoding="utf-8").count(defect.old) == 1


def test_every_suite_is_there_and_has_a_defect_that_it_must_find() -> None:
    assert {defect.kind for defect in DEFECTS} == set(SUITES)
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)
    for suite in SUITES.values():
        for path in suite:
            assert (ROOT / path).exists()


def test_the_guide_has_their_number() -> None:
    guide = (ROOT / "docs" / "guide" / "evidence.md").read_text(encoding="utf-8")
    assert f"| {len(DEFECTS)} defects planted into" in guide
