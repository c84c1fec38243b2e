"""The record of completed batches, with a group whose answers are lost."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.sink import transactions
from spark_ssp.kafka_source.sink.markers import CompletedBatch
from spark_ssp.kafka_source.sink.transactions import batches_id, record_completed, task_id

_SINK = "q/rows"
_CLOSE_S = 0.2


@dataclass
class Groups:
    """Groups of a broker. `lost`: the commits to come that have no answer; their clients send
    them again until they are closed."""

    read_s: float = 0.0
    """The time that the read of an offset takes."""
    offsets: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    lost: int = 0
    closing: list[threading.Event] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    most_reading: int = 0
    """The most consumers that have read at a time."""
    _reading: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def reading(self, group: str) -> Iterator[None]:
        with self._lock:
            self.reads[group] += 1
            self._reading += 1
            self.most_reading = max(self.most_reading, self._reading)
        yield
        with self._lock:
            self._reading -= 1

    def consumer(self, _: ClientProperties, group: str, **callbacks: Any) -> _Consumer:
        return _Consumer(self, group, callbacks["on_commit"])


class _Consumer:
    def __init__(
        self, groups: Groups, group: str, on_commit: Callable[[Any, Any], None] | None
    ) -> None:
        self._groups = groups
        self._group = group
        self._on_commit = on_commit
        self._unanswered: TopicPartition | None = None

    def consumer_group_metadata(self) -> None:
        return None

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def committed(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        with self._groups.reading(self._group):
            time.sleep(self._groups.read_s)
        offset, metadata = self._groups.offsets.get(self._group, (-1001, ""))
        return [TopicPartition(places[0].topic, 0, offset, metadata=metadata)]

    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: bool
    ) -> list[TopicPartition] | None:
        (place,) = offsets
        if self._groups.lost:
            self._groups.lost -= 1
            self._unanswered = place
            self._groups.closing.append(threading.Event())
            if not asynchronous:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return None
        self._apply(place)
        if not asynchronous:
            return offsets
        if self._on_commit is not None:
            self._on_commit(None, offsets)
        return None

    def poll(self, timeout: float) -> None:
        time.sleep(timeout)

    def close(self) -> None:
        if self._unanswered is not None:
            time.sleep(_CLOSE_S)
            self._apply(self._unanswered)
            self._groups.closing[-1].set()

    def _apply(self, place: TopicPartition) -> None:
        self._groups.offsets[self._group] = place.offset, place.metadata


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    found = Groups()
    monkeypatch.setattr(transactions, "create_group_client", found.consumer)
    monkeypatch.setattr(transactions, "_STEP_S", 2 * _CLOSE_S)
    return found


def _complete(batch: int, tasks: int) -> None:
    public = (("bootstrap.servers", "unused"), ("delivery.timeout.ms", "5000"))
    completed = CompletedBatch(batch=batch, tasks=tasks)
    record_completed(ClientProperties(public=public), _SINK, "rows", completed)


def test_a_record_without_an_answer_does_not_take_the_place_of_a_later_one(groups: Groups) -> None:
    _complete(0, tasks=1)
    groups.lost = 1
    _complete(1, tasks=1)
    _complete(2, tasks=1)
    (closed,) = groups.closing
    assert closed.wait(10)
    assert groups.offsets[batches_id(_SINK)][0] == 2


def _committed(groups: Groups, batch: int, *tasks: int) -> None:
    """Let tasks have committed a batch, each with as many rows as its number modulo 5."""
    for task in tasks:
        marker = json.dumps({"v": 1, "rows": task % 5, "digest": ""})
        groups.offsets[task_id(_SINK, task)] = batch, marker


@pytest.mark.parametrize(
    ("before", "earlier", "tasks", "found"),
    [
        (2, 4, 2, "task 2, 3,"),
        (None, 4, 2, "task 2, 3,"),
        (8, 4, 2, "task 2, 3,"),
        (4, 9, 2, "task 2, 3, 4, 6, 7, 8,"),  # task 5 has no rows
        (2, 2, 2, None),
    ],
)
def test_rows_of_tasks_that_a_batch_no_longer_has_are_found(
    groups: Groups, before: int | None, earlier: int, tasks: int, found: str | None
) -> None:
    """Also if the batch before had fewer tasks, or there was none."""
    if before is not None:
        _committed(groups, 0, *range(before))
        _complete(0, before)
    _committed(groups, 1, *range(earlier))
    if found is None:
        _complete(1, tasks)
    else:
        with pytest.raises(IncompatibleStateError) as caught:
            _complete(1, tasks)
        assert caught.value.found.startswith(f"rows of {found}")
    assert groups.offsets[batches_id(_SINK)][0] == 1
    _complete(1, tasks)  # an error once


def test_rows_that_are_there_twice_are_an_error_if_the_answer_to_the_record_is_lost(
    groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be written all the same, and then the next driver looks no more."""
    _complete(0, tasks=4)
    _committed(groups, 1, 2)
    groups.lost = 1_000
    with pytest.raises(IncompatibleStateError):
        _complete(1, tasks=2)
    assert "rows of task 2" in caplog.text  # for a driver that is killed before it raises


def test_many_tasks_that_a_batch_no_longer_has_are_read_at_once_and_once(groups: Groups) -> None:
    _complete(0, tasks=33)
    groups.read_s = 0.02
    groups.reads.clear()
    groups.lost = 1
    _complete(1, tasks=1)
    assert groups.most_reading > 2
    assert groups.reads == Counter(
        {task_id(_SINK, task): 1 for task in range(1, 34)} | {batches_id(_SINK): 2}
    )
