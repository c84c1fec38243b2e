"""Splitting KPL aggregates: the KCL's rules where it has some, and nothing lost where not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange
from spark_ssp.kinesis_source.aggregation.deaggregation import (
    MAGIC,
    KeyFilter,
    UserRecord,
    has_aggregate_magic,
    last_sub,
    split,
)
from tests.support.kcl.kpl import Put, aggregate, seal
from tests.support.kcl.kpl_by_hand import (
    IN_LOWER,
    IN_UPPER,
    LOWER,
    UPPER,
    child,
    chunk,
    expect_whole,
    hash_of,
    number,
    user_record,
)

# --- Aggregates -----------------------------------------------------------------------------------


def test_golden_bytes_with_shared_keys_and_an_explicit_hash_key() -> None:
    data = bytes.fromhex(
        "f3899ac2"
        "0a0161"  # partition_key_table: "a"
        "0a026262"  # partition_key_table: "bb"
        "120137"  # explicit_hash_key_table: "7"
        "1a0608001a026869"  # record: key 0, data "hi"
        "1a06080110001a00"  # record: key 1, explicit hash key 0, no data
        "1a0508001a0121"  # record: key 0, data "!"
        "20a4824dbd15f024d5b43ec166310fb0"  # MD5 of the message
    )
    assert split(data) == (
        UserRecord(partition_key="a", data=b"hi", sub=0),
        UserRecord(partition_key="bb", data=b"", sub=1),
        UserRecord(partition_key="a", data=b"!", sub=2),
    )
    assert last_sub(data) == 2


def test_an_aggregate_of_one() -> None:
    data = seal(chunk(1, b"k") + user_record(0, b"only"))
    assert split(data) == (UserRecord(partition_key="k", data=b"only", sub=0),)
    assert last_sub(data) == 0


def test_fields_may_come_in_any_order_and_unknown_ones_and_tags_are_passed_over() -> None:
    tag = chunk(4, chunk(1, b"tag") + chunk(2, b"value"))
    record = chunk(3, tag + chunk(3, b"x") + number(1, 0) + chunk(99, b"new"))
    data = seal(record + chunk(77, b"newer") + chunk(1, b"k"))
    assert split(data) == (UserRecord(partition_key="k", data=b"x", sub=0),)


AWS_AGGREGATOR = """
from aws_kinesis_agg.aggregator import RecordAggregator
made = RecordAggregator()
for number in range(40):
    made.add_user_record(f"key-{number % 7}", b"payload-%d" % number, str(number))
