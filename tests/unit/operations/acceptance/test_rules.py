"""Each rule accepts the embedded service's answers and notices a deviation."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from spark_ssp.grouping.identifiers import hash_of
from spark_ssp.operations.acceptance import rules
from spark_ssp.operations.acceptance.account import Kind
from spark_ssp.operations.acceptance.rules import Put, Row
from spark_ssp.operations.acceptance.steps import Plan
from spark_ssp.operations.commands.acceptance import cli_options, costs, scrubbed
from spark_ssp.testing.kinesis import KinesisState
from tests.support.kinesis.embedded_calls import FIRST, ORDERS, SECOND, answered

MIDDLE: Final = 1 << 126
NOON: Final = datetime(2026, 11, 27, 12, tzinfo=UTC)
THIRD: Final = "shardId-000000000002"


def listing(state: KinesisState) -> list[dict[str, Any]]:
    found = answered(state, "ListShards", **ORDERS)["Shards"]
    assert isinstance(found, list)
    return deepcopy(found)


class Reshards:
    """Listings of a stream of two shards: new, after a split of the first, and after a merge."""

    def __init__(self) -> None:
        state = KinesisState()
        state.create_stream("orders", shards=2)
        self.new = listing(state)
        state.split("orders", FIRST, MIDDLE)
        self.split = listing(state)
        children = [s["ShardId"] for s in self.split[2:]]
        self.upper = children[1]
        state.merge("orders", self.upper, SECOND)
        self.merged = listing(state)


@pytest.fixture
def reshards() -> Reshards:
    return Reshards()


def deviates(found: Iterable[str], text: str) -> None:
    """There is exactly one deviation, with this text."""
    (only,) = found
    assert text in only


def test_new_shards(reshards: Reshards) -> None:
    def check() -> list[str]:
        return list(rules.new_shards_share_the_hash_keys(reshards.new))

    assert check() == []
    reshards.new[1]["ParentShardId"] = FIRST
    deviates(check(), "ParentShardId")
    del reshards.new[1]["ParentShardId"]
    reshards.new[1]["HashKeyRange"]["StartingHashKey"] = "7"
    deviates(check(), "hash keys")
    assert len(list(rules.new_shards_share_the_hash_keys(reshards.split))) > 1


def test_a_split(reshards: Reshards) -> None:
    def check(at: int = MIDDLE) -> list[str]:
        rule = rules.a_split_opens_two_children(FIRST, at, reshards.new, reshards.split)
        return list(rule)

    assert check() == []
    deviates(check(at=5), "divided at the split")
    reshards.split[2]["ParentShardId"] = SECOND
    deviates(check(), "parents of")
    reshards.split.pop()
    deviates(check(), "two children")
    nothing = rules.a_split_opens_two_children(FIRST, MIDDLE, reshards.new, reshards.new)
    assert [text.partition(":")[0] for text in nothing] == [FIRST, "new shards"]


def test_a_merge(reshards: Reshards) -> None:
    def check() -> list[str]:
        rule = rules.a_merge_opens_one_child(
            reshards.upper, SECOND, reshards.split, reshards.merged
        )
        return list(rule)

    assert check() == []
    child = reshards.merged[-1]
    child["HashKeyRange"]["EndingHashKey"] = "9"
    deviates(check(), "both parents")
    child["HashKeyRange"] = rules.by_id(reshards.new)[SECOND]["HashKeyRange"]
    del child["AdjacentParentShardId"]
    assert len(check()) == 2


def test_the_end_of_a_shard(reshards: Reshards) -> None:
    children = [
        {
            "ShardId": shard["ShardId"],
            "ParentShards": [FIRST],
            "HashKeyRange": shard["HashKeyRange"],
        }
        for shard in reshards.split[2:]
    ]
    last: dict[str, Any] = {"Records": [], "MillisBehindLatest": 0, "ChildShards": children}
    first = {"Records": [], "MillisBehindLatest": 9, "NextShardIterator": "i"}

    def check(*pages: dict[str, Any]) -> list[str]:
        return list(rules.the_end_names_the_children(FIRST, pages, reshards.split))

    assert check(first, last) == []
    deviates(check(), "found no end")
    deviates(check(last, first), "found no end")
    deviates(check(first | {"ChildShards": children}, last), "in a page with an iterator")
    deviates(check(last | {"MillisBehindLatest": 1}), "MillisBehindLatest")
    deviates(check(last | {"ChildShards": children[:1]}), "ChildShards")
    wrong = [children[0], children[1] | {"ParentShards": [SECOND]}]
    deviates(check(last | {"ChildShards": wrong}), "parents of")


def test_the_ending_number(reshards: Reshards) -> None:
    closed = rules.by_id(reshards.split)[FIRST]
    ending = closed["SequenceNumberRange"]["EndingSequenceNumber"]
    assert list(rules.the_end_is_not_before(closed, ending)) == []
    deviates(rules.the_end_is_not_before(closed, str(int(ending) + 1)), "EndingSequenceNumber")


def test_the_summary() -> None:
    summary: dict[str, Any] = {
        "StreamName": "orders",
        "StreamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
        "StreamStatus": "ACTIVE",
        "RetentionPeriodHours": 24,
        "StreamCreationTimestamp": NOON,
        "OpenShardCount": 2,
    }

    def check(**changes: object) -> list[str]:
        changed = summary | changes
        return list(rules.summary_describes_the_stream(changed, name="orders", open_shards=2))

    assert check() == []
    for name in summary:
        deviates(check(**{name: None}), name)
    assert "123456789012" not in "".join(check(StreamARN=summary["StreamARN"] + "x"))


def test_listing_pages() -> None:
    assert list(rules.listing_pages_join([[FIRST], [SECOND]], 1, [FIRST, SECOND])) == []
    deviates(rules.listing_pages_join([[FIRST], [FIRST]], 1, [FIRST, SECOND]), "in all pages")
    deviates(rules.listing_pages_join([[FIRST, SECOND]], 1, [FIRST, SECOND]), "in a page")


# --- Records -------------------------------------------------------------------------------------


def put(number: int, shard: str = FIRST, *, data: bytes = b"secret", **more: Any) -> Put:
    return Put(shard=shard, number=str(number), key="key", data=data, **more)


def record(number: int, at_s: int = 0, data: bytes = b"secret") -> dict[str, Any]:
    arrival = NOON + timedelta(seconds=at_s)
    return {
        "SequenceNumber": str(number),
        "PartitionKey": "key",
        "Data": data,
        "ApproximateArrivalTimestamp": arrival,
    }


def test_placement(reshards: Reshards) -> None:
    last = (1 << 128) - 1
    good = [put(1, FIRST, hash_key=0), put(2, SECOND, hash_key=last)]
    assert list(rules.keys_place_records(good, reshards.new)) == []
    deviates(rules.keys_place_records([put(1, FIRST, hash_key=last)], reshards.new), SECOND)
    by_key = put(1, SECOND if hash_of("key") > last // 2 else FIRST)
    assert list(rules.keys_place_records([by_key], reshards.new)) == []


def test_numbers() -> None:
    assert list(rules.numbers_grow(["9", "10", "11"])) == []
    deviates(rules.numbers_grow(["9", "9"]), "a larger number")
    assert list(rules.every_number_once(["10", "9"], ["9", "10"])) == []
    deviates(rules.every_number_once(["9", "10"], ["10", "9"]), "not in the order")
    deviates(rules.every_number_once(["9", "10"], ["9"]), "missing: 10")
    deviates(rules.every_number_once(["9"], ["9", "10"]), "not put")
    deviates(rules.every_number_once(["9"], ["9", "9"]), "1 row too many")


def test_records_and_no_data_in_the_texts() -> None:
    puts = [put(1), put(2)]
    assert list(rules.records_come_back(puts, [record(1), record(2)])) == []
    found = list(rules.records_come_back(puts, [record(1), record(2, data=b"foreign")]))
    deviates(found, "record 2: other data")
    keyless = record(2)
    del keyless["PartitionKey"]
    found += rules.records_come_back(puts, [record(1), keyless])
    assert "secret" not in "".join([*found, repr(puts)])
    assert "foreign" not in "".join(found)


def test_arrivals() -> None:
    records = [record(1), record(2, 5), record(3, 6)]
    noon_ms = rules.arrival_ms(records[0])
    assert list(rules.arrivals_keep_order(records, noon_ms, noon_ms + 6000)) == []
    back = [records[1], records[0]]
    deviates(rules.arrivals_keep_order(back, noon_ms, noon_ms + 6000), "after")
    late = rules.arrivals_keep_order(records, noon_ms, noon_ms + 3000)
    deviates(late, "2026-11-27T12:00:06Z; expected a time from 2026-11-27T11:59:58Z to")
    assert rules.numbers_from(records, noon_ms + 1) == ["2", "3"]
    assert rules.numbers_from(records, noon_ms + 6001) == []


def page(*numbers: int, lag: int = 0, following: str | None = "i") -> dict[str, Any]:
    found = {"Records": [record(n) for n in numbers], "MillisBehindLatest": lag}
    return found if following is None else found | {"NextShardIterator": following}


def test_pages() -> None:
    pages = [page(1, 2), page(3)]
    assert list(rules.pages_follow_each_other(pages, 2, ["1", "2", "3"])) == []
    deviates(rules.pages_follow_each_other(pages, 1, ["1", "2", "3"]), "records in a page")
    deviates(rules.pages_follow_each_other(pages, 2, ["1", "2", "3", "4"]), "missing: 4")
    assert list(rules.open_pages_go_on(pages)) == []
    deviates(rules.open_pages_go_on([page(following=None)]), "has no iterator")
    assert list(rules.a_position_begins_at("LATEST", ["1"], ["1"])) == []
    deviates(rules.a_position_begins_at("LATEST", ["1"], []), "found 1; expected none")


def test_lag() -> None:
    assert list(rules.the_latest_page_has_no_lag(page())) == []
    deviates(rules.the_latest_page_has_no_lag(page(lag=5)), "found 5; expected 0")
    assert list(rules.lag_counts_to_now(page(lag=9000), 9000)) == []
    deviates(rules.lag_counts_to_now(page(lag=0), 9000), "MillisBehindLatest")
    deviates(rules.lag_counts_to_now(page(lag=900_000), 9000), "MillisBehindLatest")


def test_refusals_and_distribution() -> None:
    assert list(rules.is_refused("x", "ValidationException", rules.REFUSED_REQUEST)) == []
    deviates(rules.is_refused("x", None, rules.EXPIRED), "found an answer; expected Expired")
    assert list(rules.auto_spreads_a_key([FIRST, SECOND], [FIRST, SECOND])) == []
    assert list(rules.auto_spreads_a_key([FIRST], [FIRST])) == []
    deviates(rules.auto_spreads_a_key([FIRST, FIRST], [FIRST, SECOND]), "more than one")


# --- Rows ----------------------------------------------------------------------------------------


def test_rows_of_batches() -> None:
    batches = [[[Row(FIRST, "1"), Row(FIRST, "2")]], [[Row(SECOND, "3")]]]
    expected = {FIRST: ["1", "2"], SECOND: ["3"]}
    assert list(rules.batches_have_every_record_once(expected, batches)) == []
    deviates(rules.batches_have_every_record_once(expected, batches[:1]), f"{SECOND}: missing: 3")
    twice = [*batches, [[Row(SECOND, "3")]]]
    deviates(rules.batches_have_every_record_once(expected, twice), "records come again")


def test_parents_come_first() -> None:
    shards = [{"ShardId": THIRD, "ParentShardId": FIRST}]
    parent, child = Row(FIRST, "1"), Row(THIRD, "2")
    for good in ([[[parent, child]]], [[[parent]], [[child]]], [[[child]]]):
        assert list(rules.parents_come_first(good, shards)) == []
    for wrong in ([[[child, parent]]], [[[child]], [[parent]]], [[[parent], [child]]]):
        deviates(rules.parents_come_first(wrong, shards), "come before")


def test_replays() -> None:
    one, two, other = Row(FIRST, "1"), Row(FIRST, "2"), Row(SECOND, "1")
    assert list(rules.a_replay_is_the_same([[one, other, two]], [[other, one, two]])) == []
    for wrong in ([[two, one, other]], [[one, two]], [[one, two], [other]]):
        deviates(rules.a_replay_is_the_same(wrong, [[one, two, other]]), "than at first")


def test_texts_are_without_accounts() -> None:
    text = "arn:aws:iam::123456789012:user/me may not; account 123456789012; shardId-000000000001"
    assert scrubbed(text) == "arn:*** may not; account ***; shardId-000000000001"
    number = "49670000000000000000000000000000000000000000000000000002"
    assert scrubbed(number) == number


def test_the_options_of_the_aws_cli() -> None:
    found = cli_options("r", {Kind.STREAM: None, Kind.TABLE: "http://localhost:1"}, "me")
    assert found == {
        Kind.STREAM: "--region r --profile me",
        Kind.TABLE: "--region r --profile me --endpoint-url http://localhost:1",
    }


def test_the_cost_has_every_part() -> None:
    plain = costs(Plan(name="trial", lease_table=True))
    assert round(sum(cost.usd for cost in plain), 2) == 0.12
    assert round(sum(cost.usd for cost in costs(Plan(name="trial", fan_out=True))), 2) == 0.19
