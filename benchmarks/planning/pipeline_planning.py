"""Planning pipelines of many operators: describing, checking, planning and explaining them.

    python -m benchmarks.planning.pipeline_planning [--operators 1000] [--rounds 5]

In this process, without services: each stream has eight partitions, except intermediate ones, whose
counts are inferred. The graphs: `chain`, operator after operator; `stages`, every second one a
partition_by; `diamonds`, a line that parts in two and comes together again, over and over; `joins`,
a line that is joined with one stream after the other; `repartitioned joins`, the same with every
stream but the first repartitioned before; `pairs`, joins of two streams each; `tables`, each with a
line that fills it and one that joins with it. The bare loop sorts the same graph topologically, by
the standard library's `graphlib`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, Final

from benchmarks.support.growth import Work, add_grown, columns, draw, grown
from benchmarks.support.report import OUTPUT, Report
from spark_ssp.planner import Pipeline
from spark_ssp.planner.explain import explain
from spark_ssp.planner.graph.operators import Graph, SystemName, upstreams
from spark_ssp.planner.graph.systems import observe
from spark_ssp.planner.planning.planning import make_plan

NAME: Final = "bench"
PARTITIONS: Final = 8


class Counts:
    """An admin for which every stream exists except the intermediate ones."""

    def partition_count(self, system: SystemName, stream: str) -> int | None:
        return None if stream.startswith(f"{NAME}-") else PARTITIONS


def same(frame: Any) -> Any:
    """A transform; planning does not call it."""
    raise AssertionError(f"planning called a function with {frame!r}")


def both(left: Any, right: Any) -> Any:
    """A join; planning does not call it."""
    raise AssertionError(f"planning called a function with {left!r} and {right!r}")


# --- Graphs --------------------------------------------------------------------------------------


def chain(operators: int) -> Pipeline:
    """Transforms one after another."""
    pipeline = Pipeline(NAME)
    line = pipeline.input("kafka", "in")
    for _ in range(operators - 2):
        line = line.transform(same)
    line.output("kafka", "out")
    return pipeline


def stages(operators: int) -> Pipeline:
    """Stage after stage."""
    pipeline = Pipeline(NAME)
    line = pipeline.input("kafka", "in")
    for number in range((operators - 2) // 2):
        line = line.transform(same).partition_by("key", name=f"stage-{number}")
    line.output("kafka", "out")
    return pipeline


def diamonds(operators: int) -> Pipeline:
    """2 ** (operators / 3) ways from the input to the output."""
    pipeline = Pipeline(NAME)
    line = pipeline.input("kafka", "in")
    for _ in range((operators - 2) // 3):
        line = line.filter("amount > 0").merge(line.filter("amount < 0"))
    line.output("kafka", "out")
    return pipeline


def joins(operators: int) -> Pipeline:
    """One stream after another joins the line."""
    pipeline = Pipeline(NAME)
    line = pipeline.input("kafka", "in")
    for number in range((operators - 2) // 2):
        line = line.join(pipeline.input("kafka", f"in-{number}"), both)
    line.output("kafka", "out")
    return pipeline


def repartitioned_joins(operators: int) -> Pipeline:
    """The same, with all counts but the first inferred."""
    pipeline = Pipeline(NAME)
    line = pipeline.input("kafka", "in")
    for number in range((operators - 2) // 3):
        line = line.join(pipeline.input("kafka", f"in-{number}").partition_by("key"), both)
    line.output("kafka", "out")
    return pipeline


def pairs(operators: int) -> Pipeline:
    """Joins that have nothing to do with each other."""
    pipeline = Pipeline(NAME)
    for number in range(operators // 4):
        left, right = (pipeline.input("kafka", f"{side}-{number}") for side in ("left", "right"))
        left.join(right, both).output("kafka", f"out-{number}")
    return pipeline


def tables(operators: int) -> Pipeline:
    """Tables that have nothing to do with each other."""
    pipeline = Pipeline(NAME)
    for number in range(operators // 5):
        table = pipeline.table(f"table-{number}", key="key")
        table.side_input(pipeline.input("kafka", f"rows-{number}").transform(same))
        joined = pipeline.input("kafka", f"in-{number}").join_table(table)
        joined.output("kafka", f"out-{number}")
    return pipeline


GRAPHS: Final[Mapping[str, Callable[[int], Pipeline]]] = {
    "chain": chain,
    "stages": stages,
    "diamonds": diamonds,
    "joins": joins,
    "repartitioned joins": repartitioned_joins,
    "pairs": pairs,
    "tables": tables,
}


# --- Steps ---------------------------------------------------------------------------------------


def steps(make: Callable[[int], Pipeline], operators: int) -> dict[str, Work]:
    """Return the measured steps: each works on the result of the one before."""
    pipeline = make(operators)
    graph = pipeline.build()
    observed = observe(graph, Counts())
    plan = make_plan(graph, observed)
    return {
        "describe": partial(make, operators),
        "check": pipeline.build,
        "plan": partial(make_plan, graph, observed),
        "plan again": partial(make_plan, graph, observed, recorded=plan),
        "explain": partial(explain, graph, plan),
    }


def bare(make: Callable[[int], Pipeline], operators: int) -> Work:
    """The bare loop."""
    return partial(_sort, make(operators).graph)


def _sort(graph: Graph) -> None:
    sorter = TopologicalSorter({o.name: upstreams(o) for o in graph.operators})
    for _ in sorter.static_order():
        pass


def run(*, operators: int, rounds: int) -> Report:
    """Measure graphs of up to `operators` operators."""
    report = Report(
        name="planning.pipeline_planning",
        command=f"python -m benchmarks.planning.pipeline_planning --operators {operators} "
        f"--rounds {rounds}",
        columns=columns("graph: step", "a bare sort"),
    )
    for name, make in GRAPHS.items():
        found = grown(
            partial(steps, make),
            partial(bare, make),
            size=operators,
            rounds=rounds,
        )
        add_grown(report, name, found)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operators", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    report = run(operators=arguments.operators, rounds=arguments.rounds)
    report.publish()
    draw(report, OUTPUT / f"{report.name}.png")


if __name__ == "__main__":
    main()
