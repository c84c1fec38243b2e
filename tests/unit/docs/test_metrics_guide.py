"""The guide to metrics, the alert rules and the dashboard have the metrics that are published."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from spark_ssp.operations.metrics.catalogue import METRICS
from tests.architecture.layers import ROOT
from tests.support.operations.metrics import LABELS, parse, result_labels, selectors

_FOLDER = ROOT / "docs" / "guide"
_GUIDE = (_FOLDER / "metrics.md").read_text(encoding="utf-8")
_DASHBOARD: Any = json.loads((_FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
_TARGETS = [target for panel in _DASHBOARD["panels"] for target in panel["targets"]]
(_GROUP,) = yaml.safe_load((_FOLDER / "prometheus-alerts.yaml").read_text())["groups"]
_RULES: list[dict[str, Any]] = _GROUP["rules"]


def test_the_table_of_the_guide_has_every_metric() -> None:
    rows = re.findall(r"^\| `(ssp_\w+)` \|([^|]*)\| (\w+) \|", _GUIDE, re.MULTILINE)
    found = {name: (labels.strip(), kind) for name, labels, kind in rows}
    assert found == {m.name: (", ".join(m.labels), m.kind.value) for m in METRICS}


def _check(expression: str, used: Iterable[str]) -> set[str]:
    """Check the names and labels of an expression, and that its result has the labels that a text
    uses; return the names of its metrics."""
    tree = parse(expression)
    names = set()
    for selector in selectors(tree):
        assert selector.name in LABELS
        assert {one.name for one in selector.matchers.matchers} <= LABELS[selector.name]
        names.add(selector.name)
    labels = result_labels(tree)
    assert labels is not None
    assert set(used) <= labels
    return names


def test_the_dashboard_shows_every_metric() -> None:
    names = [_check(one["expr"], re.findall(r"{{(\w+)}}", one["legendFormat"])) for one in _TARGETS]
    assert set().union(*names) == LABELS.keys()
    (variable,) = [one for one in _DASHBOARD["templating"]["list"] if one["name"] == "query"]
    assert re.findall(r"\bssp_[a-z_]+", variable["definition"]) == ["ssp_batch_rows"]


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in _DASHBOARD["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


@pytest.mark.parametrize("rule", _RULES, ids=[rule["alert"] for rule in _RULES])
def test_an_alert_is_about_published_metrics(rule: dict[str, Any]) -> None:
    texts = " ".join(rule["annotations"].values())
    assert _check(rule["expr"], re.findall(r"\$labels\.(\w+)", texts))
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_operands_without_common_labels_are_found() -> None:
    with pytest.raises(AssertionError, match="no series match"):
        result_labels(parse("max by (query) (ssp_slots) > 1 and delta(ssp_slots[30m]) > 0"))


def test_the_guide_lists_every_alert() -> None:
    rows = re.findall(r"^\| `(Ssp\w+)` \| (\w+) \|", _GUIDE, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in _RULES]
