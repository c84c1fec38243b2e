"""Every benchmark at a size that takes a second or two, and the checks of its report."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from pyspark.sql import SparkSession

from benchmarks.kafka.memory import Shape
from benchmarks.leases.hand_overs import EVENTS
from benchmarks.support.report import Report
from benchmarks.targets import AIMS
from spark_ssp.testing.kafka import LocalKafka

Arguments = Mapping[str, Any]
"""Of a benchmark's `run`, by name."""

PURE: Final[Mapping[str, Arguments]] = {
    "planning.offset_size": {"parts": [50], "rounds": 1},
    "planning.shard_planning": {"shards": 400, "slots": [4], "rounds": 1},
    "planning.partition_planning": {"partitions": 400, "tasks": [8], "rounds": 1},
    "planning.pipeline_planning": {"operators": 80, "rounds": 1},
    "leases.lost_driver": {"drivers": [2], "leases": [20], "failover": [10.0], "rounds": 1},
    "kinesis.catch_up": {"limits": [2.0], "seconds": 10.0},
    "kinesis.aligned": {
        "records": [200],
        "megabytes": [1],
        "shards": 4,
        "minutes": 0.5,
        "per_second": [0.5, 75.0],
        "size": 4000,
    },
}
"""They need nothing."""

SERVED: Final[Mapping[str, Arguments]] = {
    "kafka.exactly_once": {
        "records": 500,
        "size": 200,
        "tasks": 2,
        "rounds": 1,
        "warm_up": 0,
    },
    "leases.agent": {"leases": [40], "failover": 2.0, "seconds": 2.0},
    "leases.writes": {"leases": [2], "failover": [1.5], "seconds": 3.0},
    "kinesis.planning": {"shards": [2], "slots": 1, "rounds": 1},
    "kinesis.sink": {"shards": 4, "records": 2_000, "size": 200, "rounds": 1, "seconds": 1.0},
    "kinesis.slow_link": {"rates": [4.0], "tasks": [2], "megabytes": 1.0},
    "leases.hand_overs": {
        "leases": 2,
        "rounds": 1,
        "failover": 1.0,
        "events": dict(islice(EVENTS.items(), 1)),
    },
}
"""They start services and workers by themselves."""

ON_SPARK: Final[Mapping[str, Arguments]] = {
    "kafka.bulk": {
        "records": 2_000,
        "sizes": [200],
        "partitions": [2],
        "rounds": 1,
        "warm_up": 0,
        "columns": ["value"],
    },
    "planning.start": {"rounds": 1, "warm_up": 0},
    "kafka.native": {
        "records": 2_000,
        "sizes": [200],
        "headers": [1],
        "partitions": 2,
        "rounds": 1,
        "warm_up": 0,
    },
    "kafka.memory": {
        "megabytes": 1,
        "partitions": 2,
        "batches": 1,
        "pause_s": 0.0,
        "shapes": [Shape(codec="zstd", size=1_000)],
    },
    "kafka.triggers": {
        "partitions": [1],
        "tasks": 1,
        "seconds": 0.2,
        "rounds": 1,
        "warm_up": 0,
    },
    "kafka.duplicates": {
        "records": 2_000,
        "size": 200,
        "partitions": 2,
        "shuffle": [2],
        "rounds": 1,
        "warm_up": 0,
    },
    "kinesis.backlog": {
        "shards": 1,
        "records": 1_000,
        "over": 1.0,
        "silence": 0.1,
        "rounds": 1,
    },
    "kinesis.catch_up_http": {"limits": [1.25], "seconds": 4.0, "clump": 1},
    "kinesis.metrics": {"shards": [2], "slots": 1, "seconds": 1.0},
    "kinesis.memory": {"gigabytes": 0.02, "size": 1_000, "by": "push"},
    "kinesis.neighbour": {"shards": 1, "seconds": 20.0, "rounds": 1},
    "kinesis.many_shards": {"shards": [2], "slots": 1, "batches": 2},
    "kinesis.reshard_at_scale": {"shards": [2], "slots": 1, "batches": 2},
    "kinesis.triggers": {"shards": [1], "slots": 1, "seconds": 0.5, "rounds": 1},
    "kinesis.bulk": {
        "shards": [2],
        "records": 20_000,
        "size": 200,
        "rounds": 1,
        "columns": ["data"],
    },
}
"""Arguments of each benchmark, without a session and other fixtures."""


