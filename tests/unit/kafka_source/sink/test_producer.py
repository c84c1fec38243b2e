"""Records that wait for space in the producer's buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import InvalidRequestError
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.sink import producer
from spark_ssp.kafka_source.sink.producer import DELIVERY_TIMEOUT, RecordProducer

_BYTES = 10
"""The size of the buffer."""
Acknowledge = Callable[[], bool]


class FakeProducer:
    """Acknowledges the oldest record whenever `acknowledges` says so, at any call; and at each poll
    with a pause, which no acknowledgement ends."""

    def __init__(self, acknowledges: Acknowledge) -> None:
        self._acknowledges = acknowledges
        self._queue: list[int] = []
        self.written: list[int] = []
        self.waited_s = 0.0

    def _meanwhile(self, always: bool = False) -> None:
        if self._queue and (always or self._acknowledges()):
            self.written.append(self._queue.pop(0))

    def produce(self, topic: str, value: bytes, key: bytes | None) -> None:
        self._meanwhile()
        if sum(self._queue) + len(value) > _BYTES:
            raise BufferError("queue full")
        self._queue.append(len(value))

    def __len__(self) -> int:
        self._meanwhile()
        return len(self._queue)

    def poll(self, timeout_s: float) -> int:
        self.waited_s += timeout_s
        self._meanwhile(always=timeout_s > 0)
        return 0


def _producer(fake: FakeProducer) -> RecordProducer:
    def create(*_: Any, **__: Any) -> FakeProducer:
        return fake

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer, "create_client", create)
        return RecordProducer(ClientProperties(public=((DELIVERY_TIMEOUT, "1000"),)))


@given(st.lists(st.integers(1, _BYTES), max_size=20), st.data())
def test_a_record_waits_for_space_whenever_earlier_ones_are_acknowledged(
    sizes: list[int], data: st.DataObject
) -> None:
    fake = FakeProducer(lambda: data.draw(st.booleans()))
    sender = _producer(fake)
    for size in sizes:
        sender.send("t", None, b"x" * size, None, ())
    while len(fake):
        fake.poll(1)
    assert fake.written == sizes


@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_record_larger_than_the_buffer_is_refused(is_prompt: bool) -> None:
    fake = FakeProducer(lambda: is_prompt)
    sender = _producer(fake)
    sender.send("t", None, b"x" * _BYTES, None, ())
    with pytest.raises(InvalidRequestError) as caught:
        sender.send("t", None, b"x" * (_BYTES + 1), None, ())
    assert "kafka.buffer.memory" in (caught.value.next_step or "")
    assert fake.written == [_BYTES]


def test_a_full_buffer_is_tried_again_soon() -> None:
    """Each wait lets one batch of the buffer through: it bounds the rate of a task."""
    fake = FakeProducer(lambda: False)
    sender = _producer(fake)
    for _ in range(101):
        sender.send("t", None, b"x" * _BYTES, None, ())
    assert len(fake.written) == 100
    assert fake.waited_s < 1
