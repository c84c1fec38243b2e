"""Small runs of every benchmark, and the checks of their reports."""

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

from benchmarks.catalogue import CATALOGUE
from benchmarks.leases.hand_overs import EVENTS
from benchmarks.support.report import Report
from benchmarks.targets import AIMS
from spark_ssp.testing.kafka import LocalKafka

PURE: Final = (
    "planning.offset_size",
    "planning.shard_planning",
    "planning.partition_planning",
    "planning.pipeline_planning",
    "leases.lost_driver",
    "kinesis.catch_up",
    "kinesis.aligned",
)
"""They need nothing."""

SERVED: Final = (
    "kafka.exactly_once",
    "leases.agent",
    "leases.writes",
    "kinesis.planning",
    "kinesis.sink",
    "kinesis.slow_link",
    "leases.hand_overs",
)
"""They start services and workers by themselves."""

ON_SPARK: Final = (
    "kafka.bulk",
    "planning.start",
    "kafka.native",
    "kafka.memory",
    "kafka.triggers",
    "kafka.duplicates",
    "kinesis.backlog",
    "kinesis.catch_up_http",
    "kinesis.metrics",
    "kinesis.memory",
    "kinesis.neighbour",
    "kinesis.many_shards",
    "kinesis.reshard_at_scale",
    "kinesis.triggers",
    "kinesis.bulk",
)
"""They take a session, a broker or a folder."""

_FEWER: Final[Mapping[str, Mapping[str, Any]]] = {
    "leases.hand_overs": {"events": dict(islice(EVENTS.items(), 1))}
}
"""Arguments of `run` that no command has."""


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


def arguments_of(name: str) -> dict[str, Any]:
    """Return the arguments of a benchmark's `run` in a small run, without a session and other
    fixtures."""
    (small,) = (one.small for one in CATALOGUE if one.name == name)
    return {**vars(parsed(f"python -m benchmarks.{name} {small}")), **_FEWER.get(name, {})}


def run_on_spark(name: str, spark: SparkSession, kafka: LocalKafka, folder: Path) -> Report:
    """With those of session, broker, folder and place for a picture that it takes; the picture is
    there then."""
    run = run_of(name)
    plot = folder / "plot.png"
    given = {"spark": spark, "kafka": kafka, "folder": folder, "plot": plot}
    taken = {word: given[word] for word in given if word in run.__annotations__}
    report = run(**taken, **arguments_of(name))
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


def check(report: Report, name: str, folder: Path) -> None:
    """Check that every figure of a small run is present, also those of targets, and that the
    command repeats the run."""
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
    arguments, understood = arguments_of(name), vars(parsed(report.command))
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
