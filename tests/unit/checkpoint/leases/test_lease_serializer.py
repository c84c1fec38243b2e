"""Rows of the lease table: golden ones of each KCL, and any at all."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from spark_ssp.checkpoint.leases.lease import (
    AttributeValue,
    Item,
    Lease,
    MalformedLeaseError,
    PendingCheckpoint,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
    StreamIdentifier,
    lease_key,
)
from spark_ssp.checkpoint.leases.lease_serializer import EntityType, ForeignRow, decode, encode
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import (
    EpochMillis,
    HashRange,
    SequenceNumber,
    ShardId,
    StreamName,
    WorkerId,
)
from tests.support.leases.values import SHARD, alike, any_lease, lease, processed

GOLDEN = sorted((Path(__file__).resolve().parents[3] / "golden").glob("lease_*.json"))
LEAST: dict[str, AttributeValue] = {
    "leaseKey": {"S": SHARD},
    "leaseCounter": {"N": "4"},
    "checkpoint": {"S": "49590338271490256608559692538361571095921575989136588898"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
}
ROWS: list[tuple[str, dict[str, Any]]] = [
    (f"{path.stem}: {row['what']}", row)
    for path in GOLDEN
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]
]


def of_json(item: Mapping[str, Mapping[str, Any]]) -> Item:
    """Bytes stand as base64 in the files."""
    return {
        name: {"B": b64decode(value["B"])} if "B" in value else value
        for name, value in item.items()
    }


def expected_progress(said: list[Any]) -> Progress:
    match said:
        case ["TRIM_HORIZON"]:
            return StartAtTrimHorizon()
        case ["TRIM_HORIZON", None, int(seen)]:
            return StartAtTrimHorizon(last_caught_up_ms=EpochMillis(seen))
        case ["LATEST", int(since), int(seen)]:
            return StartAtLatest(since_ms=EpochMillis(since), last_caught_up_ms=EpochMillis(seen))
        case ["AT_TIMESTAMP", int(millis), int(seen)]:
            return StartAtTimestamp(at_ms=EpochMillis(millis), last_caught_up_ms=EpochMillis(seen))
        case ["LATEST"]:
            return StartAtLatest()
        case ["LATEST", int(since)]:
            return StartAtLatest(since_ms=EpochMillis(since))
        case ["AT_TIMESTAMP", None]:
            return StartAtTimestamp(at_ms=None)
        case ["AT_TIMESTAMP", int(millis)]:
            return StartAtTimestamp(at_ms=EpochMillis(millis))
        case [str(digits), int(sub), int(seen)]:
            return Processed(
                sequence_number=SequenceNumber(digits), sub=sub, last_caught_up_ms=EpochMillis(seen)
            )
        case ["SHARD_END"]:
            return ShardEnded()
        case [str(digits), int(sub)]:
            return Processed(sequence_number=SequenceNumber(digits), sub=sub)
    raise AssertionError(said)


def expected_lease(said: dict[str, Any]) -> Lease:
    fields: dict[str, Any] = {"counter": 0} | said
    fields["progress"] = expected_progress(said["progress"])
    fields["has_entity_type"] = fields.pop("marked", True)
    if "hash_range" in said:
        first, last = said["hash_range"]
        fields["hash_range"] = HashRange(first=int(first), last=int(last))
    if "stream" in said:
        account, name, created = said["stream"].split(":")
        fields["stream"] = StreamIdentifier(
            account=account, name=StreamName(name), created=int(created)
        )
    if "pending" in said:
        fields["pending"] = PendingCheckpoint(
            progress=expected_progress(said["pending"]["progress"]),
            state=said["pending"]["state"].encode(),
        )
    return Lease(**fields)


def test_there_are_golden_rows_of_three_versions_and_our_own() -> None:
    composed = {"lease_kcl_2_7", "lease_kcl_3_1", "lease_kcl_3_5"}
    recorded = {"lease_kcl_2_7_recorded", "lease_kcl_3_1_recorded"}
    ours = {"lease_ssp_1", "lease_ssp_2", "lease_ssp_3"}
    assert {path.stem for path in GOLDEN} == composed | recorded | ours
    kinds = {row.get("foreign", [None, "LEASE"])[1] for _, row in ROWS}
    assert kinds == {"LEASE", "LEADER", "WORKER_METRIC_STATS", "CLIENT_VERSION_MIGRATION"}


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=[name for name, _ in ROWS])
def test_a_golden_row_is_read(row: dict[str, Any]) -> None:
    found = decode(of_json(row["item"]))
    if "foreign" in row:
        key, entity_type = row["foreign"]
        assert found == ForeignRow(key=key, entity_type=entity_type)
    else:
        assert found == expected_lease(row["reads_as"])
        assert not found.extra_attributes


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=name) for name, row in ROWS if "reads_as" in row],
)
def test_a_golden_lease_is_written_as_it_was(row: dict[str, Any]) -> None:
    found = decode(of_json(row["item"]))
    assert isinstance(found, Lease)
    assert alike(encode(found)) == alike(of_json(row["item"]))


@given(any_lease)
def test_any_lease_is_read_as_it_was_written(lease: Lease) -> None:
    item = encode(lease)
    assert decode(item) == lease
    assert encode(lease) == item
    assert pickle.loads(pickle.dumps(lease)) == lease


def test_a_written_row_is_plain_data() -> None:
    assert {type(name) for name in encode(lease(parents=(SHARD,)))} == {str}


# --- Single attributes ---------------------------------------------------------------------------


def test_three_attributes_make_a_lease() -> None:
    found = decode(LEAST)
    assert found == lease(
        counter=4,
        progress=processed(49590338271490256608559692538361571095921575989136588898),
        has_entity_type=False,
    )


def test_unknown_attributes_survive() -> None:
    more: dict[str, AttributeValue] = {
        "colour": {"S": "blue"},
        "pairs": {"M": {"a": {"L": [{"N": "1"}]}}},
    }
    found = decode(LEAST | more)
    assert isinstance(found, Lease)
    assert found.extra_attributes == more
    assert alike({name: encode(found)[name] for name in more if name == "colour"}) == {
        "colour": ("S", "blue")
    }
    assert encode(found)["pairs"] == more["pairs"]


def test_what_is_read_shares_nothing_with_the_row() -> None:
    item: dict[str, Any] = {**LEAST, "pairs": {"M": {"a": {"N": "1"}}}}
    found = decode(item)
    item["pairs"]["M"]["a"]["N"] = "2"
    assert isinstance(found, Lease)
    assert found.extra_attributes == {"pairs": {"M": {"a": {"N": "1"}}}}


def test_the_start_time_stands_beside_at_timestamp() -> None:
    start = StartAtTimestamp(at_ms=EpochMillis(1_763_733_600_123))
    item = encode(lease(progress=start))
    assert item["checkpoint"] == {"S": "AT_TIMESTAMP"}
    assert item["sspCheckpointTimestamp"] == {"N": "1763733600123"}
    found = decode(item)
    assert isinstance(found, Lease)
    assert found.progress == start


def test_the_time_of_the_last_proof_stands_beside_a_sequence_number() -> None:
    """A KCL worker that checkpoints leaves it, and it stays true."""
    progress = replace(processed(7, 3), last_caught_up_ms=EpochMillis(1_763_733_600_123))
    item = encode(lease(progress=progress))
    assert item["checkpoint"] == {"S": "7"}
    assert item["sspCheckpointTimestamp"] == {"N": "1763733600123"}
    found = decode({**item, "checkpoint": {"S": "9"}})
    assert isinstance(found, Lease)
    assert found.progress == replace(progress, sequence_number=SequenceNumber("9"))


def test_the_time_of_a_start_counts_only_beside_it() -> None:
    start = StartAtTimestamp(at_ms=EpochMillis(3), last_caught_up_ms=EpochMillis(7))
    item = encode(lease(progress=start))
    assert item["sspCaughtUpTimestamp"] == {"N": "7"}
    found = decode({**item, "checkpoint": {"S": "9"}})
    assert isinstance(found, Lease)
    assert found.progress == replace(processed(9), last_caught_up_ms=EpochMillis(3))


@pytest.mark.parametrize("word", ["TRIM_HORIZON", "SHARD_END"])
def test_a_time_left_behind_counts_no_more(word: str) -> None:
    left = {"sspCheckpointTimestamp": {"N": "1763733600123"}}
    plain = {**LEAST, "checkpoint": {"S": word}}
    assert decode(plain | left) == decode(plain)


def test_the_time_stands_beside_latest_as_well() -> None:
    """So that a restart does not skip what has arrived since the first start."""
    start = StartAtLatest(since_ms=EpochMillis(1_763_733_600_123))
    item = encode(lease(progress=start))
    assert item["checkpoint"] == {"S": "LATEST"}
    assert item["sspCheckpointTimestamp"] == {"N": "1763733600123"}
    found = decode(item)
    assert isinstance(found, Lease)
    assert found.progress == start


@pytest.mark.parametrize("word", ["AT_TIMESTAMP", "LATEST"])
def test_a_prepared_start_has_no_time(word: str) -> None:
    """There is one attribute for the time, and it belongs to the checkpoint."""
    item = LEAST | {"pendingCheckpoint": {"S": word}, "sspCheckpointTimestamp": {"N": "1"}}
    found = decode(item)
    assert isinstance(found, Lease)
    assert found.pending == PendingCheckpoint(
        progress=StartAtLatest() if word == "LATEST" else StartAtTimestamp(at_ms=None)
    )
    assert encode(found)["pendingCheckpoint"] == {"S": word}


def test_the_holder_is_ours_if_its_name_stands_beside() -> None:
    anne, bert = WorkerId("anne"), WorkerId("bert")
    item = encode(lease(owner=anne, ssp_owner=anne))
    assert item["sspOwner"] == {"S": "anne"}
    assert decode(item) == lease(owner=anne, ssp_owner=anne)
    assert lease(owner=anne, ssp_owner=anne).is_held_by_ssp
    assert lease(owner=bert, checkpoint_owner=anne, ssp_owner=anne).is_held_by_ssp
    assert not lease(owner=bert, ssp_owner=anne).is_held_by_ssp
    assert not lease(owner=anne, checkpoint_owner=bert, ssp_owner=anne).is_held_by_ssp
    assert not lease(owner=anne).is_held_by_ssp
    assert not lease().is_held_by_ssp


def test_throughput_is_a_number_however_it_is_written() -> None:
    for text in ("8.37E-4", "0.000837", "8.37e-04"):
        found = decode(LEAST | {"throughputKBps": {"N": text}})
        assert isinstance(found, Lease)
        assert found.throughput_kbps == 0.000837


def test_state_of_another_type_stays_as_it_is() -> None:
    """The KCL writes a number there when it creates a lease with a pending state."""
    more: dict[str, AttributeValue] = {
        "pendingCheckpoint": {"S": "12"},
        "pendingCheckpointState": {"N": "0"},
    }
    found = decode(LEAST | more)
    assert isinstance(found, Lease)
    assert found.pending == PendingCheckpoint(progress=processed(12))
    assert encode(found)["pendingCheckpointState"] == {"N": "0"}


def test_half_a_hash_range_is_none() -> None:
    found = decode(LEAST | {"startingHashKey": {"S": "0"}})
    assert isinstance(found, Lease)
    assert found.hash_range is None
    assert encode(found)["startingHashKey"] == {"S": "0"}


@pytest.mark.parametrize(
    "more",
    [
        {"streamName": {"S": "orders"}},
        {"streamName": {"S": "orders"}, "shardId": {"S": SHARD}},
        {"streamName": {"S": "111122223333:orders:17"}, "shardId": {"S": SHARD}},
    ],
)
def test_names_that_are_not_in_the_key_are_unknown_attributes(more: Item) -> None:
    found = decode(LEAST | dict(more))
    assert isinstance(found, Lease)
    assert found.shard == SHARD
    assert found.stream is None
    assert found.extra_attributes == more


def test_the_key_of_several_streams() -> None:
    orders = StreamIdentifier(account="111122223333", name=StreamName("orders"), created=17)
    assert lease_key(SHARD, orders) == f"111122223333:orders:17:{SHARD}"
    assert StreamIdentifier.parse(str(orders)) == orders
    for other in ("orders", "111122223333:orders", "a:orders:17", "1:or:ders:17", "1:o:017"):
        assert StreamIdentifier.parse(other) is None


# --- Rows that are no leases, or broken ----------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [*sorted(set(EntityType) - {EntityType.LEASE}), "OF_A_LATER_VERSION"]
)
def test_no_other_kind_of_row_is_read_as_a_lease(kind: str) -> None:
    """Not even one that has all that a lease needs."""
    found = decode(LEAST | {"entityType": {"S": kind}})
    assert found == ForeignRow(key=SHARD, entity_type=kind)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"leaseCounter": None}, "no leaseCounter"),
        ({"ownerSwitchesSinceCheckpoint": None}, "no ownerSwitchesSinceCheckpoint"),
        ({"checkpoint": None}, "no checkpoint"),
        ({"checkpoint": {"S": ""}}, "no checkpoint"),
        ({"checkpoint": {"S": "latest"}}, "checkpoint 'latest'"),
        ({"checkpoint": {"S": "٣"}}, "checkpoint '٣'"),
        ({"checkpoint": {"S": "1" * 130}}, "checkpoint '111"),
        ({"checkpoint": {"N": "12"}}, "checkpoint of type N"),
        ({"leaseCounter": {"S": "4"}}, "leaseCounter of type S"),
        ({"leaseCounter": {"N": "-1"}}, "leaseCounter -1"),
        ({"leaseCounter": {"N": "1.5"}}, "leaseCounter 1.5"),
        ({"leaseCounter": {"N": "1E+999999"}}, "leaseCounter 1E+999999"),
        ({"leaseCounter": {"N": "NaN"}}, "leaseCounter 'NaN'"),
        ({"throughputKBps": {"N": "fast"}}, "throughputKBps 'fast'"),
        ({"parentShardId": {"S": SHARD}}, "parentShardId of type S"),
        ({"entityType": {"N": "1"}}, "entityType of type N"),
        ({"startingHashKey": {"S": "5"}, "endingHashKey": {"S": "4"}}, "hash keys '5' to '4'"),
        ({"startingHashKey": {"S": "0"}, "endingHashKey": {"S": "x"}}, "hash keys '0' to 'x'"),
        ({"startingHashKey": {"S": "0"}, "endingHashKey": {"S": str(1 << 128)}}, "hash keys"),
        ({"pendingCheckpoint": {"S": "soon"}}, "pendingCheckpoint 'soon'"),
    ],
)
def test_a_broken_lease_is_an_error_that_says_what_is_wrong(
    more: dict[str, Any], found: str
) -> None:
    item = {name: value for name, value in (LEAST | more).items() if value is not None}
    with pytest.raises(MalformedLeaseError) as caught:
        decode(item)
    assert caught.value.subject == f"lease '{SHARD}'"
    assert found in caught.value.found


def test_the_owner_is_text_even_if_it_looks_like_a_number() -> None:
    for name in ("0", "00123"):
        item = encode(lease(owner=WorkerId(name)))
        assert item["leaseOwner"] == {"S": name}
        found = decode(item)
        assert isinstance(found, Lease)
        assert found.owner == name


def test_a_lease_shows_neither_state_nor_unknown_attributes() -> None:
    pending = PendingCheckpoint(progress=processed(1), state=b"secret-state")
    shown = repr(lease(pending=pending, extra_attributes={"note": {"S": "secret-note"}}))
    assert "secret" not in shown
    assert ShardId(SHARD) in shown
