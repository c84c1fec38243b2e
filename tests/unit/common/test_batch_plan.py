"""Which uses of a plan are outdated, and which ends are fixed."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from spark_ssp.common.errors import UnsupportedError
from spark_ssp.common.spark import batch_plan
from spark_ssp.common.spark.batch_plan import (
    BatchPlan,
    BatchSource,
    MicroBatch,
    PlannedPartition,
    PlanUses,
    read_planned,
    with_plan,
)
from spark_ssp.grouping.identifiers import EpochMillis, ShardId, ShardKey, StreamName
from spark_ssp.kafka_source.batch_planner import has_fixed_end
from spark_ssp.kafka_source.model.topic import (
    AtOffsets,
    AtTime,
    AtTimes,
    Bound,
    LogicalOffset,
    partition_of,
)
from spark_ssp.kinesis_source.batch_read import has_fixed_end as has_fixed_kinesis_end
from spark_ssp.kinesis_source.model.shard import AtTimestamp, Latest, StartingPosition
from spark_ssp.kinesis_source.options.starting_position import parse_end, resolve_start

USES = st.none() | st.builds(MicroBatch, query=st.sampled_from("ab"), batch=st.integers(0, 3))
NOW = EpochMillis(1_700_000_000_000)
LATER = EpochMillis(NOW + 1)


@given(
    st.lists(st.tuples(st.sampled_from("pq"), USES, st.integers(0, 2)), max_size=30),
    st.booleans(),
    st.sampled_from(["shared", "unknown", "unusable", "without a parent"]),
)
def test_a_micro_batch_reads_only_plans_that_nothing_used_before_it(
    uses: list[tuple[str, MicroBatch | None, int]], fixed: bool, folder: str
) -> None:
    """Before it in the same executor, whose workers share a folder; without one, in the same
    worker."""
    with TemporaryDirectory() as name:
        (Path(name) / "file").touch()
        folders = {
            "shared": Path(name, "uses"),
            "unusable": Path(name, "file"),
            "without a parent": Path(name, "none", "uses"),
            "unknown": None,
        }
        workers = [PlanUses(folders[folder]) for _ in range(3)]
        first: dict[tuple[str, int], MicroBatch | None] = {}
        for plan_id, use, worker in uses:
            plan = BatchPlan(id=plan_id, planned_at_ms=NOW, has_fixed_end=fixed)
            known = first.setdefault((plan_id, 0 if folder == "shared" else worker), use)
            expected = not fixed and use is not None and use != known
            assert workers[worker].is_outdated(plan, use) == expected


@pytest.mark.parametrize("folder", ["file", "none/uses"])
def test_a_folder_that_cannot_be_used_is_reported(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    plan = BatchPlan(id="p", planned_at_ms=NOW, has_fixed_end=False)
    assert not PlanUses(tmp_path / folder).is_outdated(plan, None)
    assert "unknown" in caplog.text


def test_the_uses_of_many_plans_are_forgotten_oldest_first(tmp_path: Path) -> None:
    first, later = MicroBatch(query="a", batch=0), MicroBatch(query="a", batch=1)
    for folder in (None, tmp_path / "uses"):
        worker = PlanUses(folder)
        plans = [BatchPlan(id=str(n), planned_at_ms=NOW, has_fixed_end=False) for n in range(2_500)]
        for plan in plans:
            assert not worker.is_outdated(plan, first)
        assert worker.is_outdated(plans[-1], later)
        assert not worker.is_outdated(plans[0], later)
    assert PlanUses(tmp_path / "uses").is_outdated(plans[-1], later)
    assert len(list((tmp_path / "uses").iterdir())) == 1_500


def test_a_micro_batch_does_not_read_the_plan_of_an_earlier_action(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = BatchPlan(id="a/b", planned_at_ms=NOW, has_fixed_end=False)
    (partition,) = with_plan([InputPartition(0)], plan)
    source = BatchSource(format="kafka-ssp", condition="offset >= 0", end_option="endingOffsets")

    def rows(use: MicroBatch | None) -> list[int]:
        monkeypatch.setattr(batch_plan, "micro_batch_of_task", lambda: use)
        return list(read_planned(partition, source, lambda _: iter([1]), uses=PlanUses(tmp_path)))

    assert rows(None) == rows(None) == [1]
    with pytest.raises(UnsupportedError) as caught:
        rows(MicroBatch(query="a", batch=0))
    assert all(
        name in caught.value.next_step for name in ("load()", "checkpoint()", source.end_option)
    )


def test_an_empty_plan_has_a_partition() -> None:
    (partition,) = with_plan([], BatchPlan(id="p", planned_at_ms=NOW, has_fixed_end=False))
    copy = pickle.loads(pickle.dumps(partition))
    assert isinstance(copy, PlannedPartition)
    assert (copy.value, copy.plan.id) == (None, "p")


def test_an_end_is_fixed_if_no_later_record_moves_it() -> None:
    one, other = partition_of(StreamName("orders"), 0), partition_of(StreamName("orders"), 1)
    fixed: list[Bound] = [
        AtOffsets(offsets={one: 3, other: 4}),
        AtTime(time_ms=NOW),
        AtTimes(times_ms={one: NOW, other: NOW}),
    ]
    moving: list[Bound | None] = [
        None,
        LogicalOffset.LATEST,
        AtOffsets(offsets={one: 3, other: LogicalOffset.LATEST}),
        AtTime(time_ms=LATER),
        AtTimes(times_ms={one: NOW, other: LATER}),
    ]
    assert [has_fixed_end(end, NOW) for end in fixed] == [True] * len(fixed)
    assert [has_fixed_end(end, NOW) for end in moving] == [False] * len(moving)
    shard = ShardKey(stream=StreamName("orders"), shard=ShardId("shard-0"))
    at = AtTimestamp(millis=LATER)
    assert has_fixed_kinesis_end(StartingPosition(default=at))
    assert not has_fixed_kinesis_end(None)
    assert not has_fixed_kinesis_end(StartingPosition(default=Latest()))
    assert not has_fixed_kinesis_end(StartingPosition(default=at, by_shard={shard: Latest()}))
    before = resolve_start(parse_end("-1h"), [StreamName("orders")], LATER, deaggregate=True)
    assert not has_fixed_kinesis_end(before)
