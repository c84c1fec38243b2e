"""The service whose records follow from the time."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kinesis.formula_service import FIRST_NUMBER, Answers, Formula
from benchmarks.kinesis.service import STREAM

BEGAN = 1_700_000_000.0


def formula(shards: int, rate: float) -> Formula:
    return Formula(shards=shards, rate=rate, began=BEGAN, data="eA==")


@given(
    shards=st.integers(1, 50),
    rate=st.sampled_from([0.25, 1.0, 8.0]),
    number=st.integers(0, 1_000),
    data=st.data(),
)
def test_a_record_is_there_from_its_time_on(
    shards: int, rate: float, number: int, data: st.DataObject
) -> None:
    shard = data.draw(st.integers(0, shards - 1))
    stream = formula(shards, rate)
    arrives = stream.arrival(shard, number)
    assert stream.count(shard, arrives - 0.001) == number
    assert stream.count(shard, arrives + 0.001) == number + 1


@given(
    limits=st.lists(st.integers(1, 7), min_size=1, max_size=30),
    pauses=st.lists(st.floats(0, 3), min_size=30, max_size=30),
)
def test_pages_follow_each_other_without_a_gap(limits: list[int], pauses: list[float]) -> None:
    answers, now = Answers(formula(3, 1.0)), BEGAN + 10

    def ask(operation: str, **request: Any) -> Any:
        return json.loads(answers.answer(operation, {"StreamName": STREAM, **request}, now))

    opened = ask(
        "GetShardIterator", ShardId="shardId-000000000001", ShardIteratorType="TRIM_HORIZON"
    )
    iterator, numbers = opened["ShardIterator"], []
    for limit, pause in zip(limits, pauses, strict=False):
        now += pause
        page = ask("GetRecords", ShardIterator=iterator, Limit=limit)
        numbers += [int(record["SequenceNumber"]) - FIRST_NUMBER for record in page["Records"]]
        assert len(page["Records"]) <= limit
        there = answers._formula.count(1, now)
        assert (page["MillisBehindLatest"] == 0) == (len(numbers) == there)
        iterator = page["NextShardIterator"]
    assert numbers == list(range(len(numbers)))
    assert answers.calls["GetRecords"] == len(limits)
