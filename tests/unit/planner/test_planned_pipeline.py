"""Creation of a plan's intermediate streams, on systems in memory."""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, Lock

import pytest

from spark_ssp.planner import (
    InvalidPipelineError,
    PartitionCountConflictError,
    Pipeline,
    PlannedPipeline,
    Services,
    System,
)
from spark_ssp.planner.graph.operators import SystemKind
from spark_ssp.planner.graph.systems import StreamUse, UnknownSystemError
from spark_ssp.planner.planning.plan_history import PlanConflictError
from tests.support.fakes.pipeline_services import MemorySystem
from tests.support.pipelines.examples import same, stream_id

MADE = "delays-flights-by-carrier"


def _delays() -> Pipeline:
    """One intermediate stream, which takes the count of `carriers`."""
    pipeline = Pipeline("delays")
    carriers = pipeline.table("carriers", key="carrier")
    carriers.side_input(pipeline.input("kafka", "carriers"))
    flights = pipeline.input("kinesis", "flights").partition_by("carrier")
    flights.join_table(carriers).output("kafka", "named")
    return pipeline


def _kafka(**counts: int) -> MemorySystem:
    return MemorySystem(streams={"carriers": 6, "named": 3} | counts)


def _services(kafka: System) -> Services:
    kinesis = MemorySystem(streams={"flights": 4}, kind=SystemKind.KINESIS)
    return Services({"kinesis": kinesis, "kafka": kafka})


def _planned(kafka: System) -> PlannedPipeline:
    return _delays().plan(_services(kafka))


def test_a_missing_intermediate_stream_is_created_with_the_planned_count() -> None:
    kafka = _kafka()
    applied = _planned(kafka).apply(_services(kafka))
    assert kafka.streams == {"carriers": 6, "named": 3, MADE: 6}
    assert (applied.created, applied.found) == ((stream_id(MADE),), ())


def test_streams_are_created_for_what_they_are_read_for(pipeline: Pipeline) -> None:
    a, b = (pipeline.input("kafka", name) for name in ("carriers", "named"))
    t, u = (pipeline.table(name, key="k") for name in "tu")
    t.side_input(a.partition_by("k", name="aside").filter("k is not null"))
    sent = b.partition_by("k", name="sent")
    sent.send_to_table(u)
    sent.output("kafka", "out")
    joined = b.partition_by("k", name="joined").join_table(t)
    joined.partition_by("k", name="events").join_table(u).output("kafka", "more")
    for name, state in (("mapped", "none"), ("counted", "shuffled")):
        rows = a.partition_by("k", name=name).filter("k is not null")
        rows.transform(same, state=state).transform(same).send_to_table(u)
    kafka = _kafka(out=1, more=1, carriers=3)
    pipeline.plan(_services(kafka)).apply(_services(kafka))
    assert kafka.uses == {
        "p-aside": StreamUse.TABLE,
        "p-sent": StreamUse.BOTH,
        "p-joined": StreamUse.EVENTS,
        "p-events": StreamUse.EVENTS,
        "p-mapped": StreamUse.TABLE,
        "p-counted": StreamUse.BOTH,
    }


