"""Splitting KPL aggregates: the KCL's rules where it has some, and nothing lost where not."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_source.deaggregation import MAGIC, UserRecord, last_sub, looks_aggregated, split
from task_grouping.identifiers import MAX_HASH_KEY, HashRange
from tests.support.kpl import Put, aggregate, seal

WHOLE = HashRange(first=0, last=MAX_HASH_KEY)
LOWER = HashRange(first=0, last=(1 << 127) - 1)
UPPER = HashRange(first=1 << 127, last=MAX_HASH_KEY)

# MD5 of "a" is 0cc1…, of "b" 92eb…: the two lie in different halves of the hash space.
IN_LOWER, IN_UPPER = "a", "b"


def hash_of(partition_key: str) -> int:
    return int(hashlib.md5(partition_key.encode()).hexdigest(), 16)


# --- The wire format by hand, so that the tests do not only agree with themselves -----------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def chunk(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def user_record(key_index: int, data: bytes, explicit_index: int | None = None) -> bytes:
    explicit = b"" if explicit_index is None else number(2, explicit_index)
    return chunk(3, number(1, key_index) + explicit + chunk(3, data))


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def payloads(message: bytes) -> list[bytes]:
    """The data of each record of a message made of chunks alone: a second, naive parser."""
    found: list[bytes] = []
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        size, at = read_varint(message, at)
        body, at = message[at : at + size], at + size
        if tag == 3 << 3 | 2:
            data = b""
            inner = 0
            while inner < len(body):
                inner_tag, inner = read_varint(body, inner)
                value, inner = read_varint(body, inner)
                if inner_tag & 7 == 2:
                    if inner_tag == 3 << 3 | 2:
                        data = body[inner : inner + value]
                    inner += value
            found.append(data)
    return found


def expect_whole(data: bytes) -> None:
    """`data` is delivered as it is, whatever the shard."""
    assert [split("pk", data, shard) for shard in (WHOLE, LOWER, UPPER)] == [None] * 3
    assert last_sub(data) == 0


# --- What is an aggregate -------------------------------------------------------------------------


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
    assert split("outer", data, WHOLE) == (
        UserRecord(partition_key="a", data=b"hi", sub=0),
        UserRecord(partition_key="bb", data=b"", sub=1),
        UserRecord(partition_key="a", data=b"!", sub=2),
    )
    assert last_sub(data) == 2


def test_an_aggregate_of_one() -> None:
    data = seal(chunk(1, b"k") + user_record(0, b"only"))
    assert split("outer", data, WHOLE) == (UserRecord(partition_key="k", data=b"only", sub=0),)
    assert last_sub(data) == 0


def test_fields_may_come_in_any_order_and_unknown_ones_and_tags_are_passed_over() -> None:
    tag = chunk(4, chunk(1, b"tag") + chunk(2, b"value"))
    record = chunk(3, tag + chunk(3, b"x") + number(1, 0) + chunk(99, b"new"))
    data = seal(record + chunk(77, b"newer") + chunk(1, b"k"))
    assert split("outer", data, WHOLE) == (UserRecord(partition_key="k", data=b"x", sub=0),)


AWS_AGGREGATOR = """
from aws_kinesis_agg.aggregator import RecordAggregator
made = RecordAggregator()
for number in range(40):
    made.add_user_record(f"key-{number % 7}", b"payload-%d" % number, str(number))
