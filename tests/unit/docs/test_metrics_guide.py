"""The guide to metrics, the alert rules and the dashboard have the metrics that are published."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from spark_ssp.operations.metrics.catalogue import METRICS
from spark_ssp.operations.metrics.publish import publish_metrics
from tests.architecture.layers import ROOT
from tests.support.guides import blocks
from tests.support.operations.metrics import LABELS, parse, result_labels, selectors

_FOLDER = ROOT / "docs" / "guide"
_GUIDE = (_FOLDER / "metrics.md").read_text(encoding="utf-8")
_DASHBOARD: Any = json.loads((_FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
_TARGETS = [target for panel in _DASHBOARD["panels"] for target in panel["targets"]]
(_GROUP,) = yaml.safe_load((_FOLDER / "prometheus-alerts.yaml").read_text())["groups"]
_RULES: list[dict[str, Any]] = _GROUP["rules"]
_SCENARIOS: Any = yaml.safe_load(
    (ROOT / "tests" / "spark" / "operations" / "alert_scenarios.yaml").read_text(encoding="utf-8")
)


def test_the_table_of_the_guide_has_every_metric() -> None:
    rows = re.findall(r"^\| `(ssp_\w+)` \|([^|]*)\| (\w+) \|", _GUIDE, re.MULTILINE)
    found = {name: (labels.strip(), kind) for name, labels, kind in rows}
    assert found == {m.name: (", ".join(m.labels), m.kind.value) for m in METRICS}


def test_the_table_of_arguments_is_the_signature() -> None:
    (table,) = re.findall(r"^\| argument \|.*\n\| --- .*\n((?:\|.*\n)+)", _GUIDE, re.MULTILINE)
    arguments = list(inspect.signature(publish_metrics).parameters)
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == arguments[1:]


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
    named = set(re.findall(r"\bssp_[a-z_]+", variable["definition"]))
    assert named == {"ssp_query_verdict", "ssp_batch_rows"}


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


def test_every_alert_fires_in_a_scenario_of_published_metrics() -> None:
    fired = set()
    for scenario in _SCENARIOS["tests"]:
        for one in scenario["input_series"]:
            (selector,) = selectors(parse(one["series"]))
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels == LABELS[selector.name or ""] | {"instance", "job"}
        for test in scenario["promql_expr_test"]:
            for sample in test["exp_samples"]:
                fired |= set(re.findall(r'alertname="(\w+)"', sample["labels"]))
    assert fired == {rule["alert"] for rule in _RULES}


def test_the_query_for_keda_is_about_a_published_metric() -> None:
    (scaled,) = (yaml.safe_load(block) for block in blocks(_FOLDER / "metrics.md", "yaml"))
    for trigger in scaled["spec"]["triggers"]:
        tree = parse(trigger["metadata"]["query"])
        assert result_labels(tree) == frozenset(), "KEDA needs a single value"
        (selector,) = selectors(tree)
        assert selector.name in LABELS


def test_operands_without_common_labels_are_found() -> None:
    with pytest.raises(AssertionError, match="no series match"):
        result_labels(parse("max by (query) (ssp_slots) > 1 and delta(ssp_slots[30m]) > 0"))


def test_the_guide_lists_every_alert() -> None:
    rows = re.findall(r"^\| `(Ssp\w+)` \| (\w+) \|", _GUIDE, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in _RULES]