MAY_BE_ZERO: Final = frozenset(
    {"cpu_ms_per_trigger", "driver_ms_per_shard", "service_cpu_ms_per_trigger", "throttled"}
)
"""Figures from a clock that ticks a hundred times a second, as little work may take no tick; and
the part of the records that a service refused, of which a slow machine sends too few."""

SIGNED: Final = frozenset({"growth", "above_floor_s"})
"""Slopes and differences: of small sizes on a busy machine they may fall."""

NOT_IDLE: Final = frozenset({"latency_ms_median", "latency_ms_p99"})
"""Figures that an idle stream does not have."""


def run_of(name: str) -> Callable[..., Report]:
    """A benchmark's `run`."""
    run: Callable[..., Report] = importlib.import_module(f"benchmarks.{name}").run
    return run


def run_on_spark(
    name: str, spark: SparkSession, kafka: LocalKafka, folder: Path, **arguments: Any
) -> Report:
    """With those of session, broker, folder and place for a picture that it takes; the picture is
    there then."""
    run = run_of(name)
    plot = folder / "plot.png"
    given = {"spark": spark, "kafka": kafka, "folder": folder, "plot": plot}
    taken = {word: given[word] for word in given if word in run.__annotations__}
    report = run(**taken, **arguments)
    assert "plot" not in taken or is_picture(plot)
    return report


def is_picture(path: Path) -> bool:
    """Return whether a PNG exists."""
    return path.read_bytes().startswith(b"\x89PNG\r\n")


class _ParsedError(Exception):
    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__()
        self.arguments = arguments


def parsed(command: str) -> argparse.Namespace:
    """Return the arguments that a benchmark's command line parses to, without running it."""
    python, option, module, *words = shlex.split(command)
    assert (python, option) == ("python", "-m")
    parse = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _ParsedError(parse(self, words))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(sys, "argv", [module, *words])
        with pytest.raises(_ParsedError) as caught:
            importlib.import_module(module).main()
    return caught.value.arguments


def check(report: Report, name: str, arguments: Arguments, folder: Path) -> None:
    """Check that every figure is present, also those of targets, and that the command repeats the
    run."""
    assert report.name == name
    assert report.rows
    assert len(report.figures) == len(report.rows)
    for figures in report.figures:
        assert figures
        idle = figures.get("mode") == "idle"
        found = {
            (word, at): number
            for word, part in figures.items()
            if not (idle and word in NOT_IDLE)
            for at, number in _numbers(part, word)
        }
        assert found
        wrong = {
            at: n
            for (word, at), n in found.items()
            if not (
                math.isfinite(n) and (n > 0 or word in SIGNED or (n == 0 and word in MAY_BE_ZERO))
            )
        }
        assert not wrong, wrong
        for aim in AIMS:
            if aim.benchmark == name:
                assert aim.row.keys() <= figures.keys()
                # Figures differ by mode: an idle stream has no latency.
                if aim.row.get("mode") in (None, figures.get("mode")):
                    assert all(map(math.isfinite, aim.values(figures)))
    modes = {aim.row["mode"] for aim in AIMS if aim.benchmark == name and "mode" in aim.row}
    assert modes <= {figures.get("mode") for figures in report.figures}
    assert shlex.split(report.command)[2] == f"benchmarks.{name}"
    understood = vars(parsed(report.command))
    for word in arguments.keys() & understood.keys():
        assert understood[word] == arguments[word], f"--{word} in {report.command}"
    written = json.loads(report.publish(folder).read_text(encoding="utf-8"))
    assert written["benchmark"] == name
    assert written["command"] == report.command
    assert written["machine"]["cores"] >= 1
    assert len(written["figures"]) == len(report.rows)


def _numbers(value: object, at: str) -> Iterator[tuple[str, float]]:
    """Yield every number in figures, with its path; missing values are skipped."""
    match value:
        case str() | bool():
            return
        case int() | float():
            yield at, value
        case Mapping():
            for word, part in value.items():
                yield from _numbers(part, f"{at}.{word}")
        case list() | tuple():
            assert value, at
            for number, part in enumerate(value):
                yield from _numbers(part, f"{at}[{number}]")
        case _:
            yield at, math.nan
