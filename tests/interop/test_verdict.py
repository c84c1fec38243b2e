"""The verdict itself: each fault that it is there for is found, and only that."""

from __future__ import annotations

import pytest

from spark_ssp.checkpoint.leases.lease import Processed, StartAtTrimHorizon
from spark_ssp.grouping.identifiers import SequenceNumber
from tests.interop.scene import Seen
from tests.interop.verdict import Verdict, verdict_on
from tests.support.kcl.workers import Read
from tests.support.leases.values import ANNE, BERT, SHARD, lease

KEYS = {1: "a", 2: "b", 3: "a", 4: "b"}


def read(worker: str, number: int, at: float, *, key: str | None = None) -> Read:
    """Return a read of number n, which is in the record with sequence number 100 n."""
    return Read(worker, at, SHARD, str(number * 100), 0, key or KEYS[number], str(number))


def seen(at: float, owner: str, number: int | None, *, switches: int = 0) -> Seen:
    """The lease, with all up to this number processed."""
    progress = (
        StartAtTrimHorizon()
        if number is None
        else Processed(sequence_number=SequenceNumber(str(number * 100)))
    )
    return Seen(at, lease(owner=owner, progress=progress, switches=switches))


HANDS = [seen(1, ANNE, None, switches=1), seen(3, ANNE, 2), seen(5, BERT, 2, switches=1)]


def judged(anne: list[int], bert: list[int]) -> Verdict:
    """Anne reads from 2 on, Bert from 6 on; the lease changes hands at 5."""
    reads: dict[str, list[Read]] = {
        ANNE: [read(ANNE, number, 2 + index / 10) for index, number in enumerate(anne)],
        BERT: [read(BERT, number, 6 + index / 10) for index, number in enumerate(bert)],
    }
    return verdict_on(KEYS, reads, HANDS)


def test_an_exact_take_over() -> None:
    verdict = judged([1, 2], [3, 4])
    verdict.check(duplicates=0)
    assert [(t.before, t.worker, t.behind) for t in verdict.take_overs] == [
        (None, ANNE, None),
        (ANNE, BERT, (200, 0)),
    ]


def test_what_was_read_and_not_checkpointed_may_come_twice() -> None:
    verdict = judged([1, 2, 3], [3, 4])
    assert verdict.twice == {3: (ANNE, BERT)}
    verdict.check(duplicates=1)
    with pytest.raises(AssertionError, match="more than 0 duplicates"):
        verdict.check(duplicates=0)


def test_what_was_checkpointed_may_not() -> None:
    with pytest.raises(AssertionError, match="read again although checkpointed"):
        judged([1, 2], [2, 3, 4]).check(duplicates=9)


def test_a_lost_record() -> None:
    with pytest.raises(AssertionError, match="lost"):
        judged([1, 2], [4]).check(duplicates=9)


def test_a_record_that_nobody_put() -> None:
    made_up = read(ANNE, 5, 2.5, key="a")
    reads: dict[str, list[Read]] = {ANNE: [*(read(ANNE, number, 2) for number in KEYS), made_up]}
    with pytest.raises(AssertionError, match="never put"):
        verdict_on(KEYS, reads, HANDS[:2]).check(duplicates=9)


def test_a_key_out_of_order() -> None:
    with pytest.raises(AssertionError, match="out of order"):
        judged([3, 1, 2], [4]).check(duplicates=9)


def test_a_new_owner_that_has_checkpointed_before_it_is_seen() -> None:
    """Only the previous owner's checkpoint is then certain to have been processed."""
    hands = [*HANDS[:2], seen(7, BERT, 4)]
    reads: dict[str, list[Read]] = {
        ANNE: [read(ANNE, 1, 2), read(ANNE, 2, 2.1)],
        BERT: [read(BERT, 3, 7.1), read(BERT, 4, 7.2)],
    }
    verdict_on(KEYS, reads, hands).check(duplicates=0)
