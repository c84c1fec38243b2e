"""A query that is moved from one format to the other must not lose an option without an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spark_ssp.common.options.spec import Option, OptionTable, read_options
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS

_OTHER: Mapping[str, tuple[OptionTable, OptionTable]] = {
    "kinesis-ssp": (KINESIS_OPTIONS, KAFKA_OPTIONS),
    "kafka-ssp": (KAFKA_OPTIONS, KINESIS_OPTIONS),
}


def _cases() -> list[Any]:
    return [
        pytest.param(own, spec, id=f"{source}:{spec.name}")
        for source, (own, other) in _OTHER.items()
        for spec in other.options
        if spec.name not in {one.name for one in own.options}
    ]


@pytest.mark.parametrize(("table", "foreign"), _cases())
def test_every_option_of_the_sister_format_is_refused_with_a_way_out(
    table: OptionTable, foreign: Option[Any]
) -> None:
    (problem,) = read_options(table, {foreign.name.upper(): "Canary"}).problems
    assert problem.option == foreign.name
    assert foreign.sister
    assert problem.next_step == f"remove it: {foreign.sister}"
    assert "that this source cannot obey" in problem.found
    assert "Canary" not in str(problem)


@pytest.mark.parametrize(("source", "least"), [("kinesis-ssp", 20), ("kafka-ssp", 30)])
def test_the_option_to_use_instead_exists(source: str, least: int) -> None:
    own, other = _OTHER[source]
    names = {spec.name for spec in own.options}
    foreign = {spec.name for spec in other.options} - names
    advice = {o.name: o.advice for o in own.all_foreign() if o.refused and o.name in foreign}
    assert len(advice) >= least
    for name, text in advice.items():
        words = {word.strip(",;:.") for word in text.split()}
        if text.startswith("use "):
            assert words & names, name
