"""Splitting of aggregates: valid, damaged and unusual ones, and those made to cost more than they
weigh, which pass whole, for one row and one log line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model import kpl_proto
from spark_ssp.kinesis_source.model.deaggregation import (
    MAGIC,
    MAX_KEY_CHARACTERS,
    MAX_USER_BYTES,
    MAX_USER_RECORDS,
    KeyFilter,
    UserRecord,
    has_aggregate_magic,
    last_sub,
    split,
)
from spark_ssp.kinesis_source.model.shard import TrimHorizon
from spark_ssp.kinesis_source.reading import page_rows
from spark_ssp.kinesis_source.reading.arrow_batches import ROW_OVERHEAD_BYTES
from spark_ssp.kinesis_source.reading.page_rows import build_rows, slice_page
from tests.support.fakes.scripted import Rec, ScriptedService, ScriptedShard, recs
from tests.support.kcl.kpl import (
    GOLDEN,
    IN_LOWER,
    IN_UPPER,
    LOWER,
    UPPER,
    Put,
    aggregate,
    child,
    chunk,
    expect_whole,
    hash_of,
    number,
    payloads,
    seal,
    user_record,
    varint,
)
from tests.support.kinesis.pages import page
from tests.support.kinesis.reading import A, read, shard_range
from tests.support.kinesis.shards import after

# --- Aggregates -----------------------------------------------------------------------------------


def test_golden_bytes_with_shared_keys_and_an_explicit_hash_key() -> None:
    assert split(GOLDEN) == (
        UserRecord(partition_key="a", data=b"hi", sub=0),
        UserRecord(partition_key="bb", data=b"", sub=1),
        UserRecord(partition_key="a", data=b"!", sub=2),
    )
    assert last_sub(GOLDEN) == 2


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
        "from spark_ssp.kinesis_source.model.deaggregation import last_sub, split;"
        "from spark_ssp.grouping.identifiers import HashRange;"
        "split(b'plain', HashRange(first=0, last=1)); last_sub(b'plain');"
        "assert not [name for name in sys.modules if name.startswith('google')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_process_wide_descriptor_pool_stays_the_users() -> None:
    """The user's own `messages.proto` may define what it likes, before us or after us."""
    code = """
from google.protobuf import descriptor_pb2, descriptor_pool
from spark_ssp.kinesis_source.model import kpl_proto
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


MIB = 1 << 20
EMPTY_RECORD = user_record(0, b"")
FEW = chunk(1, b"k") + 3 * EMPTY_RECORD

BOMBS = {
    "one-huge-key": chunk(1, bytes(512 << 10)) + 65_000 * EMPTY_RECORD,
    "a-key-over-the-limit": chunk(1, b"k" * (MAX_KEY_CHARACTERS + 1)) + 3 * EMPTY_RECORD,
    "an-unused-key-over-the-limit": chunk(1, b"k" * 257) + chunk(1, b"k") + user_record(1, b""),
    "keys-of-four-bytes-a-character": chunk(1, "\N{GRINNING FACE}".encode() * 256)
    + (MAX_USER_BYTES // 1024 + 1) * EMPTY_RECORD,
    "too-many-user-records": chunk(1, b"k") + (MAX_USER_RECORDS + 1) * EMPTY_RECORD,
    "a-huge-table-of-keys": FEW + (MAX_USER_RECORDS + 1) * chunk(1, b""),
    "a-huge-table-of-hash-keys": FEW + (MAX_USER_RECORDS + 1) * chunk(2, b""),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_passes_whole_and_costs_little_more_than_its_size(name: str) -> None:
    data = seal(BOMBS[name])
    expect_whole(data)
    tracemalloc.start()
    try:
        split(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB + 2 * len(data)
    finally:
        tracemalloc.stop()


def test_a_bomb_costs_one_row_and_one_log_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_rows, "_warned", set())  # by other tests of this process
    bomb = seal(BOMBS["one-huge-key"])
    held = [*recs(1), Rec(sequence=2, data=bomb), Rec(sequence=3, data=bomb), *recs(4)]
    shard = ScriptedShard(shard_id=A, records=held)
    with caplog.at_level(logging.WARNING):
        rows = read(ScriptedService([shard]), shard_range(A, TrimHorizon(), after(4)))
    assert [(row.sequence, row.sub, row.data) for row in rows] == [
        (record.sequence, 0, record.data) for record in held
    ]
    (said,) = [each for each in caplog.records if "they are delivered whole" in each.message]
    assert "shardId-000000000000" in said.message


@pytest.mark.parametrize(
    "key", ["k" * 256, "\N{GRINNING FACE}" * 256], ids=["ascii", "four-bytes-a-character"]
)
def test_a_key_at_the_limit_is_split(key: str) -> None:
    data = aggregate([Put(partition_key=key, data=b"x")])
    assert split(data) == (UserRecord(partition_key=key, data=b"x", sub=0),)


def test_the_largest_aggregate_of_the_kpl_is_split_within_a_known_weight() -> None:
    """1 MiB of empty user records with one key of the largest size, in ASCII."""
    key = b"k" * MAX_KEY_CHARACTERS
    count = (MIB - len(chunk(1, key))) // len(EMPTY_RECORD)
    data = seal(chunk(1, key) + count * EMPTY_RECORD)
    of_one = page([data])
    cut = slice_page(of_one.sequence_numbers, None, after(1, count))
    shard = ShardKey(stream=StreamName("orders"), shard=ShardId("s"))
    chunk_of_rows = build_rows(of_one, cut, shard, deaggregate=True)
    assert len(chunk_of_rows) == count == last_sub(data) + 1
    assert chunk_of_rows.memory_bytes == count * (MAX_KEY_CHARACTERS + ROW_OVERHEAD_BYTES)
    assert chunk_of_rows.memory_bytes < 90 * MIB


NESTED_GROUPS = """
from google.protobuf.internal import api_implementation
from spark_ssp.kinesis_source.model.deaggregation import last_sub, split
from tests.support.kcl.kpl import seal
from tests.support.kcl.kpl import chunk, user_record
print(api_implementation.Type())
for depth in (10, 150, 2_000, 200_000):
    groups = b"\\x3b" * depth + b"\\x3c" * depth
    data = seal(chunk(1, b"k") + user_record(0, b"x") + groups)
    records = split(data)
    assert records is None or len(records) == 1
    assert last_sub(data) == 0
