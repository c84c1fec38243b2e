"""`spark-ssp checkpoint` on checkpoints of this and of earlier versions, and on folders that are
none."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.common.times import time_text
from spark_ssp.kafka_source.model import offset as kafka_offset
from spark_ssp.kinesis_source.model import offset as kinesis_offset
from tests.support.operations.command import WIDTHS, check_output, run

TESTS = Path(__file__).parents[3]
CHECKPOINTS = TESTS / "golden" / "checkpoints"
OUTPUTS = Path(__file__).parent / "outputs"


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", ["kinesis", "kafka"])
def test_output(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKPOINTS)
    found = run("checkpoint", name, columns=columns)
    assert found.code == 0
    check_output(OUTPUTS / f"checkpoint-{name}-{columns}.txt", found.out)
    assert max(map(len, found.out.splitlines())) <= columns


def _committed(folder: Path, offset: str) -> str:
    """Write a checkpoint of one committed batch; return its folder."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"4b8a7c1e"}')
    (folder / "offsets" / "0").write_text(f'v1\n{{"batchTimestampMs":1795398466156}}\n{offset}\n')
    (folder / "commits" / "0").write_text("v1\n{}\n")
    return folder.name


@pytest.mark.parametrize("columns", WIDTHS)
def test_output_of_every_kind_of_offset(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With shards that wait, have ended or left, topics without ids. This version writes the same
    offsets as it reads."""
    monkeypatch.chdir(tmp_path)
    texts = []
    for path in sorted((TESTS / "golden").glob("*offset_v1_*.json")):
        text = path.read_text(encoding="utf-8").strip()
        found = run("checkpoint", _committed(tmp_path / path.stem, text), columns=columns)
        assert (found.code, found.err) == (0, ""), path.stem
        texts.append(found.out)
        offset = json.loads(text)
        model: Any = kinesis_offset if kinesis_offset.is_offset(offset) else kafka_offset
        now = json.dumps(model.encode(model.decode(offset)))
        _committed(tmp_path / "now" / path.stem, now)
        with contextlib.chdir(tmp_path / "now"):
            assert run("checkpoint", path.stem, columns=columns) == found
    check_output(OUTPUTS / f"checkpoint-offsets-{columns}.txt", "\n".join(texts))


def test_the_shards_of_a_packed_offset_are_shown(tmp_path: Path) -> None:
    path = TESTS / "golden" / "offset_v2_resharded.json"
    text = path.read_text(encoding="utf-8").strip()
    found = run("checkpoint", str(tmp_path / _committed(tmp_path / path.stem, text)))
    assert (found.code, found.err) == (0, "")
    for number in range(302):
        assert f"shardId-{number:012d}" in found.out


@pytest.mark.parametrize("planned_ms", [(1 << 63) - 1, 1_795_398_466_156_000, 10**23])
def test_a_batch_of_any_time_is_shown(planned_ms: int, copy: Path) -> None:
    """As another program, or a clock in microseconds, may have written it."""
    for file in (copy / "offsets").iterdir():
        time = f'"batchTimestampMs":{planned_ms}'
        file.write_text(re.sub(r'"batchTimestampMs":\d+', time, file.read_text()))
    found = run("checkpoint", str(copy))
    assert (found.code, found.err) == (0, "")
    assert time_text(planned_ms) in found.out
    assert run("checkpoint", str(copy), "--json").document()["plannedAtMs"] == planned_ms


def test_a_pipe_gets_whole_sequence_numbers_and_no_colours() -> None:
    found = run("checkpoint", str(CHECKPOINTS / "kinesis"), environment={"COLUMNS": ""})
    assert "49646437577130777162115407029007359695905360800546553874" in found.out
    assert "\x1b" not in found.out
    assert "…" not in found.out


def test_json() -> None:
    kinesis = run("checkpoint", str(CHECKPOINTS / "kinesis"), "--json").document()
    assert (kinesis["committedBatch"], kinesis["plannedBatch"]) == (1, 2)
    (source,) = kinesis["sources"]
    assert (source["format"], source["slots"]) == ("kinesis-ssp", 3)
    assert [(row["slot"], row["shard"][-1], row["state"]) for row in source["shards"]] == [
        (0, "2", "replay"),
        (1, "1", "unchanged"),
        (2, "3", "replay"),
    ]
    kafka = run("checkpoint", str(CHECKPOINTS / "kafka"), "--json").document()
    rows = kafka["sources"][0]["partitions"]
    (topic,) = kafka["sources"][0]["topics"].values()
    assert topic["id"]
    assert [(row["committed"], row["planned"]) for row in rows] == [
        (15, 30),
        (15, 30),
        (0, 0),
        (0, 0),
    ]


def test_the_starting_offsets_of_a_kafka_checkpoint() -> None:
    found = run("checkpoint", str(CHECKPOINTS / "kafka"), "--as-starting-position")
    options = found.document()
    assert options["subscribe"] == "older-orders"
    assert json.loads(options["startingOffsets"]) == {"older-orders": {"0": 15, "1": 15}}
    assert "--bootstrap-servers" in found.err


@pytest.mark.parametrize(
    ("committed", "planned", "left_out"),
    [
        ({"orders": {"0": 7}}, {"orders": {"0": 9}}, []),
        ({"orders": {"0": 7}}, {"orders": {"0": 9, "1": 2}}, []),  # as the next note says
        ({"orders": {"0": 7}}, {"orders": {"0": 9}, "clicks": {"0": 2, "1": 2}}, ["clicks"]),
        ({"orders": {"1": 7}}, {"orders": {"1": 9, "3": 2}, "a": {"3": 1}}, ["a", "orders-3"]),
    ],
)
def test_topics_that_only_the_planned_batch_has_are_named(
    committed: Any, planned: Any, left_out: list[str], tmp_path: Path
) -> None:
    """The committed batch has no position of them: the other query would not read them."""
    _committed(tmp_path / "c", json.dumps(committed))
    (tmp_path / "c" / "offsets" / "1").write_text(f"v1\n{{}}\n{json.dumps(planned)}\n")
    found = run("checkpoint", str(tmp_path / "c"), "--as-starting-position")
    assert found.code == 0
    assert json.loads(found.document()["startingOffsets"]) == committed
    notes = [line for line in found.err.splitlines() if "planned" in line]
    assert [line.removeprefix("spark-ssp: ").split()[0] for line in notes] == left_out
    (source,) = run("checkpoint", str(tmp_path / "c"), "--json").document()["sources"]
    assert source["onlyPlanned"] == left_out


def test_a_partition_starts_after_an_offset_and_nothing_else() -> None:
    arguments = ("checkpoint", str(CHECKPOINTS / "kafka"), "--as-starting-position", "--after")
    last = (1 << 63) - 1
    found = run(*arguments, f"older-orders-0:{last - 1}").document()
    assert json.loads(found["startingOffsets"]) == {"older-orders": {"0": last, "1": 15}}
    for position in ("50/3", str(last), str(10**26)):
        refused = run(*arguments, f"older-orders-0:{position}")
        assert (refused.code, refused.out) == (2, "")
        assert f"--after: found older-orders-0:{position}" in refused.err


# --- Several sources, other packages --------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkpoint to change."""
    return Path(shutil.copytree(CHECKPOINTS / "kafka", tmp_path / "copy"))


def _add_source(checkpoint: Path, line: str) -> None:
    for file in (checkpoint / "offsets").iterdir():
        file.write_text(f"{file.read_text().rstrip()}\n{line}\n")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('{"logOffset":3}', "files, read by Spark"),
        ('{"sourceVersion":1,"reservoirId":"x","reservoirVersion":3}', "Delta Lake"),
        ('{"metadata":{"streamName":"s","batchId":"3"}}', "awslabs' or Qubole's"),
        ("17", "rate or memory source"),
        ('{"x":{"y":"z"}}', "another package"),
        ("-", "a source without an offset"),
    ],
)
def test_sources_of_other_packages_are_named(copy: Path, line: str, name: str) -> None:
    _add_source(copy, line)
    found = run("checkpoint", str(copy))
    assert found.code == 0
    assert "source 0: kafka-ssp" in found.out
    assert name in found.out.splitlines()[-1]
    assert run("checkpoint", str(copy), "--as-starting-position").code == 0
    other = run("checkpoint", str(copy), "--as-starting-position", "--source", "1")
    assert (other.code, other.out) == (2, "")


