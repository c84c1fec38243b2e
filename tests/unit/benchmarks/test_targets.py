"""What is said of the figures of several runs: that they hold, fall short, or do not suffice."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.targets import AIMS, Aim, Run, below, main, read_run, table

AIM = Aim(
    subject="idle, for each shard",
    benchmark="kinesis.triggers",
    row={"shards": 16, "mode": "idle"},
    values=lambda row: row["each"],
    limit=below(2),
    unit=" ms",
)


def run(*values: float, **other: object) -> Run:
    """With that aim's row, changed by `other`, beside some that are none of its."""
    row = {"shards": 16, "mode": "idle", "each": list(values), "more": None} | other
    others: list[dict[str, object]] = [{"shards": 16, "mode": "busy", "each": [99.0]}, {}]
    return {"kinesis.triggers": [*others, row], "kafka.bulk": others}


LACKING = run(1.0, shards=1)


@pytest.mark.parametrize(
    ("runs", "told", "verdict"),
    [
        ([run(1.0), run(1.5), run(1.2)], "1.2 (1.0-1.5) ms", "holds"),
        ([run(1.0), run(1.5), run(9.0, 1.0, 1.2)], "1.2 (1.0-1.5) ms", "holds"),
        ([run(1.0), run(1.0), run(1.0), run(1.9)], "1.0 (1.0-1.9) ms", "holds"),
        ([run(1.0), run(1.0), run(2.0)], "1.0 (1.0-2.0) ms", "falls short in 1 of 3 runs"),
        ([run(1.0), run(9.0), LACKING], "5.0 (1.0-9.0) ms", "falls short in 1 of 3 runs"),
        ([run(1.0), LACKING, {}], "1.0 ms", "missing in 2 of 3 runs"),
        ([{}, {}, {}], "-", "missing in 3 of 3 runs"),
        ([run(1.0), run(1.0)], "1.0 (1.0-1.0) ms", "too few runs"),
        ([run(9.0)], "9.0 ms", "too few runs"),
        ([], "-", "too few runs"),
    ],
)
def test_an_aim_holds_if_each_of_three_runs_meets_it(
    runs: Sequence[Run], told: str, verdict: str
) -> None:
    assert table(runs, [AIM]).splitlines()[2:] == [
        f"| idle, for each shard: below 2 ms | {told} | {verdict} |"
    ]


def test_rounds_in_several_files_of_a_run_count_together() -> None:
    first, second = run(1.0, 1.0), run(9.0)
    both = {"kinesis.triggers": [*first["kinesis.triggers"], *second["kinesis.triggers"]]}
    assert AIM.measured([both]) == [1.0]


# --- The aims ------------------------------------------------------------------------------------


def bulk(ours: float, **theirs: float) -> dict[str, dict[str, list[float]]]:
    """Two rounds, the second on a machine half as fast."""
    return {"seconds": {name: [s, 2 * s] for name, s in {"ours": ours, **theirs}.items()}}


