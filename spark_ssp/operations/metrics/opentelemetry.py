"""Metrics for OpenTelemetry, by its API only: the user's program brings an SDK and an exporter. The
names are those of Prometheus without `_total`, and the unit is part of the name, since exporters to
Prometheus append both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from spark_ssp.operations.metrics.catalogue import METRICS, Kind, Metric
from spark_ssp.operations.metrics.readings import Output, QueryStates

Callback = Callable[[CallbackOptions], Iterable[Observation]]


class OpenTelemetryOutput(Output):
    """Observable gauges and counters, which the SDK reads at its own interval. After `close` they
    have no values: the API cannot remove an instrument."""

    def __init__(self, states: QueryStates, provider: MeterProvider | None) -> None:
        """`provider`: by default, the global one."""
        self._states: QueryStates | None = states
        meter = (provider or get_meter_provider()).get_meter("spark_ssp")
        for metric in METRICS:
            create = (
                meter.create_observable_counter
                if metric.kind is Kind.COUNTER
                else meter.create_observable_gauge
            )
            observe: Callback = partial(self._observe, metric)
            create(metric.name.removesuffix("_total"), [observe], description=metric.help)

    def _observe(self, metric: Metric, _: CallbackOptions) -> list[Observation]:
        states = self._states
        if states is None:
            return []
        return [
            Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for found, labels, value in states.readings()
            if found is metric
        ]

    def close(self) -> None:
        """Return no further values."""
        self._states = None