@pytest.mark.parametrize("filled", [True, False])
def test_a_table_that_begins_with_what_a_stream_still_has_is_warned_of(
    filled: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def pipeline(*, table: bool) -> Pipeline:
        pipeline = Pipeline("p")
        made = pipeline.input("kafka", "carriers").partition_by("k", name="made")
        made.output("kafka", "named")
        if table:
            t = pipeline.table("t", key="k")
            made.send_to_table(t)
            pipeline.input("kafka", "more").join_table(t).output("kafka", "late")
        return pipeline

    kafka = _kafka(more=6, late=1)
    for with_table in (filled, True):
        planned = pipeline(table=with_table).plan(_services(kafka), root=str(tmp_path / "root"))
        planned.apply(_services(kafka))
    told = [line for line in caplog.messages if "still in" in line]
    assert len(told) == (0 if filled else 1)
    assert all(
        "table t of stage to-late: it starts with the records still in kafka/p-made" in one
        for one in told
    )


@pytest.mark.parametrize("read", [True, False])
def test_a_stream_of_tables_that_is_read_for_its_events_is_warned_of_once(
    read: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It may be compacted."""

    def pipeline(*, audit: bool) -> Pipeline:
        pipeline = Pipeline("p")
        made = pipeline.input("kafka", "carriers").partition_by("k", name="made")
        table = pipeline.table("t", key="k").side_input(made)
        pipeline.input("kafka", "more").join_table(table).output("kafka", "named")
        if audit:
            made.output("kafka", "audit")
        return pipeline

    kafka = _kafka(more=6, audit=1)
    for audit in (read, True, True):
        planned = pipeline(audit=audit).plan(_services(kafka), root=str(tmp_path / "root"))
        planned.apply(_services(kafka))
    told = [line for line in caplog.messages if line.startswith("stream kafka/p-made: ")]
    assert len(told) == len(caplog.messages) == (0 if read else 1)
    assert all("to-audit" in line for line in told)


def _clicks(name: str, topic: str, *, stream: str | None = None, days: bool = False) -> Pipeline:
    """`shop` of `eu-clicks` and `shop-eu` of `clicks` derive one name of an intermediate stream."""
    pipeline = Pipeline(name)
    clicks = pipeline.input("kafka", topic)
    clicks.partition_by("user", stream=stream).output("kafka", "out")
    if days:
        clicks.partition_by("day", name="days").output("kafka", "per-day")
    return pipeline


@pytest.mark.parametrize(
    ("second", "root", "warned"),
    [
        (_clicks("shop", "eu-clicks"), "first", []),
        (_clicks("shop", "eu-clicks"), "other", ["kafka/shop-eu-clicks-by-user"]),
        (_clicks("shop-eu", "clicks"), "other", ["kafka/shop-eu-clicks-by-user"]),
        (_clicks("shop-eu", "clicks", stream="shop-days"), "other", []),
        (_clicks("shop-eu", "clicks", stream="mine"), "other", []),
        (_clicks("shop", "eu-clicks", days=True), "first", ["kafka/shop-days"]),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_stream_that_another_pipeline_or_root_may_use_is_warned_of(
    at_once: bool,
    second: Pipeline,
    root: str,
    warned: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics = {"eu-clicks": 4, "clicks": 4, "out": 1, "per-day": 1, "shop-days": 4}
    services = Services({"kafka": MemorySystem(streams=topics)})
    first = _clicks("shop", "eu-clicks").plan(services, root=str(tmp_path / "first"))
    planned = second.plan(services, root=str(tmp_path / root)) if at_once else None
    first.apply(services)
    planned = planned or second.plan(services, root=str(tmp_path / root))
    with suppress(PlanConflictError):
        planned.apply(services)
    assert [line.partition(": it exists already")[0] for line in caplog.messages] == [
        f"stream {stream}" for stream in warned
    ]


def test_applying_again_changes_nothing() -> None:
    kafka = _kafka()
    planned = _planned(kafka)
    planned.apply(_services(kafka))
    applied = planned.apply(_services(kafka))
    assert (applied.created, applied.found) == ((), (stream_id(MADE),))
    assert kafka.created == [MADE]


def test_all_of_a_pipeline_without_repartition_is_there_already(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "carriers").output("kafka", "named")
    kafka = _kafka()
    applied = pipeline.plan(_services(kafka)).apply(_services(kafka))
    assert (applied.created, applied.found) == ((), ())


def test_an_existing_stream_of_another_count_is_refused_and_not_altered() -> None:
    kafka = _kafka()
    planned = _planned(kafka)
    kafka.streams[MADE] = 4
    with pytest.raises(PartitionCountConflictError) as caught:
        planned.apply(_services(kafka))
    text = str(caught.value)
    assert re.search(rf"stream kafka/{MADE} \(\S*test_planned_pipeline\.py:\d", text)
    assert "found 4 partitions; expected 6 (inferred: as kafka/carriers" in text
    assert "an existing stream is not altered" in text
    assert "plan again with the count of the stream; or, if no stage has run with it" in text
    assert kafka.streams[MADE] == 4


def test_all_problems_of_a_plan_are_reported_before_anything_is_created() -> None:
    pipeline = _delays()
    pipeline.input("kafka", "rates").partition_by("day", name="days").output("kafka", "per-day")
    kafka = _kafka(rates=2)
    planned = pipeline.plan(_services(kafka))
    kafka.streams = {"delays-days": 7, "carriers": 12}
    with pytest.raises(PartitionCountConflictError) as caught:
        planned.apply(_services(kafka))
    assert [(p.subject, p.found) for p in caught.value.problems] == [
        ("stream kafka/carriers", "12 partitions"),
        ("stream kafka/delays-days", "7 partitions"),
        ("stream kafka/named", "no such stream"),
        ("stream kafka/per-day", "no such stream"),
        ("stream kafka/rates", "no such stream"),
    ]
    remedies = [p.next_step for p in caught.value.problems]
    assert remedies[0].startswith("plan again: other counts")
    assert "services['kafka'].create('named', …)" in remedies[2]
    assert remedies[4] == "correct its name or its system"
    assert kafka.created == []


def test_a_single_partition_is_in_the_singular() -> None:
    kafka = _kafka()
    planned = _planned(kafka)
    kafka.streams[MADE] = 1
    with pytest.raises(PartitionCountConflictError, match="found 1 partition;"):
        planned.apply(_services(kafka))


def test_counts_that_nothing_rests_on_may_have_changed() -> None:
    kafka, kinesis = _kafka(), MemorySystem(streams={"flights": 4}, kind=SystemKind.KINESIS)
    services = Services({"kafka": kafka, "kinesis": kinesis})
    planned = _delays().plan(services)
    kinesis.streams["flights"], kafka.streams["named"] = 9, 30
    assert planned.apply(services).created == (stream_id(MADE),)


def test_a_broadcast_stream_may_have_grown_and_must_be_there(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "carriers", broadcast=True).output("kafka", "named")
    kafka = _kafka()
    planned = pipeline.plan(_services(kafka))
    kafka.streams["carriers"] = 7
    planned.apply(_services(kafka))
    del kafka.streams["carriers"]
    with pytest.raises(
        PartitionCountConflictError, match="found no such stream; expected an existing input"
    ):
        planned.apply(_services(kafka))


def test_who_comes_second_takes_the_stream_that_the_first_created(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = _kafka()
    kafka.rivals = {MADE: 6}
    with caplog.at_level(logging.INFO, "spark_ssp"):
        applied = _planned(kafka).apply(_services(kafka))
    assert (applied.created, applied.found) == ((), (stream_id(MADE),))
    assert f"stream kafka/{MADE} was created concurrently by another process" in caplog.text


@pytest.mark.parametrize(("rivals", "short_by", "found"), [({MADE: 8}, 0, 8), ({}, 1, 5)])
def test_counts_are_read_back_after_creating(
    rivals: dict[str, int], short_by: int, found: int
) -> None:
    """A rival may have created another count, or the service another one than requested."""
    kafka = _kafka()
    kafka.rivals, kafka.short_by = rivals, short_by
    with pytest.raises(PartitionCountConflictError, match=f"found {found} partitions; expected 6"):
        _planned(kafka).apply(_services(kafka))


@dataclass(kw_only=True)
class _Meeting(MemorySystem):
    """All who create come together just before it, so that each has seen the stream missing."""

    barrier: Barrier
    lock: Lock = field(default_factory=Lock)

    def create(self, stream: str, partitions: int, *, use: StreamUse = StreamUse.EVENTS) -> None:
        self.barrier.wait(timeout=30)
        with self.lock:
            super().create(stream, partitions, use=use)


def test_several_at_once_all_succeed_and_one_creates() -> None:
    many = 8
    kafka = _Meeting(streams={"carriers": 6, "named": 3}, barrier=Barrier(many))
    plans = [_planned(kafka) for _ in range(many)]
    with ThreadPoolExecutor(many) as pool:
        done = list(pool.map(lambda planned: planned.apply(_services(kafka)), plans))
    assert kafka.created == [MADE]
    assert sorted(len(applied.created) for applied in done) == [0] * (many - 1) + [1]


# --- Services ------------------------------------------------------------------------------------


def test_a_system_that_the_services_lack_is_named_with_the_line_that_uses_it() -> None:
    kafka = _kafka()
    planned, lacking = _planned(kafka), Services({"kafka": kafka})
    for act in (lambda: planned.apply(lacking), lambda: _delays().plan(lacking)):
        with pytest.raises(InvalidPipelineError) as caught:
            act()
        (problem,) = caught.value.problems
        assert problem.subject == "system kinesis"
        assert problem.found == "services with kafka (kafka)"
        assert problem.expected == "kinesis (kinesis), which input flights uses"
        assert problem.place is not None
        assert problem.place.file.endswith("test_planned_pipeline.py")
    assert kafka.created == []


def test_a_system_of_another_kind_is_refused() -> None:
    services = Services({"kafka": _kafka(), "kinesis": MemorySystem(streams={"flights": 4})})
    with pytest.raises(InvalidPipelineError, match=r"expected kinesis \(kinesis\), which input"):
        _delays().plan(services)


def test_a_system_that_nothing_uses_need_not_be_there(pipeline: Pipeline) -> None:
    pipeline.input("kafka", "carriers").output("kafka", "named")
    kafka = _kafka()
    assert pipeline.plan(Services({"kafka": kafka})).plan.streams[0].partitions == 6


def test_services_are_a_mapping_whose_text_shows_no_options() -> None:
    services = _services(_kafka())
    assert list(services) == ["kafka", "kinesis"]
    assert len(services) == 2
    assert "kafka" in services
    assert "other" not in services
    assert repr(services) == "Services(kafka (kafka), kinesis (kinesis))"
    with pytest.raises(UnknownSystemError, match=r"system other.*with kafka \(kafka\), kinesis"):
        services["other"]
    shown = repr(services["kafka"].reader_format("carriers", from_start=True))
    assert shown == "SparkFormat('memory', options fromStart, keepTasks, stream)"