GOOD: Mapping[str, list[dict[str, Any]]] = {
    "kafka.bulk": [
        {
            "size": size,
            "partitions": partitions,
            **bulk(2, spark=2 * times, whole_ours=5, whole_spark=8),
        }
        for size, times in ((200, 1.5), (20, 1), (1_000, 1))
        for partitions in (4, 16)
    ],
    "planning.start": [
        {
            "source": source,
            "planned_s": [0.5, 0.89, 2.0],
            "above_floor_s": [0.1, 0.495, 0.9],
        }
        for source in ("kafka-ssp", "kinesis-ssp")
    ],
    "planning.offset_size": [{"of": "1,000 partitions", "reported_bytes": 39_999}],
    "kafka.duplicates": [
        {"records": 120_000, "shuffle": 2, "peer": "ours", "part_of_spark_rounds": [1.5, 1.5]},
        {"records": 120_000, "shuffle": 200, "peer": "ours", "part_of_spark_rounds": [9.0]},
    ],
    "kafka.exactly_once": [
        {"records": 60_000, "size": 200, "tasks": 4, "kept": [0.9, 0.8, 0.7]},
        {"records": 60_000, "size": 200, "tasks": 1, "kept": [0.1]},
    ],
    "kafka.triggers": [
        {"partitions": 4, "format": "ours", "part_of_spark_rounds": [0.9, 1.2, 1.3]},
        {"partitions": 64, "format": "ours", "part_of_spark_rounds": [3.0]},
        {"partitions": 64, "format": "ours, 4 tasks", "part_of_spark_rounds": [0.99]},
    ],
    "kinesis.bulk": [{"shards": shards, **bulk(5, parse=4, boto3=20)} for shards in (1, 16, 128)],
    "kinesis.neighbour": [
        {"mode": "poll", "kept": [0.1]},
        {"mode": "push", "kept": [0.9, 0.8, 0.7]},
    ],
    "kinesis.sink": [
        {
            "size": 200,
            "records_per_cpu_second": {"ours": [800.0, 880.0, 700.0], "boto3": [100.0] * 3},
            "throttled": 0.0199,
        }
    ],
    "kinesis.backlog": [
        {
            "shards": 4,
            "records": 200_000,
            "silence_s": 60.0,
            "batches": [2, 2, 3],
            "looks_per_shard": [12.0],
        }
    ],
    "kinesis.triggers": [
        {
            "shards": shards,
            "mode": mode,
            "driver_ms_per_shard": 1.99 if mode == "idle" else 50.0,
            "triggers_ms": triggers,
            "pure_ms": pure,
            "latency_ms_median": 1_990.0,
        }
        for shards, mode, triggers, pure in (
            *(
                (shards, "idle", [4_000.0, 4_990.0, 9_000.0], 64.9)
                for shards in (1, 16, 128, 1_000)
            ),
            (1_000, "busy", [1_000.0, 1_490.0, 9_000.0], 148.0),
            (10_000, "idle", [1_000.0, 5_980.0, 9_000.0], 600.0),
        )
    ],
    "leases.writes": [
        {
            "leases": 1_000,
            "failover_s": 10.0,
            "load": load,
            "agent_cpu_ms_a_second": cpu,
            "calls_a_minute": {"UpdateItem": 6_000.0},
            "exchange_ms": exchange,
        }
        for load, cpu, exchange in (("idle", 210.0, 40.0), ("busy", 220.0, 46.0))
    ],
}


_GROWING = {
    "agent_cpu_ms_a_second",
    "driver_ms_per_shard",
    "exchange_ms",
    "latency_ms_median",
    "pure_ms",
    "reported_bytes",
    "throttled",
}


def worse(figures: dict[str, Any]) -> dict[str, Any]:
    """A row that meets none of the aims any more."""
    changed = dict(figures)
    for word, value in figures.items():
        if word == "seconds":
            ours = [name for name in value if name.endswith("ours")]
            changed[word] = value | {name: [1.02 * s for s in value[name]] for name in ours}
        elif word == "records_per_cpu_second":
            changed[word] = value | {"ours": [0.98 * rate for rate in value["ours"]]}
        elif word in {"part_of_spark_rounds", "planned_s", "above_floor_s"}:
            changed[word] = [1.02 * part for part in value]
        elif word in _GROWING:
            changed[word] = 1.02 * value
        elif word in {"batches", "looks_per_shard"}:
            changed[word] = [1.02 * number for number in value]
        elif word == "kept":
            changed[word] = [0.99 * part for part in value]
        elif word == "triggers_ms":
            changed[word] = [1.01 * ms for ms in value]
    return changed


def verdicts(text: str) -> list[str]:
    return [line.split("|")[3].strip() for line in text.splitlines()[2:]]


def test_every_aim_is_met_at_its_limit_and_by_nothing_worse() -> None:
    assert verdicts(table([GOOD] * 3)) == ["holds"] * len(AIMS)
    bad = {name: [worse(row) for row in rows] for name, rows in GOOD.items()}
    assert verdicts(table([GOOD, GOOD, bad])) == ["falls short in 1 of 3 runs"] * len(AIMS)


def test_the_aims_differ_and_all_are_tried_here() -> None:
    assert len({aim.text for aim in AIMS}) == len(AIMS)
    assert {aim.benchmark for aim in AIMS} == GOOD.keys()


# --- The command ---------------------------------------------------------------------------------


def write(folder: Path, name: str, benchmark: str, rows: object) -> None:
    folder.mkdir(exist_ok=True)
    document = {"benchmark": benchmark, "command": "", "figures": rows}
    (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def test_the_command_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        for number, (name, rows) in enumerate(GOOD.items()):
            write(folder, f"{name}-{number}", name, rows)
        write(folder, "kafka_bulk-again", "kafka.bulk", GOOD["kafka.bulk"])
        write(folder, "planning.offset_size", "planning.offset_size", [{"parts": 7}])
    assert len(read_run(folders[0])["kafka.bulk"]) == 2 * len(GOOD["kafka.bulk"])
    monkeypatch.setattr(sys, "argv", ["targets", *map(str, folders)])
    main()
    assert capsys.readouterr().out.strip() == table([GOOD] * 3)


def test_a_folder_without_files_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["targets", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert f"no JSON files in {tmp_path}" in capsys.readouterr().err