_AFTER = '{"iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"%s"}'


@pytest.mark.parametrize(
    ("batch", "start", "end", "found"),
    [
        ('"../../../elsewhere"', "{}", "{}", "an offset of another format"),
        ('["4"]', "{}", "{}", "an offset of another format"),
        ("4", '"TRIM_HORIZON"', "{}", "an offset of another format"),
        ("4", "{}", '["SHARD_END"]', "no JSON object"),
        ("4", "{}", "{", "no JSON object"),
        ("4", "{}", _AFTER % ("9" * 5_000), "the position AFTER_SEQUENCE_NUMBER 999"),
        (
            "4",
            "{}",
            '{"iteratorType":"AT_TIMESTAMP","iteratorPosition":"%s"}' % ("9" * 40),
            "the position AT_TIMESTAMP 999",
        ),
    ],
)
def test_positions_of_awslabs_connector_that_are_none(
    tmp_path: Path, batch: str, start: str, end: str, found: str
) -> None:
    text = f'{{"metadata":{{"streamName":"s","batchId":{batch}}},"shardId-000000000000":{start}}}'
    _committed(tmp_path / "c", text)
    for folder in (tmp_path / "c" / "sources" / "0" / "shard-source" / "4", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "shardId-000000000000").write_text(end)
    arguments = ("checkpoint", str(tmp_path / "c"), "--as-starting-position", "--from=awslabs")
    answer = run(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert found in answer.err


def test_of_several_sources_one_has_to_be_named(copy: Path) -> None:
    _add_source(copy, '{"clicks":{"0":7,"1":8}}')
    shown = run("checkpoint", str(copy), "--source", "1")
    assert "source 0" not in shown.out
    assert "source 1: kafka · topic clicks (id unknown)\n" in shown.out
    found = run("checkpoint", str(copy), "--as-starting-position")
    assert found.code == 2
    assert "--source" in found.err
    named = run("checkpoint", str(copy), "--as-starting-position", "--source", "1")
    assert json.loads(named.document()["startingOffsets"]) == {"clicks": {"0": 7, "1": 8}}
    assert run("checkpoint", str(copy), "--source", "2").code == 2


# --- Folders that are no checkpoint ---------------------------------------------------------------


def _one_line(path: Path | str, *more: str) -> str:
    found = run("checkpoint", str(path), *more)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("spark-ssp: [")
    assert found.err.count("\n") == 1
    return found.err


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    assert "no such folder" in _one_line(tmp_path / "missing")
    assert "an empty folder" in _one_line(tmp_path)
    (tmp_path / "part-0.parquet").touch()
    assert "without offsets, commits and metadata" in _one_line(tmp_path)
    (tmp_path / "_delta_log").mkdir()
    assert "a table" in _one_line(tmp_path)
    assert "a file" in _one_line(tmp_path / "part-0.parquet")
    assert "s3://bucket/folder" in _one_line("s3://bucket")


def test_a_query_that_has_planned_nothing(copy: Path) -> None:
    for name in ("offsets", "commits"):
        shutil.rmtree(copy / name)
    found = run("checkpoint", str(copy))
    assert (found.code, found.out.splitlines()[1:]) == (0, ["no batch is planned yet"])
    assert "found none" in _one_line(copy, "--as-starting-position")


@pytest.mark.parametrize(
    ("file", "text", "part", "next_step"),
    [
        ("offsets/1", "", "an empty file", "delete offsets/1 and"),
        ("offsets/1", "\0" * 40, "another text than a version", "delete offsets/1 and"),
        ("offsets/1", "v1\n", "no metadata", "continues after batch 0"),
        ("offsets/1", "v1\n{", "metadata that is not JSON", "continues after batch 0"),
        ("offsets/1", "v1\n{}\n", "no offset", "delete offsets/1 and"),
        ("offsets/1", 'v1\n{}\n{"v": 2, "topics": {"ord', "a line that begins", "offsets/1 and"),
        ("offsets/1", "v1\n{}\n{" + '"a":{' * 100_000, "a line that begins like JSON", "offsets/1"),
        ("commits/0", "", "an empty file", "delete commits/0 and"),
        ("offsets/0", "", "an empty file", "no batch before it is intact"),
        ("commits/5", "v1\n{}", "no such file, while commits/5 exists", "delete commits/5 and"),
        ("offsets/1", "v9\n{}\n", "version v9", "delete nothing"),
        ("offsets/1", 'v1\n{}\n{"v": 7, "topics": {}}', "version 7", "the spark-ssp version"),
        ("metadata", "{}", "no query id", "write it again"),
        ("metadata", "[" * 100_000, "no query id", "write it again"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(
    copy: Path, file: str, text: str, part: str, next_step: str
) -> None:
    (copy / file).write_text(text)
    error = _one_line(copy)
    assert part in error
    assert next_step in error.partition("Next step: ")[2]


def test_an_offset_log_that_lacks_a_source_is_damaged(copy: Path) -> None:
    _add_source(copy, '{"clicks":{"0":7}}')
    newest = copy / "offsets" / "1"
    newest.write_text(newest.read_text().rpartition("\n{")[0])
    assert "delete offsets/1 and" in _one_line(copy)


def test_files_that_another_user_put_there_are_neither_waited_for_nor_shown(
    copy: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("v1s3cr3t")
    newest = copy / "offsets" / "1"
    for found in ("a symbolic link", "a pipe or a device", "a symbolic link", "a folder"):
        newest.unlink()
        if found == "a folder":
            newest.mkdir()
        elif found == "a symbolic link":
            newest.symlink_to(secret if secret.exists() else "/dev/zero")
            secret.unlink(missing_ok=True)
        else:
            os.mkfifo(newest)
        error = _one_line(copy)
        assert f"found {found}" in error
        assert "s3cr3t" not in error
    assert "s3cr3t" not in _one_line("hdfs://user:s3cr3t@[nowhere/orders")


def test_batches_planned_ahead_are_noted(copy: Path) -> None:
    text = (copy / "offsets" / "1").read_text()
    (copy / "offsets" / "2").write_text(text)
    found = run("checkpoint", str(copy))
    assert "batches 1 to 2 are planned and none of them is committed" in found.out


def test_an_undocumented_format_is_refused() -> None:
    found = _one_line(CHECKPOINTS / "kinesis", "--from", "databricks-json")
    assert "not documented" in found


def test_an_unexpected_error_shows_neither_its_text_nor_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("s3cr3t")

    monkeypatch.setattr("spark_ssp.operations.commands.checkpoint.read_checkpoint", fail)
    text = _one_line(CHECKPOINTS / "kinesis")
    assert "[defect] ValueError at " in text
    assert "s3cr3t" not in text
    with pytest.raises(ValueError, match="s3cr3t"):
        run("--traceback", "checkpoint", str(CHECKPOINTS / "kinesis"))


def test_a_missing_package_is_named_with_the_python_that_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'orjson'", name="orjson")

    monkeypatch.setattr("spark_ssp.operations.cli.import_module", fail)
    text = _one_line(CHECKPOINTS / "kinesis")
    assert "[unsupported]" in text
    assert "orjson" in text
    assert sys.executable in text
