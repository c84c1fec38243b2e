"""What a task believes of brokers that are behind: against a scripted consumer and old metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from kafka_source.arrow import Columns
from kafka_source.faults import FaultKind
from kafka_source.model import Edge, Selection, TopicId
from kafka_source.partition_consumer import EndOfLog, Event, ReadFault, Run
from kafka_source.reader import _as_planned
from kafka_source.reading import Reading
from kafka_source.service import Point, TopicDescription
from kafka_source.standing import LOOK_AGAIN_S, LOOKS
from kafka_source.topic_ids import TopicIds
from kafka_source.wave import Wave
from ssp_common.errors import DataLossError, StreamNotFoundError
from task_grouping.identifiers import StreamName, SystemStreamPartition
from tests.support.kafka_driving import ManualTime, kafka_options
from tests.support.kafka_reading import part, task

PLANNED = part("orders", 0, 0, 100, topic_id="new")
MISSING = ReadFault(
    ssp=PLANNED.ssp,
    kind=FaultKind.MISSING,
    error=StreamNotFoundError("a", found="b", expected="c", next_step="d"),
)


@dataclass
class Brokers:
    """Describe the topic with these ids in turn, the last one for ever; None: it is not there."""

    ids: list[str | None]
    looks: int = 0

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        topic_id = self.ids[min(self.looks, len(self.ids) - 1)]
        self.looks += 1
        if topic_id is None:
            return {}
        name = StreamName("orders")
        return {name: TopicDescription(topic_id=TopicId(topic_id), partition_count=1)}

    def offsets(
        self, partitions: Collection[SystemStreamPartition], point: Point
    ) -> Mapping[SystemStreamPartition, int | None]:
        return dict.fromkeys(partitions, 0 if point is Edge.EARLIEST else 100)

    def first_times(
        self, partitions: Collection[SystemStreamPartition]
    ) -> Mapping[SystemStreamPartition, int | None]:
        raise AssertionError("a task does not ask for times")


@dataclass
class Consumer:
    """Has nothing until the brokers were asked `after` times, then the end of the log."""

    brokers: Brokers
    time: ManualTime
    after: int
    rows: int = 0
    weight: int = 0
    placed: list[int] = field(default_factory=list)

    def place(self, positions: Mapping[SystemStreamPartition, int]) -> None:
        self.placed += positions.values()

    def place_again(self, ssp: SystemStreamPartition, offset: int) -> None:
        self.placed.append(offset)

    def drop(self, ssps: Sequence[SystemStreamPartition]) -> None:
        raise AssertionError("one range alone is read")

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        self.time.now += wait_s
        if self.brokers.looks < self.after:
            return [MISSING]
        return [EndOfLog(ssp=PLANNED.ssp, offset=100)]

    def keep(self, run: Run, kept: slice) -> None:
        raise AssertionError("there are no records")

    def take(self, most: int, header_bytes: float = 0.0) -> Columns:
        raise AssertionError("there are no records")

    def last_fault(self) -> str | None:
        return None

    def close(self) -> None:
        pass


def read(brokers: Brokers, time: ManualTime, *, after: int) -> None:
    wave = Wave(
        task=task(PLANNED),
        options=kafka_options(pollTimeout="60s"),
        reading=Reading((PLANNED,)),
        consumer=Consumer(brokers, time, after),
        service=lambda: brokers,
        monotonic=time.monotonic,
        sleep=time.sleep,
    )
    assert list(wave.read()) == []


@pytest.mark.parametrize("stale", ["old", None])
def test_what_a_broker_that_is_behind_says_is_not_believed_at_once(stale: str | None) -> None:
    brokers = Brokers([stale] * (LOOKS - 1) + ["new"])
    read(brokers, ManualTime(), after=LOOKS)


@pytest.mark.parametrize(("stays", "found"), [("old", "created again"), (None, "deleted")])
def test_what_brokers_go_on_to_say_is_believed_after_some_time(
    stays: str | None, found: str
) -> None:
    brokers, time = Brokers([stays]), ManualTime()
    began = time.now
    with pytest.raises(DataLossError, match=found):
        read(brokers, time, after=LOOKS + 1)
    assert brokers.looks == LOOKS
    assert time.now - began > (LOOKS - 1) * LOOK_AGAIN_S


@pytest.mark.parametrize("fail", ["true", "false"])
def test_before_reading_an_old_id_is_asked_for_again(fail: str) -> None:
    options, time = kafka_options(failOnDataLoss=fail), ManualTime()
    right = TopicIds(connect=lambda _: Brokers(["new"]))
    assert _as_planned((PLANNED,), options, right, time.sleep) == (PLANNED,)
    assert time.slept == [], "the right id costs no pause"
    behind = TopicIds(connect=lambda _: Brokers(["old", "new"]))
    assert _as_planned((PLANNED,), options, behind, time.sleep) == (PLANNED,)
    assert time.slept == [LOOK_AGAIN_S]
    another = TopicIds(connect=lambda _: Brokers(["old"]))
    if fail == "true":
        with pytest.raises(DataLossError, match="created again"):
            _as_planned((PLANNED,), options, another, time.sleep)
    else:
        assert _as_planned((PLANNED,), options, another, time.sleep) == ()
    assert len(time.slept) == 1 + LOOKS - 1