"""


@pytest.mark.parametrize("implementation", ["python", "upb"])
def test_nested_groups_never_raise(implementation: str) -> None:
    """In a process, because protobuf chooses its implementation when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", NESTED_GROUPS],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        cwd=Path(__file__).parents[4],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, implementation), done.stderr


def test_a_parser_that_recurses_without_a_limit_makes_a_faulty_aggregate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As protobuf's pure-Python implementation did up to 4.25.7, 5.29.4 and 6.31.0."""
    from spark_ssp.kinesis_source.model import kpl_proto

    class Recursing:
        @staticmethod
        def FromString(message: bytes) -> object:
            return Recursing.FromString(message)

    data = seal(FEW)
    assert last_sub(data) == 2
    monkeypatch.setattr(kpl_proto, "_AGGREGATED_RECORD", Recursing)
    expect_whole(data)


def varied() -> st.SearchStrategy[bytes]:
    """Messages of the format's fields in any order and number, and of others."""
    keys = st.one_of(st.binary(max_size=6), st.integers(250, 260).map(lambda size: b"k" * size))
    record = st.builds(
        lambda parts: chunk(3, b"".join(parts)),
        st.lists(
            st.one_of(
                st.integers(0, 4).map(lambda index: number(1, index)),
                st.integers(0, 2**70).map(lambda index: varint(1 << 3) + varint(index)),
                st.integers(0, 3).map(lambda index: number(2, index)),
                st.binary(max_size=8).map(lambda data: chunk(3, data)),
                st.binary(max_size=8).map(lambda tag: chunk(4, tag)),
            ),
            max_size=5,
        ),
    )
    groups = st.integers(0, 300).map(lambda depth: b"\x3b" * depth + b"\x3c" * depth)
    return st.lists(
        st.one_of(
            keys.map(lambda key: chunk(1, key)),
            st.one_of(keys, st.just(b"7")).map(lambda key: chunk(2, key)),
            record,
            groups,
            st.binary(max_size=8),
        ),
        max_size=12,
    ).map(b"".join)


@given(varied())
def test_any_message_is_split_or_passes_whole_and_both_ways_to_read_it_agree(
    message: bytes,
) -> None:
    data = seal(message)
    records = split(data)
    if records is None:
        expect_whole(data)
        return
    assert [record.sub for record in records] == list(range(last_sub(data) + bool(records)))
    assert all(len(record.partition_key) <= MAX_KEY_CHARACTERS for record in records)


