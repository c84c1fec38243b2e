"""The Kinesis API reference, asserted over boto3: shards and streams."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from spark_ssp.operations.acceptance import rules
from tests.contract.services import FIRST, MIDDLE, SECOND, Quirk, Service, refusal, texts

if TYPE_CHECKING:
    pass

MAX_HASH_KEY = 2**128 - 1
MAX_LONG = 2**63 - 1


def test_the_shards_of_a_new_stream_share_the_hash_keys(service: Service) -> None:
    shards = service.listing(service.stream(3))
    assert len(shards) == 3
    assert list(rules.new_shards_share_the_hash_keys(shards)) == []
    for shard in shards:
        assert set(shard["SequenceNumberRange"]) == {"StartingSequenceNumber"}


def test_a_split_closes_the_parent_and_opens_two_children(service: Service) -> None:
    stream = service.stream()
    (before,) = service.put(stream, "a")
    whole = service.listing(stream)
    lower, upper = service.split(stream, FIRST, MIDDLE)
    shards = service.listing(stream)
    assert [shard["ShardId"] for shard in shards] == [FIRST, lower, upper]
    assert list(rules.a_split_opens_two_children(FIRST, MIDDLE, whole, shards)) == []
    for child in shards[1:]:
        starting = child["SequenceNumberRange"]["StartingSequenceNumber"]
        assert list(rules.numbers_grow([before, starting])) == []
    deviations = list(rules.the_end_is_not_before(shards[0], before))
    if service.has(Quirk.ENDING_NUMBER_IS_MAX_LONG):
        assert deviations
        ending = shards[0]["SequenceNumberRange"]["EndingSequenceNumber"]
        assert int(ending) == MAX_LONG
    else:
        assert deviations == []


def test_puts_after_a_split_go_to_the_children(service: Service) -> None:
    stream = service.stream()
    service.put(stream, "a")
    lower, upper = service.split(stream, FIRST, MIDDLE)
    service.put(stream, "b", key=0)
    service.put(stream, "c", key=MIDDLE)
    assert [service.read(stream, s) for s in (FIRST, lower, upper)] == ["a", "b", "c"]


def test_numbers_after_a_split_are_larger(service: Service) -> None:
    stream = service.stream()
    numbers = service.put(stream, *"ab")
    service.split(stream, FIRST, MIDDLE)
    assert list(rules.numbers_grow([*numbers, *service.put(stream, "c")])) == []


def test_the_last_page_of_a_closed_shard_names_its_children(service: Service) -> None:
    stream = service.stream()
    service.put(stream, *"ab")
    early = service.iterator(stream)
    service.split(stream, FIRST, MIDDLE)
    first = service.page(early, limit=1)
    page = service.page(first["NextShardIterator"])
    assert [texts(first), texts(page)] == ["a", "b"]
    shards = service.listing(stream)
    assert list(rules.the_end_names_the_children(FIRST, [first, page], shards)) == []


def test_positions_at_the_end_of_a_closed_shard(service: Service) -> None:
    stream = service.stream()
    (number,) = service.put(stream, "a")
    service.split(stream, FIRST, MIDDLE)
    for kind, more in (
        ("LATEST", {}),
        ("AFTER_SEQUENCE_NUMBER", {"StartingSequenceNumber": number}),
    ):
        page = service.page(service.iterator(stream, FIRST, kind, **more))
        assert page["Records"] == []
        shards = service.listing(stream)
        assert list(rules.the_end_names_the_children(FIRST, [page], shards)) == []


def test_a_merge_gives_one_child_with_two_parents(service: Service) -> None:
    stream = service.stream(2)
    service.put(stream, "a", key=0)
    (number,) = service.put(stream, "b", key=MIDDLE)
    before = service.listing(stream)
    child = service.merge(stream, FIRST, SECOND)
    shards = service.listing(stream)
    assert service.open_shards(stream) == [child]
    assert list(rules.a_merge_opens_one_child(FIRST, SECOND, before, shards)) == []
    assert list(rules.numbers_grow([number, *service.put(stream, "c")])) == []
    assert [service.read(stream, s) for s in (FIRST, SECOND, child)] == ["a", "b", "c"]
    page = service.page(service.iterator(stream, SECOND, "LATEST"))
    assert list(rules.the_end_names_the_children(SECOND, [page], shards)) == []


def test_an_empty_shard_can_be_closed_too(service: Service) -> None:
    stream = service.stream()
    token = service.iterator(stream)
    service.split(stream, FIRST, MIDDLE)
    page = service.page(token)
    assert page["Records"] == []
    ends = rules.the_end_names_the_children(FIRST, [page], service.listing(stream))
    assert list(ends) == []


def test_reshards_that_cannot_be_are_refused(service: Service) -> None:
    stream = service.stream(3)
    third = "shardId-000000000002"
    client = service.client
    split = {"StreamName": stream, "ShardToSplit": FIRST}
    outside = split | {"NewStartingHashKey": str(MAX_HASH_KEY)}
    assert refusal(client.split_shard, **outside) == "InvalidArgumentException"
    merge = {"StreamName": stream, "ShardToMerge": FIRST, "AdjacentShardToMerge": third}
    assert refusal(client.merge_shards, **merge) == "InvalidArgumentException"
    absent = split | {"ShardToSplit": "shardId-000000000009", "NewStartingHashKey": "5"}
    assert refusal(client.split_shard, **absent) == "ResourceNotFoundException"
    service.split(stream, FIRST, 5)
    closed = split | {"NewStartingHashKey": "7"}
    quirk = service.has(Quirk.CLOSED_SHARD_IS_IN_USE)
    expected = "ResourceInUseException" if quirk else "InvalidArgumentException"
    assert refusal(client.split_shard, **closed) == expected


def test_uniform_scaling(service: Service) -> None:
    stream = service.stream(2)
    answer = service.client.update_shard_count(
        StreamName=stream, TargetShardCount=4, ScalingType="UNIFORM_SCALING"
    )
    assert (answer["CurrentShardCount"], answer["TargetShardCount"]) == (2, 4)
    service.settled(stream)
    shards = service.shards(stream)
    found = service.open_shards(stream)
    assert len(found) == 4
    starts = sorted(int(shards[s]["HashKeyRange"]["StartingHashKey"]) for s in found)
    # "Shards of equal size" (UpdateShardCount): give or take the rounding of whole numbers.
    assert all(abs(start - n * 2**126) <= 4 for n, start in enumerate(starts))
    assert all("ParentShardId" in shards[s] for s in found)


# --- ListShards -----------------------------------------------------------------------------------


def test_list_shards_by_pages(service: Service) -> None:
    stream = service.stream(5)
    everything = list(service.shards(stream))
    answer = service.client.list_shards(StreamName=stream, MaxResults=2)
    found = [[s["ShardId"] for s in answer["Shards"]]]
    while "NextToken" in answer:
        answer = service.client.list_shards(NextToken=answer["NextToken"], MaxResults=2)
        found.append([s["ShardId"] for s in answer["Shards"]])
    assert list(rules.listing_pages_join(found, 2, everything)) == []
    after = service.client.list_shards(StreamName=stream, ExclusiveStartShardId=everything[2])
    assert [s["ShardId"] for s in after["Shards"]] == everything[3:]


def test_a_next_token_stands_alone(service: Service) -> None:
    stream = service.stream(2)
    token = service.client.list_shards(StreamName=stream, MaxResults=1)["NextToken"]
    both = refusal(service.client.list_shards, StreamName=stream, NextToken=token)
    assert both == "InvalidArgumentException"
    arn = service.summary(stream)["StreamARN"]
    for other in ({"StreamARN": arn}, {"ShardFilter": {"Type": "AT_LATEST"}}):
        found = refusal(service.client.list_shards, NextToken=token, **other)
        assert found == "InvalidArgumentException", other
    service.advance(301_000)
    if service.has(Quirk.NEXT_TOKEN_LIVES_ON):
        service.client.list_shards(NextToken=token)
    else:
        late = refusal(service.client.list_shards, NextToken=token)
        assert late == "ExpiredNextTokenException"


def test_list_shards_by_arn(service: Service) -> None:
    stream = service.stream(2)
    arn = service.summary(stream)["StreamARN"]
    assert arn.startswith("arn:aws:kinesis:us-east-1:")
    assert arn.endswith(f":stream/{stream}")
    found = service.client.list_shards(StreamARN=arn)["Shards"]
    assert [s["ShardId"] for s in found] == [FIRST, SECOND]


def test_shard_filters(service: Service) -> None:
    stream = service.stream()
    service.advance(10_000)
    children = service.split(stream, FIRST, MIDDLE)
    service.advance(10_000)
    at_split = datetime.fromtimestamp(service.now_ms() / 1000 - 15, UTC)
    after_split = datetime.fromtimestamp(service.now_ms() / 1000 - 5, UTC)

    def listed(**chosen: object) -> list[str]:
        answer = service.client.list_shards(StreamName=stream, ShardFilter=chosen)  # type: ignore[arg-type]
        return [s["ShardId"] for s in answer["Shards"]]

    assert listed(Type="AT_LATEST") == children
    assert listed(Type="FROM_TRIM_HORIZON") == [FIRST, *children]
    at_horizon = [FIRST, *children] if service.has(Quirk.TRIM_HORIZON_IS_NOW) else [FIRST]
    assert listed(Type="AT_TRIM_HORIZON") == at_horizon
    assert listed(Type="AFTER_SHARD_ID", ShardId=FIRST) == children
    assert listed(Type="AT_TIMESTAMP", Timestamp=at_split) == [FIRST]
    assert listed(Type="FROM_TIMESTAMP", Timestamp=at_split) == [FIRST, *children]
    assert listed(Type="AT_TIMESTAMP", Timestamp=after_split) == children
    assert listed(Type="FROM_TIMESTAMP", Timestamp=after_split) == children


def test_a_closed_shard_expires_after_retention(service: Service) -> None:
    stream = service.stream()
    children = service.split(stream, FIRST, MIDDLE)
    service.advance(23 * 3_600_000)
    assert list(service.shards(stream)) == [FIRST, *children]
    service.advance(3_600_000 + 60_000)
    left = [FIRST, *children] if service.has(Quirk.NOTHING_EXPIRES) else children
    assert list(service.shards(stream)) == left


# --- Streams --------------------------------------------------------------------------------------


def test_a_stream_is_described(service: Service) -> None:
    before = service.now_ms()
    stream = service.stream(2)
    summary = service.summary(stream)
    described = rules.summary_describes_the_stream(summary, name=stream, open_shards=2)
    assert list(described) == []
    assert summary["RetentionPeriodHours"] == 24
    created = round(summary["StreamCreationTimestamp"].timestamp() * 1000)
    assert before - 1000 <= created <= service.now_ms()
    full = service.client.describe_stream(StreamName=stream, Limit=1)["StreamDescription"]
    assert [s["ShardId"] for s in full["Shards"]] == [FIRST]
    assert full["HasMoreShards"] is True
    rest = service.client.describe_stream(StreamName=stream, ExclusiveStartShardId=FIRST)
    assert [s["ShardId"] for s in rest["StreamDescription"]["Shards"]] == [SECOND]


def test_streams_are_listed_by_pages(service: Service) -> None:
    made = [service.stream() for _ in range(3)]
    found: list[str] = []
    more = True
    while more:
        start = {"ExclusiveStartStreamName": found[-1]} if found else {}
        answer = service.client.list_streams(Limit=2, **start)
        assert len(answer["StreamNames"]) <= 2
        found += answer["StreamNames"]
        more = answer["HasMoreStreams"]
    assert set(made) <= set(found)
    assert found == sorted(set(found))


def test_a_stream_exists_once(service: Service) -> None:
    stream = service.stream()
    again = refusal(service.client.create_stream, StreamName=stream, ShardCount=1)
    assert again == "ResourceInUseException"


def test_a_recreated_stream_is_another(service: Service) -> None:
    stream = service.stream()
    (number,) = service.put(stream, "a")
    token = service.iterator(stream)
    created = service.summary(stream)["StreamCreationTimestamp"]
    service.client.delete_stream(StreamName=stream)
    service.until(lambda: stream not in service.stream_names())
    absent = refusal(service.client.describe_stream_summary, StreamName=stream)
    assert absent == "ResourceNotFoundException"
    assert refusal(service.page, iterator=token) == "ResourceNotFoundException"
    service.advance(2000)
    service.client.create_stream(StreamName=stream, ShardCount=1)
    service.settled(stream)
    assert service.summary(stream)["StreamCreationTimestamp"] > created
    assert service.read(stream) == ""
    get = service.client.get_shard_iterator
    stale: dict[str, Any] = {
        "StreamName": stream,
        "ShardId": FIRST,
        "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
        "StartingSequenceNumber": number,
    }
    if service.has(Quirk.FOREIGN_NUMBERS_PASS):
        get(**stale)
    else:
        assert refusal(get, **stale) == "InvalidArgumentException"


def test_retention_moves_within_its_bounds(service: Service) -> None:
    stream = service.stream()
    client = service.client
    increase, decrease = (
        client.increase_stream_retention_period,
        client.decrease_stream_retention_period,
    )
    increase(StreamName=stream, RetentionPeriodHours=48)
    service.settled(stream)
    assert service.summary(stream)["RetentionPeriodHours"] == 48
    for change, hours in ((increase, 47), (decrease, 49), (increase, 8761), (decrease, 23)):
        found = refusal(change, StreamName=stream, RetentionPeriodHours=hours)
        assert found == "InvalidArgumentException"
    decrease(StreamName=stream, RetentionPeriodHours=24)
    service.settled(stream)
    assert service.summary(stream)["RetentionPeriodHours"] == 24


def test_tags(service: Service) -> None:
    stream = service.stream()
    service.client.add_tags_to_stream(StreamName=stream, Tags={"a": "1", "b": "2"})
    service.client.remove_tags_from_stream(StreamName=stream, TagKeys=["a"])
    answer = service.client.list_tags_for_stream(StreamName=stream)
    assert (answer["Tags"], answer["HasMoreTags"]) == ([{"Key": "b", "Value": "2"}], False)
