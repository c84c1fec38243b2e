"""The labels of expressions in PromQL, by the catalogue of metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import promql_parser as promql

from spark_ssp.operations.metrics.catalogue import METRICS

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
    """Return the labels of the series of a result; None for a number.

    Fails for an operator that would match no series: operands match by all of their labels, unless
    `on` names some.
    """
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