puts_strategy = st.lists(
    st.builds(
        Put,
        partition_key=st.text(min_size=1, max_size=8) | st.sampled_from([IN_LOWER, IN_UPPER]),
        data=st.binary(max_size=40),
        explicit_hash_key=st.none() | st.integers(0, MAX_HASH_KEY).map(str),
    ),
    min_size=1,
    max_size=12,
)
range_strategy = st.tuples(st.integers(0, MAX_HASH_KEY), st.integers(0, MAX_HASH_KEY)).map(
    lambda ends: HashRange(first=min(ends), last=max(ends))
)


def effective_hash_key(put: Put) -> int:
    explicit = put.explicit_hash_key
    return hash_of(put.partition_key) if explicit is None else int(explicit)


@given(puts_strategy)
def test_what_was_aggregated_comes_back(puts: list[Put]) -> None:
    data = aggregate(puts)
    assert has_aggregate_magic(data)
    assert split(data) == tuple(
        UserRecord(partition_key=put.partition_key, data=put.data, sub=sub)
        for sub, put in enumerate(puts)
    )
    assert last_sub(data) == len(puts) - 1


@given(puts_strategy, range_strategy | st.sampled_from([LOWER, UPPER]))
def test_a_shard_gets_just_the_user_records_that_are_its_own(
    puts: list[Put], shard: HashRange
) -> None:
    data = aggregate(puts)
    records = split(data, child(shard))
    assert records is not None
    assert [record.sub for record in records] == [
        sub for sub, put in enumerate(puts) if shard.first <= effective_hash_key(put) <= shard.last
    ]
    assert set(records) <= set(split(data) or ())
    assert last_sub(data) == len(puts) - 1


@given(st.binary(max_size=200))
def test_plain_data_is_never_touched(data: bytes) -> None:
    expect_whole(data)
    expect_whole(MAGIC + data)


@given(puts_strategy, st.data())
def test_a_damaged_aggregate_passes_through_whole(puts: list[Put], draw: st.DataObject) -> None:
    data = aggregate(puts)
    at = draw.draw(st.integers(0, len(data) - 1))
    flipped = data[at] ^ draw.draw(st.integers(1, 255))
    expect_whole(data[:at] + bytes([flipped]) + data[at + 1 :])
    expect_whole(data[:at])
    expect_whole(data[:at] + data[at + 1 :])
    expect_whole(data + data[at : at + 1])


@pytest.mark.parametrize("flip", [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF])
def test_damage_at_every_single_byte(flip: int) -> None:
    data = aggregate(
        [Put(partition_key="k", data=b"1", explicit_hash_key="5"), Put(partition_key="l", data=b"")]
    )
    for at in range(len(data)):
        expect_whole(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


@given(puts_strategy, st.data())
def test_a_strange_message_with_a_right_checksum_never_raises_and_never_loses(
    puts: list[Put], draw: st.DataObject
) -> None:
    """It is either split, then into as many user records as it has, or passed through whole."""
    message = bytearray(aggregate(puts)[len(MAGIC) : -16])
    for _ in range(draw.draw(st.integers(1, 4))):
        message[draw.draw(st.integers(0, len(message) - 1))] = draw.draw(st.integers(0, 255))
    data = seal(bytes(message))
    records = split(data)
    if records is None:
        expect_whole(data)
        return
    parsed = kpl_proto.parse(bytes(message))
    assert parsed is not None
    assert len(records) == len(parsed.records)
    assert records or not kpl_proto.has_unknown_fields(parsed)
    assert [record.sub for record in records] == list(range(len(records)))
    assert last_sub(data) == max(0, len(records) - 1)


@given(
    st.lists(st.binary(min_size=1, max_size=6), max_size=4),
    st.lists(st.binary(max_size=6), max_size=3),
    st.lists(
        st.tuples(st.integers(0, 5), st.binary(max_size=10), st.none() | st.integers(0, 4)),
        max_size=6,
    ),
)
def test_tables_and_indices_of_every_kind(
    keys: list[bytes], explicit: list[bytes], entries: list[tuple[int, bytes, int | None]]
) -> None:
    message = b"".join(
        [chunk(1, key) for key in keys]
        + [chunk(2, key) for key in explicit]
        + [user_record(*entry) for entry in entries]
    )
    records = split(seal(message))
    if records is None:
        expect_whole(seal(message))
    else:
        assert [record.data for record in records] == payloads(message)
        assert [record.partition_key.encode() for record in records] == [
            keys[index] for index, _, _ in entries
        ]
