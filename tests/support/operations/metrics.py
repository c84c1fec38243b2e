"""Scrapes of the metrics of a running query, and the labels of expressions in PromQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

from spark_ssp.operations.metrics.catalogue import METRICS

_DEADLINE_S = 240
_POLL_S = 0.05

LabelValues = frozenset[tuple[str, str]]


class Scrape:
    """The values of one scrape."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            connection.request("GET", address.path)
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        self._values: dict[str, dict[LabelValues, float]] = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                self._values.setdefault(one.name, {})[frozenset(one.labels.items())] = one.value

    def values(self, name: str, **labels: str) -> dict[LabelValues, float]:
        """Return the series of a metric that have these labels."""
        wanted = labels.items()
        return {key: n for key, n in self._values.get(name, {}).items() if key >= wanted}

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of these series; None if there are none."""
        found = self.values(name, **labels)
        return sum(found.values()) if found else None


class Scrapes:
    """All scrapes of an endpoint."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.all: list[Scrape] = []

    def wait_until(self, reached: Callable[[Scrape], bool], what: str) -> Scrape:
        """Scrape until a condition is true."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            self.all.append(Scrape(self._url))
            if reached(self.all[-1]):
                return self.all[-1]
            assert time.monotonic() < deadline, f"not within {_DEADLINE_S} s: {what}"
            time.sleep(_POLL_S)


Labels = frozenset[str]

LABELS: Final = {metric.name: frozenset(metric.labels) for metric in METRICS}
_OF_SCRAPES: Final = frozenset({"instance", "job"})
_VARIABLES: Final = {"$__rate_interval": "5m", "$__range": "1h"}
"""Grafana's variables where PromQL has a duration."""


def parse(text: str) -> promql.Expr:
    """Parse an expression of a rule or a panel. Raises ValueError."""
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    return promql.parse(text)


def selectors(expression: promql.Expr) -> Iterator[promql.VectorSelector]:
    """Yield the selectors of metrics."""
    found: list[promql.VectorSelector] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(expression, visit)
    yield from found


def result_labels(expression: Any) -> Labels | None:
    """Return the labels of the series of a result; None for a number. Fails for an operator that
    would match no series: operands match by all of their labels, unless `on` names some."""
    match expression:
        case promql.NumberLiteral():
            return None
        case promql.VectorSelector():
            return LABELS[expression.name or ""] | _OF_SCRAPES
        case promql.MatrixSelector():
            return result_labels(expression.vector_selector)
        case promql.AggregateExpr(modifier=modifier, expr=inner, param=None):
            by = frozenset(modifier.labels if modifier else ())
            assert by <= (result_labels(inner) or frozenset()), expression.prettify()
            return by
        case promql.AggregateExpr() | promql.ParenExpr():  # topk
            return result_labels(expression.expr)
        case promql.Call(func=function) if function.name == "absent":
            return frozenset()
        case promql.Call(args=arguments):
            return next(iter([one for each in arguments if (one := result_labels(each))]), None)
        case promql.BinaryExpr():
            return _matched(expression)
    raise AssertionError(f"unexpected in an expression: {expression!r}")


def _matched(operator: promql.BinaryExpr) -> Labels | None:
    left, right = result_labels(operator.lhs), result_labels(operator.rhs)
    if left is None or right is None:
        return left if right is None else right
    matching = operator.modifier.matching if operator.modifier else None
    if matching is None:
        assert left == right, f"no series match: {operator.prettify()}"
    else:
        assert frozenset(matching.labels) <= left & right, operator.prettify()
    return left