print(made.clear_and_get().get_contents()[2].hex())
"""


def test_what_another_library_aggregates_is_split() -> None:
    """In a process of its own: importing that library changes the search path for modules."""
    made = subprocess.run(
        [sys.executable, "-c", AWS_AGGREGATOR], check=True, capture_output=True, text=True
    )
    assert split("outer", bytes.fromhex(made.stdout), WHOLE) == tuple(
        UserRecord(partition_key=f"key-{n % 7}", data=b"payload-%d" % n, sub=n) for n in range(40)
    )


def test_only_what_may_be_an_aggregate_looks_like_one() -> None:
    assert looks_aggregated(seal(b"x"))
    assert not any(map(looks_aggregated, [b"", MAGIC, seal(b""), b"plain" * 100]))


def test_protobuf_is_not_imported_for_plain_records() -> None:
    code = (
        "import sys; from kinesis_source.deaggregation import last_sub, split;"
        "from task_grouping.identifiers import HashRange;"
        "split('k', b'plain', HashRange(first=0, last=1)); last_sub(b'plain');"
        "assert not [name for name in sys.modules if name.startswith('google')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_process_wide_descriptor_pool_stays_the_users() -> None:
    """The user's own `messages.proto` may define what it likes, before us or after us."""
    code = """
from google.protobuf import descriptor_pb2, descriptor_pool
from kinesis_source import kpl_messages
for name in ("messages.proto", "config.proto", "spark_ssp/kpl.proto"):
    file = descriptor_pb2.FileDescriptorProto(name=name, package="aws.kinesis.protobuf")
    file.message_type.add(name="Record" + name[0])
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- What is not ----------------------------------------------------------------------------------


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
        pytest.param(seal(chunk(1, b"k")), id="no records"),
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
    assert split("outer", data, WHOLE) == (UserRecord(partition_key="k", data=b"x", sub=0),)


def test_a_fault_wins_over_a_user_record_outside_the_shard() -> None:
    """Whatever the shard, so that `last_sub`, which knows none, agrees with `split`."""
    key = IN_UPPER.encode()
    expect_whole(seal(chunk(1, key) + user_record(0, b"outside") + user_record(5, b"faulty")))


# --- The shard's hash range -----------------------------------------------------------------------


def test_the_hash_of_a_partition_key_is_its_md5_as_a_number() -> None:
    data = aggregate([Put(partition_key="клён", data=b"x")])
    middle = hash_of("клён")
    exact = HashRange(first=middle, last=middle)
    assert split("outer", data, exact) == (UserRecord(partition_key="клён", data=b"x", sub=0),)
    assert split("outer", data, HashRange(first=0, last=middle - 1)) == ()
    assert split("outer", data, HashRange(first=middle + 1, last=MAX_HASH_KEY)) == ()


@pytest.mark.parametrize("hash_key", [0, 1, (1 << 127) - 1, 1 << 127, MAX_HASH_KEY])
def test_an_explicit_hash_key_counts_instead_of_the_partition_key(hash_key: int) -> None:
    for partition_key in (IN_LOWER, IN_UPPER):
        put = Put(partition_key=partition_key, data=b"x", explicit_hash_key=str(hash_key))
        expected = (UserRecord(partition_key=partition_key, data=b"x", sub=0),)
        inside, outside = (LOWER, UPPER) if hash_key in LOWER else (UPPER, LOWER)
        assert split("outer", aggregate([put]), inside) == expected
        assert split("outer", aggregate([put]), outside) == ()
        assert split("outer", aggregate([put]), HashRange(first=hash_key, last=hash_key))


@pytest.mark.parametrize("stranger", [0, 2, 4], ids=["first", "middle", "last"])
def test_one_user_record_outside_the_shard_drops_the_whole_aggregate(stranger: int) -> None:
    """As the KCL does: the producer saw a wrong shard and has put all of them again."""
    puts = [
        Put(partition_key=IN_UPPER if n == stranger else IN_LOWER, data=bytes([n]))
        for n in range(5)
    ]
    data = aggregate(puts)
    assert split("outer", data, LOWER) == ()
    assert split("outer", data, UPPER) == ()
    assert len(split("outer", data, WHOLE) or ()) == 5
    assert last_sub(data) == 4


def test_an_unused_partition_key_outside_the_shard_does_not_matter() -> None:
    data = seal(chunk(1, IN_UPPER.encode()) + chunk(1, IN_LOWER.encode()) + user_record(1, b"x"))
    assert split("outer", data, LOWER) == (UserRecord(partition_key=IN_LOWER, data=b"x", sub=0),)


def test_the_partition_key_of_the_kinesis_record_does_not_matter() -> None:
    data = aggregate([Put(partition_key=IN_LOWER, data=b"x")])
    assert split(IN_UPPER, data, LOWER) == split(IN_LOWER, data, LOWER) != ()


def test_no_data_shows_in_a_repr() -> None:
    shown = repr(split("outer", aggregate([Put(partition_key="secret", data=b"secret")]), WHOLE))
    assert "secret" not in shown
    assert "sub=0" in shown


# --- Properties -----------------------------------------------------------------------------------

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
    assert looks_aggregated(data)
    assert split("outer", data, WHOLE) == tuple(
        UserRecord(partition_key=put.partition_key, data=put.data, sub=sub)
        for sub, put in enumerate(puts)
    )
    assert last_sub(data) == len(puts) - 1


@given(puts_strategy, range_strategy | st.sampled_from([LOWER, UPPER]))
def test_a_shard_gets_all_of_an_aggregate_or_none_of_it(puts: list[Put], shard: HashRange) -> None:
    data = aggregate(puts)
    records = split("outer", data, shard)
    assert records is not None
    if all(shard.first <= effective_hash_key(put) <= shard.last for put in puts):
        assert records == split("outer", data, WHOLE)
    else:
        assert records == ()
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
    records = split("outer", data, WHOLE)
    if records is None:
        expect_whole(data)
        return
    assert records
    assert [record.sub for record in records] == list(range(len(records)))
    assert last_sub(data) == len(records) - 1


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
    records = split("outer", seal(message), WHOLE)
    if records is None:
        expect_whole(seal(message))
    else:
        assert [record.data for record in records] == payloads(message)
        assert [record.partition_key.encode() for record in records] == [
            keys[index] for index, _, _ in entries
        ]
