"""Answers of PutRecords: all shards and codes are found, whichever way the answer is decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.kinesis_source.client.put_records import parse_outcome
from spark_ssp.kinesis_source.client.responses import DECODERS

NUMBERS = st.sampled_from([f"496{'0' * 53}", f"496{'9' * 53}", "7", "\\", '"', "}"])
SHARDS = st.sampled_from(["shardId-000000000000", "shardId-000000000071", "s", "}", 'a"b', "é"])
STORED = st.fixed_dictionaries({"SequenceNumber": NUMBERS, "ShardId": SHARDS})
REFUSED = st.fixed_dictionaries({"ErrorCode": st.just("E"), "ErrorMessage": SHARDS})


@given(
    st.lists(STORED, min_size=1, max_size=8) | st.lists(STORED | REFUSED, min_size=1, max_size=8),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.sampled_from([[], ["EncryptionType"]]),
    st.booleans(),
)
@example([{"SequenceNumber": "7", "ShardId": 'a"b'}], (",", ":"), [], True)
def test_each_entry_has_its_shard_or_its_code(
    results: list[dict[str, str]],
    separators: tuple[str, str],
    before: list[str],
    is_count_first: bool,
) -> None:
    answer: dict[str, Any] = dict.fromkeys(before, "KMS")
    failed = {"FailedRecordCount": sum("ErrorCode" in one for one in results)}
    answer |= failed | {"Records": results} if is_count_first else {"Records": results} | failed
    found = parse_outcome(_decoded(json.dumps(answer, separators=separators)), len(results))
    assert list(found.shards) == [one.get("ShardId") for one in results]
    assert list(found.codes or [None] * len(results)) == [one.get("ErrorCode") for one in results]
    assert list(found.shards[1:3]) == [one.get("ShardId") for one in results[1:3]]


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_an_answer_with_another_number_of_results_is_refused(entries: int) -> None:
    stored = {"SequenceNumber": "7", "ShardId": "shardId-000000000000"}
    answer = {"FailedRecordCount": 0, "Records": [stored, stored]}
    with pytest.raises(ValueError, match="results"):
        parse_outcome(_decoded(json.dumps(answer, separators=(",", ":"))), entries)


def _decoded(body: str) -> Any:
    decoded = DECODERS["PutRecords"](body.encode())
    assert decoded is not None
    return decoded
