"""The guide to metrics, its alerts and the dashboard have the metrics that are published."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from operations.metrics.catalogue import METRICS
from tests.architecture.layers import ROOT

_GUIDE = (ROOT / "docs" / "guide" / "metrics.md").read_text(encoding="utf-8")
_DASHBOARD: Any = json.loads(
    (ROOT / "docs" / "guide" / "grafana-dashboard.json").read_text(encoding="utf-8")
)
_NAME = re.compile(r"\bssp_[a-z_]+")
_SELECTOR = re.compile(r"(ssp_[a-z_]+)\{([^}]*)\}")
_LABELS = {metric.name: set(metric.labels) for metric in METRICS}


def test_the_table_of_the_guide_has_every_metric() -> None:
    rows = re.findall(r"^\| `(ssp_\w+)` \|([^|]*)\| (\w+) \|", _GUIDE, re.MULTILINE)
    found = {name: (labels.strip(), kind) for name, labels, kind in rows}
    assert found == {m.name: (", ".join(m.labels), m.kind.value) for m in METRICS}


def _check(expressions: list[str]) -> set[str]:
    """Check the names and the labels of expressions in PromQL; return the names."""
    names = {name for text in expressions for name in _NAME.findall(text)}
    assert names <= _LABELS.keys()
    for text in expressions:
        for name, selector in _SELECTOR.findall(text):
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= _LABELS[name]
    return names


def test_the_dashboard_shows_every_metric() -> None:
    expressions = [one["expr"] for panel in _DASHBOARD["panels"] for one in panel["targets"]]
    assert _check(expressions) == _LABELS.keys()
    (variable,) = [one for one in _DASHBOARD["templating"]["list"] if one["name"] == "query"]
    assert _NAME.findall(variable["definition"]) == ["ssp_batch_rows"]


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


def test_the_alerts_of_the_guide_are_about_published_metrics() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", _GUIDE, re.DOTALL)
    (group,) = yaml.safe_load(text)["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
    assert _check([rule["expr"] for rule in group["rules"]])