print(made.clear_and_get().get_contents()[2].hex())
"""


def test_what_another_library_aggregates_is_split() -> None:
    """In a separate process: importing that library changes the search path for modules."""
    made = subprocess.run(
        [sys.executable, "-c", AWS_AGGREGATOR], check=True, capture_output=True, text=True
    )
    assert split(bytes.fromhex(made.stdout)) == tuple(
        UserRecord(partition_key=f"key-{n % 7}", data=b"payload-%d" % n, sub=n) for n in range(40)
    )


def test_only_what_may_be_an_aggregate_looks_like_one() -> None:
    assert has_aggregate_magic(seal(b"x"))
    assert not any(map(has_aggregate_magic, [b"", MAGIC, seal(b""), b"plain" * 100]))


def test_protobuf_is_not_imported_for_plain_records() -> None:
    code = (
        "import sys;"
        "from spark_ssp.kinesis_source.aggregation.deaggregation import last_sub, split;"
        "from spark_ssp.grouping.identifiers import HashRange;"
        "split(b'plain', HashRange(first=0, last=1)); last_sub(b'plain');"
        "assert not [name for name in sys.modules if name.startswith('google')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_process_wide_descriptor_pool_stays_the_users() -> None:
    """The user's own `messages.proto` may define what it likes, before us or after us."""
    code = """
from google.protobuf import descriptor_pb2, descriptor_pool
from spark_ssp.kinesis_source.aggregation import kpl_proto
for name in ("messages.proto", "config.proto", "spark_ssp/kpl.proto"):
    file = descriptor_pb2.FileDescriptorProto(name=name, package="aws.kinesis.protobuf")
    file.message_type.add(name="Record" + name[0])
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- Other records --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"plain", id="plain"),
        pytest.param(MAGIC, id="magic alone"),
        pytest.param(MAGIC + b"\0" * 16, id="no message"),
        pytest.param(seal(b""), id="empty message, right checksum"),
        pytest.param(MAGIC + b"\0" * 500, id="magic, then something else"),
        pytest.param(MAGIC[:3] + seal(chunk(1, b"k"))[3:].replace(b"\xc2", b"\0"), id="near magic"),
        pytest.param(b"\0" + seal(chunk(1, b"k") + user_record(0, b"x")), id="shifted"),
        pytest.param(seal(chunk(1, b"k") + user_record(0, b"x")) + b"\0", id="trailing byte"),
        pytest.param(seal(b"\xff\xff\xff\xff"), id="no protobuf"),
        pytest.param(seal(user_record(0, b"x")), id="no partition keys"),
        pytest.param(seal(chunk(1, b"k") + user_record(1, b"x")), id="key index out of table"),
        pytest.param(
            seal(chunk(1, b"k") + user_record(0, b"x") + user_record(1 << 32, b"y")),
            id="key index that is 0 in 32 bits, after a good record",
        ),
        pytest.param(seal(chunk(1, b"k") + user_record(0, b"x", 0)), id="no explicit hash keys"),
        pytest.param(
            seal(chunk(1, b"k") + chunk(2, b"1") + user_record(0, b"x", 1)),
            id="explicit index out of table",
        ),
        pytest.param(seal(chunk(1, b"k") + chunk(3, chunk(3, b"x"))), id="no key index"),
        pytest.param(seal(chunk(1, b"k") + chunk(3, number(1, 0))), id="no data"),
        pytest.param(seal(chunk(1, b"\xff\xfe") + user_record(0, b"x")), id="key is not UTF-8"),
        pytest.param(
            seal(chunk(1, b"k") + chunk(2, b"\xff") + user_record(0, b"x")),
            id="unused explicit hash key is not UTF-8",
        ),
    ],
)
def test_any_fault_passes_the_record_through_whole(data: bytes) -> None:
    expect_whole(data)


@pytest.mark.parametrize(
    "explicit",
    ["", "-1", "+1", "0x1", "1.0", " 1", "1_0", "٣", "²", str(MAX_HASH_KEY + 1), "1" * 5000],
)
def test_an_explicit_hash_key_that_is_none_is_a_fault(explicit: str) -> None:
    bad = Put(partition_key=IN_LOWER, data=b"x", explicit_hash_key=explicit)
    good = Put(partition_key=IN_LOWER, data=b"y")
    for puts in ([bad], [good, bad], [bad, good]):
        expect_whole(aggregate(puts))


def test_an_unused_explicit_hash_key_is_not_looked_at() -> None:
    data = seal(chunk(1, b"k") + chunk(2, b"none") + user_record(0, b"x"))
    assert split(data) == (UserRecord(partition_key="k", data=b"x", sub=0),)


def test_a_fault_wins_over_a_user_record_outside_the_shard() -> None:
    """In any shard, so that `last_sub`, which has no shard, agrees with `split`."""
    key = IN_UPPER.encode()
    expect_whole(seal(chunk(1, key) + user_record(0, b"outside") + user_record(5, b"faulty")))


# --- The shard's hash range -----------------------------------------------------------------------


def test_the_hash_of_a_partition_key_is_its_md5_as_a_number() -> None:
    data = aggregate([Put(partition_key="клён", data=b"x")])
    middle = hash_of("клён")
    exact = HashRange(first=middle, last=middle)
    assert split(data, child(exact)) == (UserRecord(partition_key="клён", data=b"x", sub=0),)
    assert split(data, child(HashRange(first=0, last=middle - 1))) == ()
    assert split(data, child(HashRange(first=middle + 1, last=MAX_HASH_KEY))) == ()


@pytest.mark.parametrize("hash_key", [0, 1, (1 << 127) - 1, 1 << 127, MAX_HASH_KEY])
def test_an_explicit_hash_key_counts_instead_of_the_partition_key(hash_key: int) -> None:
    for partition_key in (IN_LOWER, IN_UPPER):
        put = Put(partition_key=partition_key, data=b"x", explicit_hash_key=str(hash_key))
        expected = (UserRecord(partition_key=partition_key, data=b"x", sub=0),)
        inside, outside = (LOWER, UPPER) if hash_key in LOWER else (UPPER, LOWER)
        assert split(aggregate([put]), child(inside)) == expected
        assert split(aggregate([put]), child(outside)) == ()
        assert split(aggregate([put]), child(HashRange(first=hash_key, last=hash_key)))


@pytest.mark.parametrize("stranger", [0, 2, 4], ids=["first", "middle", "last"])
def test_a_user_record_outside_the_shard_is_dropped_and_the_others_keep_their_numbers(
    stranger: int,
) -> None:
    """The producer saw a wrong shard and has put it again."""
    puts = [
        Put(partition_key=IN_UPPER if n == stranger else IN_LOWER, data=bytes([n]))
        for n in range(5)
    ]
    data = aggregate(puts)
    lower = split(data, child(LOWER))
    upper = split(data, child(UPPER))
    assert lower is not None
    assert upper is not None
    assert [(user.sub, user.data) for user in lower] == [
        (n, bytes([n])) for n in range(5) if n != stranger
    ]
    assert [(user.sub, user.data) for user in upper] == [(stranger, bytes([stranger]))]
    assert len(split(data) or ()) == 5
    assert last_sub(data) == 4


@pytest.mark.parametrize("stranger", [0, 1, 2], ids=["first", "middle", "last"])
def test_an_aggregate_that_was_made_for_no_ancestor_keeps_all_its_user_records(
    stranger: int,
) -> None:
    """It was not placed by its keys, so the others are not put again."""
    quarter = HashRange(first=0, last=(1 << 126) - 1)
    hash_keys = [0, 1 << 126, 0]  # of the shard, of its sibling, of the shard
    hash_keys[stranger] = MAX_HASH_KEY
    data = aggregate(
        [Put(partition_key="k", data=b"x", explicit_hash_key=str(key)) for key in hash_keys]
    )
    assert len(split(data, KeyFilter(own=quarter, family=LOWER)) or ()) == 3


def test_an_unused_partition_key_outside_the_shard_does_not_matter() -> None:
    data = seal(chunk(1, IN_UPPER.encode()) + chunk(1, IN_LOWER.encode()) + user_record(1, b"x"))
    assert split(data, child(LOWER)) == (UserRecord(partition_key=IN_LOWER, data=b"x", sub=0),)


def test_no_data_shows_in_a_repr() -> None:
    shown = repr(split(aggregate([Put(partition_key="secret", data=b"secret")])))
    assert "secret" not in shown
    assert "sub=0" in shown


def test_an_aggregate_without_user_records_gives_no_row() -> None:
    """As in the KCL. Its position is after user record 0, as that of any record."""
    empty = seal(chunk(1, b"k"))
    assert split(empty) == ()
    assert last_sub(empty) == 0


def test_unknown_fields_instead_of_user_records_are_not_lost() -> None:
    expect_whole(seal(chunk(1, b"k") + chunk(9, b"data of a later format")))
