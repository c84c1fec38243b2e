"""Commits to a group: the newest positions, one request at a time, and never at a query's cost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from spark_ssp.common.errors import AccessError, InvalidRequestError, SspError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.group_committer import (
    CommitPace,
    GroupCommitter,
    GroupOffsets,
    Positions,
)
from spark_ssp.kafka_source.model.topic import partition_of
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from tests.support.waiting import until

FAST = CommitPace(interval_s=0, pause_s=0, flush_s=60)
WAIT_S = 60


def at(offset: int) -> Positions:
    return {partition_of(StreamName("orders"), 0): offset}


class Group(GroupOffsets):
    """A group that answers when `answers` is released, with an error while `broken`."""

    def __init__(self) -> None:
        self.commits: list[Positions] = []
        self.asked = threading.Semaphore(0)
        self.answers = threading.Semaphore(0)
        self.broken = False
        self.settled = True
        self.connected = threading.Event()
        self.closed = threading.Event()

    def connect(self) -> None:
        self.connected.set()

    def commit(self, positions: Positions, timeout_s: float) -> bool:
        self.asked.release()
        assert self.answers.acquire(timeout=WAIT_S)
        if self.broken:
            raise AccessError("group", found="no", expected="yes", next_step="allow it")
        self.commits.append(positions)
        return self.settled

    def close(self) -> None:
        self.closed.set()

    def take(self) -> None:
        """Wait for a request, and answer it."""
        assert self.asked.acquire(timeout=WAIT_S)
        self.answers.release()


def committer(group: Group, clock: Callable[[], float] = lambda: 0.0) -> GroupCommitter:
    return GroupCommitter("lag", group, pace=FAST, monotonic=clock)


def test_one_commit_is_in_flight_and_the_newest_follows() -> None:
    group = Group()
    committing = committer(group)
    committing.submit(at(1))
    assert group.asked.acquire(timeout=WAIT_S)
    for offset in range(2, 100):
        committing.submit(at(offset))
    group.answers.release()
    group.take()
    committing.close()
    assert group.commits == [at(1), at(99)]
    assert group.closed.is_set()


def test_the_last_commit_is_flushed_by_closing() -> None:
    group = Group()
    group.answers.release(2)
    committing = GroupCommitter("lag", group, pace=CommitPace(interval_s=3600, flush_s=WAIT_S))
    committing.submit(at(1))
    assert group.asked.acquire(timeout=WAIT_S)
    committing.submit(at(2))
    committing.close()
    assert group.commits == [at(1), at(2)]


def test_same_positions_are_committed_again_after_a_while() -> None:
    group = Group()
    group.answers.release(10)
    now = [0.0]
    committing = committer(group, lambda: now[0])
    for time in (0.0, 1.0, 59.0, 60.0, 61.0, 120.0):
        now[0] = time
        committing.submit(dict(at(7)))
    committing.close()
    assert set(map(tuple, group.commits)) == {tuple(at(7))}
    assert 1 <= len(group.commits) <= 3


def test_positions_are_committed_again_until_they_are_settled() -> None:
    group = Group()
    group.settled = False
    committing = committer(group)
    committing.submit(at(7))
    group.take()
    group.take()
    assert group.asked.acquire(timeout=WAIT_S)
    group.settled = True
    group.answers.release()
    committing.close()
    assert group.commits == [at(7)] * 3


def test_a_query_without_positions_connects_and_commits_nothing() -> None:
    group = Group()
    committing = committer(group)
    committing.submit({})
    assert group.connected.wait(WAIT_S)
    committing.close()
    assert not group.asked.acquire(blocking=False)


def test_a_failure_is_one_warning_until_commits_succeed(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    group.broken = True
    committing = committer(group)
    with caplog.at_level(logging.INFO):
        committing.submit(at(1))
        for _ in range(5):
            group.take()
        assert group.asked.acquire(timeout=WAIT_S)
        committing.submit(at(2))
        group.broken = False
        group.answers.release(2)
        committing.close()
    assert group.commits[-1] == at(2)
    warning, again = (record.getMessage() for record in caplog.records)
    assert "not committed to consumer group lag" in warning
    assert "the query continues" in warning
    assert "[access] group: found no; expected yes. Next step: allow it" in warning
    assert again == "offsets are committed to consumer group lag again"


def test_flushing_waits_for_the_newest_positions(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    group.answers.release(2)
    committing = GroupCommitter("lag", group, pace=CommitPace(interval_s=3600))
    committing.submit(at(1))
    committing.flush(WAIT_S)
    committing.submit(at(2))
    committing.flush(WAIT_S)
    assert group.commits == [at(1), at(2)]
    committing.flush(WAIT_S)
    assert len(group.commits) == 2
    assert not caplog.records


def test_a_failed_flush_is_one_warning_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    group.broken = True
    group.answers.release(10)
    committing = GroupCommitter("lag", group, pace=CommitPace(pause_s=3600))
    for offset in (1, 2):
        committing.submit(at(offset))
        for _ in range(3):
            committing.flush(WAIT_S)
    texts = [one.getMessage() for one in caplog.records if "last offsets" in one.getMessage()]
    assert len(texts) == 2
    assert "may be missing in consumer group lag: [access] group: found no" in texts[0]
    group.broken = False
    committing.submit(at(3))
    committing.flush(WAIT_S)
    assert group.commits == [at(3)]


def test_closing_waits_a_limited_time(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    committing = GroupCommitter("lag", group, pace=CommitPace(flush_s=0.01))
    committing.submit(at(1))
    assert group.asked.acquire(timeout=WAIT_S)
    committing.close()
    group.answers.release()
    assert "may be missing in consumer group lag: no answer within 10 ms" in caplog.text
    assert group.closed.wait(WAIT_S)


def test_a_connection_that_is_not_used_is_closed() -> None:
    group = Group()
    pace = CommitPace(interval_s=0, idle_s=0.05, flush_s=WAIT_S)
    committing = GroupCommitter("lag", group, pace=pace)
    for offset in (1, 2):
        committing.submit(at(offset))
        group.take()
        assert group.closed.wait(WAIT_S)
        group.closed.clear()
    assert group.commits == [at(1), at(2)]
    committing.close()


# --- A group by a consumer ------------------------------------------------------------------------


class FakeConsumer:
    """Answers a commit in the next poll: by `answers`, each an error of the request, of a partition
    or of the client, or None."""

    def __init__(self, made: list[FakeConsumer], answers: list[Any], **callbacks: Any) -> None:
        made.append(self)
        self.answers = answers
        self.on_error = callbacks["on_error"]
        self.on_commit = callbacks["on_commit"]
        self.places: list[TopicPartition] = []
        self.closed = threading.Event()
        self.may_close = threading.Event()
        self.may_close.set()

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        self.places = offsets

    def poll(self, _: float) -> None:
        if not self.places:
            return
        places, self.places = self.places, []
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            self.on_error(KafkaError(answer[0]))
        else:
            self.on_commit(None if answer is None else KafkaError(answer), places)

    def close(self) -> None:
        assert self.may_close.wait(WAIT_S)
        self.closed.set()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> tuple[list[FakeConsumer], list[Any]]:
    made: list[FakeConsumer] = []
    given: list[Any] = []
    monkeypatch.setattr(
        "spark_ssp.kafka_source.group_committer.create_group_client",
        lambda _, __, **more: FakeConsumer(made, given, **more),
    )
    return made, given


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (KafkaError.UNKNOWN_MEMBER_ID, InvalidRequestError),
        ((KafkaError.GROUP_AUTHORIZATION_FAILED,), AccessError),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AccessError),
    ],
)
def test_after_an_error_another_consumer_commits(
    answers: tuple[list[FakeConsumer], list[Any]], answer: Any, error: type[SspError]
) -> None:
    made, given = answers
    given += [None, answer, None]
    group = GroupOffsets(ClientProperties(public=(), secret=()), "lag")
    group.commit(at(1), 5)
    with pytest.raises(error):
        group.commit(at(2), 5)
    assert made[0].closed.wait(WAIT_S)
    group.commit(at(3), 5)
    assert len(made) == 2
    group.close()
    assert made[1].closed.wait(WAIT_S)


def test_a_commit_is_settled_once_earlier_ones_cannot_overtake_it(
    answers: tuple[list[FakeConsumer], list[Any]],
) -> None:
    made, given = answers
    given += [None, KafkaError.GROUP_AUTHORIZATION_FAILED, *[None] * 50]
    group = GroupOffsets(ClientProperties(public=(), secret=()), "lag")
    assert group.commit(at(1), 5)
    made[0].may_close.clear()
    with pytest.raises(AccessError):
        group.commit(at(2), 5)
    assert not group.commit(at(3), 5)
    made[0].may_close.set()
    assert made[0].closed.wait(WAIT_S)
    until(lambda: group.commit(at(3), 5), "the end of the earlier consumer")
    group.close()


def test_an_error_that_passes_is_tried_again_and_missing_topics_are_left_out(
    answers: tuple[list[FakeConsumer], list[Any]],
) -> None:
    made, given = answers
    given += [KafkaError.NOT_COORDINATOR, KafkaError.UNKNOWN_TOPIC_OR_PART]
    group = GroupOffsets(ClientProperties(public=(), secret=()), "lag")
    group.commit(at(1), 5)
    assert (len(made), given) == (2, [])
    group.close()
