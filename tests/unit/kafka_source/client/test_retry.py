"""What is asked again, how long, and what ends it: over scripted brokers and their clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import AccessError, InvalidRequestError
from spark_ssp.kafka_source.client.retry import (
    BatchRequest,
    NoResponseError,
    Retrier,
    RetriesExhaustedError,
    RetryPolicy,
    SendLimits,
    send_limits,
)
from tests.support.fakes.clocks import ManualTime

NOT_LEADER = KafkaError.NOT_LEADER_FOR_PARTITION
UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


class World(ManualTime):
    """Brokers whose answers are given for each request: a value, or a code of a fault, by key; or
    a code for the request. `there`: who is there although it is said to be missing."""

    def __init__(self, *requests: Mapping[str, int] | int, there: Collection[str] = ()) -> None:
        super().__init__()
        self.now = 100.0
        self.asked: list[tuple[str, ...]] = []
        self._requests = deque(requests)
        self._there = there

    def send(self, keys: Sequence[str], limits: SendLimits) -> Mapping[str, int | KafkaError]:
        assert 0 < limits.after_failed_connect_s <= limits.timeout_s <= 30
        self.asked.append(tuple(keys))
        answer = self._requests[0] if len(self._requests) == 1 else self._requests.popleft()
        if isinstance(answer, int):
            self.now += limits.timeout_s
            raise NoResponseError(KafkaError(answer))
        return {key: _value(answer[key]) for key in keys}

    def exists(self, keys: Collection[str], limits: SendLimits) -> list[str]:
        assert limits.timeout_s > 0
        return [key for key in keys if key in self._there]

    def run(self, *wanted: str, attempts: int = 3) -> Mapping[str, int]:
        retrier = Retrier(
            policy=RetryPolicy(attempts=attempts, interval_s=7.0, timeout_s=30.0),
            monotonic=self.monotonic,
            sleep=self.sleep,
        )
        request: BatchRequest[str, int] = BatchRequest(
            operation="ListOffsets",
            send=self.send,
            name_of=lambda key: f"partition {key}",
            still_existing=self.exists,
        )
        return retrier.run(wanted, request)


def _value(answer: int) -> int | KafkaError:
    """Offsets are 1,000 and more here."""
    return answer if answer >= 1_000 else KafkaError(answer)


def test_nothing_is_asked_for_nothing() -> None:
    world = World(KafkaError._TIMED_OUT)
    assert world.run() == {}
    assert world.asked == []


def test_only_what_has_no_answer_yet_is_asked_again() -> None:
    world = World(
        {"a": 1_000, "b": NOT_LEADER, "c": NOT_LEADER},
        {"b": KafkaError.LEADER_NOT_AVAILABLE, "c": 1_002},
        {"b": 1_001},
    )
    assert list(world.run("c", "b", "a").items()) == [("c", 1_002), ("b", 1_001), ("a", 1_000)]
    assert world.asked == [("c", "b", "a"), ("c", "b"), ("b",)]
    assert world.slept == [0.1, 0.2]


def test_pauses_grow_and_attempts_end() -> None:
    world = World({"a": NOT_LEADER, "b": NOT_LEADER})
    with pytest.raises(RetriesExhaustedError) as caught:
        world.run("a", "b", attempts=2)

    assert caught.value.subject == "partition a and 1 more"
    assert caught.value.error.code() == NOT_LEADER
    assert caught.value.attempts == 2
    assert world.slept[:5] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert world.slept.count(7.0) == 1
    assert world.now == pytest.approx(100 + 30 + 7 + 30)


def test_requests_without_answer_are_sent_again_and_end_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(*[KafkaError._TIMED_OUT] * 8, {"a": 1_000})
    assert world.run("a") == {"a": 1_000}
    # Four sends of an attempt: 5 s, 5 s, 10 s, and the rest.
    assert world.slept == [0.1, 0.2, 0.4, 0.0, 7.0] * 2
    assert world.now == pytest.approx(100 + 2 * (30 + 7))
    assert [record.getMessage() for record in caplog.records] == [
        "_TIMED_OUT (Local: Timed out) on ListOffsets (partition a) for 30 s: retrying in 7 s "
        f"after attempt {number} of 3"
        for number in (1, 2)
    ]


def test_what_is_missing_is_absent_and_does_not_hold_up_the_rest() -> None:
    world = World({"a": 1_000, "b": UNKNOWN, "c": KafkaError._UNKNOWN_PARTITION})
    assert world.run("a", "b", "c") == {"a": 1_000}
    assert len(world.asked) == 1


def test_what_only_seems_to_be_missing_is_asked_again() -> None:
    world = World({"a": UNKNOWN, "b": UNKNOWN}, {"a": 1_000}, there=["a"])
    assert world.run("a", "b") == {"a": 1_000}
    assert world.asked == [("a", "b"), ("a",)]


def test_a_partition_without_a_leader_is_named_as_such() -> None:
    """librdkafka reports "no such entry" if no requested partition has a leader."""
    world = World({"a": KafkaError._NOENT}, there=["a"])
    with pytest.raises(RetriesExhaustedError) as caught:
        world.run("a", attempts=1)

    assert caught.value.error.code() == KafkaError.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessError),
        (KafkaError.TOPIC_EXCEPTION, InvalidRequestError),
    ],
)
def test_what_does_not_pass_ends_it_at_once(code: int, error: type[Exception]) -> None:
    world = World({"a": NOT_LEADER, "b": code})
    with pytest.raises(error, match="partition b"):
        world.run("a", "b")
    assert world.slept == []


@given(
    timeout_s=st.floats(0.1, 600),
    # The time that each send takes of its limit.
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=50),
)
def test_no_send_outlasts_its_attempt_and_one_has_a_third_of_it(
    timeout_s: float, shares: list[float]
) -> None:
    """Or the whole short limit: brokers that need that long are answered by."""
    elapsed, longest = 0.0, 0.0
    for share in [*shares, *[1.0] * 200]:
        if elapsed >= timeout_s:
            break
        limits = send_limits(elapsed, timeout_s)
        assert 0 <= limits.after_failed_connect_s <= limits.timeout_s
        assert elapsed + limits.timeout_s <= timeout_s + 1e-6
        longest = max(longest, limits.timeout_s)
        elapsed += max(limits.timeout_s * share, 1e-3)
    assert elapsed >= timeout_s or len(shares) == 50
    assert longest >= min(5.0, timeout_s)
