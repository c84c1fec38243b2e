"""The protocol of the outputs of metrics, and the error of a wrong argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.operations.metrics.catalogue import Metric
from spark_ssp.operations.model.snapshot import QuerySnapshot


class Output(Protocol):
    """A destination of metrics. One that is asked for values reads them from `QueryStates`."""

    def publish(self, snapshot: QuerySnapshot, counts: Mapping[Metric, int]) -> None:
        """Publish a query's state after a trigger. `counts`: its counters, since its start."""

    def close(self) -> None:
        """Free its resources."""


def invalid_argument(
    name: str, *, found: str, expected: str, next_step: str = "correct the argument"
) -> InvalidOptionsError:
    """Return the error for an argument of `publish_metrics`."""
    problem = OptionProblem(option=name, found=found, expected=expected, next_step=next_step)
    return InvalidOptionsError("publish_metrics", [problem])
