"""The service whose records follow from the time."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kinesis.formula_service import FIRST_NUMBER, Answers, Formula
from benchmarks.kinesis.reshard_at_scale import check_order
from benchmarks.kinesis.service import STREAM

BEGAN = 1_700_000_000.0


@given(
    lines=st.integers(1, 50),
    rate=st.sampled_from([0.25, 1.0, 8.0]),
    place=st.integers(0, 1_000),
    data=st.data(),
)
def test_a_record_is_there_after_its_time(
    lines: int, rate: float, place: int, data: st.DataObject
) -> None:
    line = data.draw(st.integers(0, lines - 1))
    stream = Formula(lines=lines, rate=rate, began=BEGAN)
    arrives = stream.arrival(line, place)
    assert stream.count(line, arrives - 0.001) == place
    assert stream.count(line, arrives + 0.001) == place + 1


@given(
    lines=st.integers(1, 4),
    split=st.floats(0, 20),
    limits=st.lists(st.integers(1, 7), min_size=1, max_size=9),
    pauses=st.lists(st.floats(0, 3), min_size=1, max_size=9),
)
def test_parents_and_then_their_children_have_all_records_in_order(
    lines: int, split: float, limits: list[int], pauses: list[float]
) -> None:
    formula = Formula(lines=lines, rate=1.0, began=BEGAN)
    answers, now = Answers(formula), BEGAN

    def ask(operation: str, **request: Any) -> Any:
        return json.loads(answers.answer(operation, {"StreamName": STREAM, **request}, now))

    def read(shard: str) -> Iterator[int]:
        """The numbers of the pages up to the shard's end, or its last record."""
        nonlocal now
        opened = ask("GetShardIterator", ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        iterator = opened["ShardIterator"]
        for limit, pause in cycle(zip(limits, cycle(pauses), strict=False)):
            page = ask("GetRecords", ShardIterator=iterator, Limit=limit)
            assert len(page["Records"]) <= limit
            for record in page["Records"]:
                number = int(base64.b64decode(record["Data"]))
                assert int(record["SequenceNumber"]) == FIRST_NUMBER + number // lines
                assert record["PartitionKey"] == f"key-{number % (2 * lines)}"
                yield number
            iterator = page["NextShardIterator"]
            if iterator is None or (now > formula.ended and not page["MillisBehindLatest"]):
                return
            now += pause

    formula.split = BEGAN + split
    now = formula.split
    listed = ask("ListShards")["Shards"]
    assert len(listed) == 3 * lines
    closed = [shard for shard in listed if "EndingSequenceNumber" in shard["SequenceNumberRange"]]
    assert [shard["ShardId"] for shard in listed[:lines]] == [one["ShardId"] for one in closed]
    parents = [shard["ParentShardId"] for shard in listed[lines:]]
    assert parents == [one["ShardId"] for one in closed for _ in range(2)]
    numbers = [number for one in closed for number in read(one["ShardId"])]
    assert len(numbers) == formula.total(formula.split)
    formula.ended = now + 30
    now += 31
    for shard in listed[lines:]:
        numbers += read(shard["ShardId"])
    check_order(numbers, formula.total(formula.ended), keys=2 * lines)
    assert sum(answers.calls.values()) > 3 * lines
    assert answers.first["ListShards"] == formula.split
