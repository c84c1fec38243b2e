"""The record of completed batches, with a group whose answers are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.sink import transactions
from spark_ssp.kafka_source.sink.markers import CompletedBatch
from spark_ssp.kafka_source.sink.transactions import batches_id, record_completed

_SINK = "q/rows"
_CLOSE_S = 0.2


@dataclass
class Groups:
    """Groups of a broker. `lost`: the commits to come that have no answer; their clients send
    them again until they are closed."""

    offsets: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    lost: int = 0
    closing: list[threading.Event] = field(default_factory=list)

    def consumer(self, *_: Any, overrides: dict[str, Any], **__: Any) -> _Consumer:
        return _Consumer(self, overrides["group.id"], overrides.get("on_commit"))


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
    monkeypatch.setattr(transactions, "create_client", found.consumer)
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
