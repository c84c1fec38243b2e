"""Offsets: what was written once must be read for ever, and equal offsets be equal text. The files
`tests/golden/offset_*.json` are checkpoints as PySpark writes them. They are never written by a
test: a change of one of them is a change of what users have on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.common.locations import MAX_BYTES
from spark_ssp.common.structs import replace
from spark_ssp.common.versioned_json import Json, OffsetCache
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, SlotId, StreamName
from spark_ssp.kinesis_source.model import offset as offset_module
from spark_ssp.kinesis_source.model.offset import (
    BEFORE_FIRST_BATCH,
    MOST_READABLE,
    Offset,
    StreamEntry,
    decode,
    encode,
    open_tables,
    seal_tables,
)
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    KeyPlacement,
    Latest,
    Retention,
    SequenceNumber,
    ShardEnd,
    ShardState,
    StartingPosition,
    TrimHorizon,
)
from tests.support.edits import edited, shuffled
from tests.support.kinesis.offsets import offsets
from tests.support.kinesis.shards import key

GOLDEN = Path(__file__).parents[2] / "golden"

ORDERS = StreamName("orders")
CLICKS = StreamName("clicks")
CREATED = EpochMillis(1_763_600_000_000)
SEEN = EpochMillis(1_763_720_113_207)
NUMBERS = [
    SequenceNumber(text)
    for text in (
        "49669128418227452913016471318402834613158341258493886466",
        "49669128418249753658215001941544370331430989619999866898",
        "49669128418272054403413532564685906049703637981505847330",
        "49669130073541189612049317552230412876551097836124340258",
    )
]


def after(number: int, sub: int = 0) -> AfterRecord:
    return AfterRecord(sequence_number=NUMBERS[number], sub=sub)


def at(millis: int) -> AtTimestamp:
    return AtTimestamp(millis=EpochMillis(millis))


def _one_stream(
    slots: dict[int, tuple[int, ShardState]],
    *,
    waiting: dict[int, ShardState] | None = None,
    start: StartingPosition | None = None,
) -> Offset:
    """An offset of the stream `orders`: by shard number, its slot and state."""
    return Offset(
        slots=2,
        streams={ORDERS: StreamEntry(created=CREATED, start=start)},
        assignment={key(n): SlotId(slot) for n, (slot, _) in slots.items()},
        states={key(n): state for n, (_, state) in slots.items()},
        waiting={key(n): state for n, state in (waiting or {}).items()},
    )


EXPECTED: dict[str, Offset] = {
    "empty": BEFORE_FIRST_BATCH,
    "placement": replace(
        _one_stream({2: (0, ShardState(position=after(2, 3)))}),
        streams={
            ORDERS: StreamEntry(
                created=CREATED,
                placement=KeyPlacement(
                    since=SEEN,
                    families={key(2).shard: HashRange(first=0, last=MAX_HASH_KEY)},
                ),
            )
        },
    ),
    "plain": _one_stream(
        {
            0: (0, ShardState(position=after(0), last_caught_up_ms=SEEN)),
            1: (1, ShardState(position=after(1, 17))),
        }
    ),
    "shard_end": _one_stream(
        {
            0: (0, ShardState(position=ShardEnd())),
            1: (1, ShardState(position=after(1), last_caught_up_ms=SEEN)),
            2: (0, ShardState(position=TrimHorizon(), last_caught_up_ms=SEEN)),
        }
    ),
    "follows": _one_stream(
        {
            0: (0, ShardState(position=ShardEnd(), last_caught_up_ms=SEEN)),
            2: (
                0,
                ShardState(
                    position=ShardEnd(),
                    last_caught_up_ms=SEEN,
                    first=NUMBERS[0],
                    follows=(key(0).shard,),
                ),
            ),
            3: (
                1,
                ShardState(position=TrimHorizon(), last_caught_up_ms=SEEN, follows=(key(0).shard,)),
            ),
            4: (
                0,
                ShardState(
                    position=after(1),
                    last_caught_up_ms=SEEN,
                    first=NUMBERS[1],
                    follows=(key(0).shard, key(2).shard),
                ),
            ),
        }
    ),
    "waiting": _one_stream(
        {0: (0, ShardState(position=at(1_763_700_000_000)))},
        waiting={
            2: ShardState(position=at(1_763_700_000_000)),
            3: ShardState(position=after(2, 3)),
        },
    ),
    "seen_first": _one_stream(
        {
            0: (0, ShardState(position=after(0, 4), last_caught_up_ms=SEEN, first=NUMBERS[0])),
            1: (1, ShardState(position=after(3), first=NUMBERS[1])),
        },
        start=StartingPosition(default=TrimHorizon()),
    ),
    "start_latest": _one_stream(
        {
            0: (
                0,
                ShardState(
                    position=at(1_763_720_113_000), last_caught_up_ms=EpochMillis(1_763_720_113_000)
                ),
            ),
            1: (1, ShardState(position=after(1), last_caught_up_ms=SEEN)),
        },
        start=StartingPosition(default=Latest()),
    ),
    "start_timestamp": _one_stream(
        {0: (0, ShardState(position=after(0), first=NUMBERS[0]))},
        start=StartingPosition(default=at(1_763_700_000_000)),
    ),
    "start_by_shard": _one_stream(
        {
            0: (0, ShardState(position=after(0))),
            1: (1, ShardState(position=after(1, 2), last_caught_up_ms=SEEN)),
        },
        start=StartingPosition(default=None, by_shard={key(0): TrimHorizon(), key(1): after(1, 2)}),
    ),
    "taken_over": _one_stream(
        {
            0: (
                0,
                ShardState(
                    position=after(1),
                    last_caught_up_ms=SEEN,
                    resume_from=ShardState(position=after(0, 17), last_caught_up_ms=SEEN),
                ),
            ),
            1: (
                1,
                ShardState(
                    position=after(3),
                    first=NUMBERS[2],
                    resume_from=ShardState(position=TrimHorizon()),
                ),
            ),
            2: (
                0,
                ShardState(
                    position=ShardEnd(), resume_from=ShardState(position=at(1_763_700_000_000))
                ),
            ),
        }
    ),
    "leases": Offset(
        slots=1,
        streams={ORDERS: StreamEntry(created=CREATED, leases="orders-etl")},
        assignment={key(0): SlotId(0)},
        states={key(0): ShardState(position=after(0), last_caught_up_ms=SEEN)},
    ),
    "retention": Offset(
        slots=1,
        streams={
            CLICKS: StreamEntry(created=CREATED, retention=Retention(millis=86_400_000)),
            ORDERS: StreamEntry(
                created=CREATED, retention=Retention(millis=604_800_000, kept_since=SEEN)
            ),
        },
        assignment={key(0): SlotId(0)},
        states={key(0): ShardState(position=after(0), last_caught_up_ms=SEEN)},
    ),
    "departed": replace(
        _one_stream({0: (0, ShardState(position=after(0), last_caught_up_ms=SEEN))}),
        lost_shards={
            key(1): ShardState(position=after(1, 17), last_caught_up_ms=SEEN),
            key(2): ShardState(position=ShardEnd()),
        },
    ),
    "several_streams": Offset(
        slots=3,
        streams={
            CLICKS: StreamEntry(
                created=EpochMillis(1_763_720_000_000), start=StartingPosition(default=Latest())
            ),
            ORDERS: StreamEntry(created=CREATED),
        },
        assignment={
            key(0, CLICKS): SlotId(0),
            key(0, ORDERS): SlotId(2),
            key(11, ORDERS): SlotId(0),
        },
        states={
            key(0, CLICKS): ShardState(position=after(3), last_caught_up_ms=SEEN),
            key(0, ORDERS): ShardState(position=ShardEnd()),
            key(11, ORDERS): ShardState(position=after(2), last_caught_up_ms=SEEN),
        },
        waiting={key(12, ORDERS): ShardState(position=TrimHorizon())},
    ),
}


def _golden(name: str) -> str:
    return (GOLDEN / f"offset_v1_{name}.json").read_text().removesuffix("\n")


def test_each_golden_file_has_its_value() -> None:
    files = {path.stem for path in GOLDEN.glob("offset_*.json")}
    assert files == {f"offset_v1_{name}" for name in EXPECTED} | {"offset_v2_resharded"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_golden_offset_reads_as_it_was_meant(name: str) -> None:
    assert decode(json.loads(_golden(name))) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_golden_offset_is_written_to_the_letter(name: str) -> None:
    # PySpark writes what `latestOffset` gives with json.dumps and its defaults.
    assert json.dumps(encode(EXPECTED[name])) == _golden(name)


# --- Equal offsets are equal text -----------------------------------------------------------------


@pytest.mark.parametrize("most_readable", [0, MOST_READABLE])
@given(offset=offsets(), random=st.randoms(use_true_random=False))
def test_an_offset_survives_and_its_text_knows_no_order_of_insertion(
    most_readable: int, offset: Offset, random: Random
) -> None:
    with patch.object(offset_module, "MOST_READABLE", most_readable):
        _check_text(offset, random)


def _check_text(offset: Offset, random: Random) -> None:
    text = json.dumps(encode(offset))
    assert decode(json.loads(text)) == offset

    other = Offset(
        slots=offset.slots,
        streams=shuffled(offset.streams, random),
        assignment=shuffled(offset.assignment, random),
        states=shuffled(offset.states, random),
        waiting=shuffled(offset.waiting, random),
        lost_shards=shuffled(offset.lost_shards, random),
    )
    assert json.dumps(encode(other)) == text


@given(offsets=st.lists(offsets(), min_size=1, max_size=3), turns=st.lists(st.integers(0, 5)))
def test_offsets_that_are_kept_are_those_that_would_be_read(
    offsets: list[Offset], turns: list[int]
) -> None:
    recent = OffsetCache(encode, decode)
    for turn in turns:
        offset = offsets[turn // 2 % len(offsets)]
        if turn % 2:
            assert recent.encode(offset) == encode(offset)
        else:
            assert recent.decode(json.loads(json.dumps(encode(offset)))) == offset


def test_offsets_that_are_kept_do_not_hide_an_edited_one() -> None:
    recent = OffsetCache(encode, decode)
    document = recent.encode(BEFORE_FIRST_BATCH)
    assert recent.decode({**document}) is BEFORE_FIRST_BATCH
    with pytest.raises(IncompatibleStateError):
        recent.decode({**document, "v": 3})


def test_slots_are_sorted_as_numbers() -> None:
    offset = Offset(
        slots=11,
        streams={ORDERS: StreamEntry(created=CREATED)},
        assignment={key(n): SlotId(10 - n) for n in range(11)},
        states={key(n): ShardState(position=TrimHorizon()) for n in range(11)},
    )
    assert list(encode(offset)["ssp"]) == [str(slot) for slot in range(11)]


# --- Many shards ----------------------------------------------------------------------------------


def _many(shards: int) -> Offset:
    """An offset with the sequence numbers of the service: the creation of the shard, a count, the
    time and the shard's number as fields of bits, of which count and time are random."""
    random = Random(shards)
    states = {}
    for n in range(shards):
        fields = (0x5BF4E5C2, n % 16, random.randrange(1 << 36), 0x5C181EEA + random.randrange(60))
        number = int("2{:09x}{:x}{:016x}00{:09x}{:08x}2".format(*fields, n), 16)
        states[key(n)] = ShardState(
            position=AfterRecord(
                sequence_number=SequenceNumber(str(number)), sub=random.choice((0, 0, 0, 12))
            ),
            last_caught_up_ms=EpochMillis(SEEN + random.randrange(3_000)),
        )
    return Offset(
        slots=64,
        streams={ORDERS: StreamEntry(created=CREATED)},
        assignment={key(n): SlotId(random.randrange(64)) for n in range(shards)},
        states=states,
    )


def _resharded() -> Offset:
    """300 shards of two streams, in all states, and the proof of where the records are placed."""
    offset = _many(300)
    first = ShardState(position=ShardEnd(), last_caught_up_ms=SEEN)
    taken_over = ShardState(
        position=after(2),
        first=NUMBERS[1],
        resume_from=ShardState(position=at(1_763_700_000_000)),
    )
    states = {key(0): first, key(1): taken_over, key(0, CLICKS): ShardState(position=at(0))}
    families = {key(n).shard: HashRange(first=n << 100, last=MAX_HASH_KEY) for n in range(2, 9)}
    placed = KeyPlacement(since=SEEN, families=families)
    return replace(
        offset,
        streams={
            CLICKS: StreamEntry(created=CREATED, start=StartingPosition(default=at(0))),
            ORDERS: StreamEntry(created=CREATED, leases="orders-etl", placement=placed),
        },
        assignment={**offset.assignment, key(0, CLICKS): SlotId(63)},
        states={**offset.states, **states},
        waiting={key(300): ShardState(position=TrimHorizon(), last_caught_up_ms=SEEN)},
        lost_shards={key(301): ShardState(position=after(3, 17))},
    )


def test_a_golden_offset_of_many_shards_reads_as_it_was_meant() -> None:
    stored = json.loads((GOLDEN / "offset_v2_resharded.json").read_text())
    written = encode(_resharded())
    assert decode(stored) == decode(written) == _resharded()
    # Two versions of zlib write other text for the same tables.
    packed = [open_tables(document.pop("packed")) for document in (stored, written)]
    assert packed[0] == packed[1]
    assert stored == written
    assert stored["shards"] == {
        "clicks": {"ssp": 1},
        "orders": {"departed": 1, "ssp": 300, "waiting": 1},
    }


def test_an_offset_of_10_000_shards_takes_at_most_20_bytes_a_shard() -> None:
    offset = _many(10_000)
    text = json.dumps(encode(offset))
    assert len(text) <= 20 * 10_000
    assert decode(json.loads(text)) == offset


def test_the_entries_of_few_shards_are_readable_and_known_to_older_releases() -> None:
    assert [encode(_many(count))["v"] for count in (MOST_READABLE, MOST_READABLE + 1)] == [1, 2]


def _first(tables: Any) -> Any:
    """The table of most shards that are read."""
    return max(tables["orders"]["ssp"], key=lambda table: len(str(table)))


def _packed(edit: Callable[[Any], None]) -> Json:
    document = encode(_resharded())
    tables = open_tables(document["packed"])
    edit(tables)
    return {**document, "packed": seal_tables(tables)}


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (encode(_resharded()) | {"packed": "eNrl"}, "cannot be opened"),
        (encode(_resharded()) | {"packed": "no base64"}, "cannot be opened"),
        (encode(_resharded()) | {"packed": seal_tables({})[:-8]}, "cannot be opened"),
        (encode(_resharded()) | {"packed": seal_tables("x" * (MAX_BYTES + 1))}, "cannot be opened"),
        (encode(_resharded()) | {"packed": 7}, "'int'"),
        (encode(_resharded()) | {"shards": {"orders": {"ssp": 302}}}, "shards"),
        (encode(_resharded()) | {"more": 1}, "the unknown key 'more'"),
        (_packed(lambda tables: tables["orders"].update(later=[])), "unknown part 'later'"),
        (_packed(lambda tables: _first(tables)["columns"].update(later={"all": 1})), "later"),
        (_packed(lambda tables: _first(tables).update(later=1)), "the unknown key 'later'"),
        (_packed(lambda tables: tables["orders"]["ssp"].append(_first(tables))), "two entries"),
        (_packed(lambda tables: _first(tables).update(shards={"steps": [1, 1]})), "1 is no shard"),
        (_packed(lambda tables: _first(tables).update(shards={"later": 1})), "unknown column"),
        (_packed(lambda tables: _first(tables)["columns"]["slot"].update(steps=[1])), "shorter"),
        (_packed(lambda tables: _first(tables)["columns"].pop("slot")), "'slot'"),
    ],
)
def test_an_edited_offset_of_many_shards_is_refused(document: Json, found: str) -> None:
    error = _refusal(document)
    assert error.expected == "the layout of version 2"
    assert found in error.found


# --- Offsets that are none of ours ----------------------------------------------------------------


def _refusal(document: object) -> IncompatibleStateError:
    with pytest.raises(IncompatibleStateError) as caught:
        decode(document)
    error = caught.value
    assert error.subject == "checkpoint of a kinesis-ssp query"
    assert "new checkpoint location" in error.next_step
    return error


@pytest.mark.parametrize(
    "document",
    [
        {"orders": {"0": 12, "1": 9}},  # Kafka's
        {},
        [],
        "49669128418227452913016471318402834613158341258493886466",
        None,
        7,
    ],
)
def test_another_sources_offset_is_refused(document: object) -> None:
    error = _refusal(document)
    assert (error.found, error.expected) == (
        "no version",
        'a kinesis-ssp offset with "v": 1 or 2',
    )


@pytest.mark.parametrize("version", [0, 3, "1", None, True, 1.0, [1]])
def test_an_unknown_version_is_refused_by_its_name(version: object) -> None:
    document = json.loads(_golden("plain")) | {"v": version}
    error = _refusal(document)
    assert (error.found, error.expected) == (
        f"offset version {version!r}",
        "version 1 or 2",
    )
    assert "spark-ssp version that wrote this checkpoint" in error.next_step


def _edited(path: list[str], value: object) -> object:
    """The golden offset `waiting` with one value replaced, or dropped where `value` is ..."""
    return edited(_golden("waiting"), path, value)


SHARD_0 = ["ssp", "0", "orders", "shardId-000000000000"]
SHARD_3 = ["waiting", "orders", "shardId-000000000003"]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["slots"], ..., "'slots'"),
        (["slots"], "2", "'2' is no whole number"),
        (["slots"], True, "True is no whole number"),
        (["ssp"], ..., "'ssp'"),
        (["ssp"], [], "'list' object has no attribute 'items'"),
        (["ssp", "zero"], {}, "'zero'"),
        (["ssp", "2"], {"orders": {}}, "slot 2 of 2"),
        (["ssp", "-1"], {"orders": {}}, "slot -1 of 2"),
        (
            ["ssp", "1"],
            {"orders": {"shardId-000000000000": {"at": "TRIM_HORIZON"}}},
            "orders/shardId-000000000000 is in two slots",
        ),
        (
            ["ssp", "1"],
            {"orders": {"shardId-000000000003": {"at": "TRIM_HORIZON"}}},
            "orders/shardId-000000000003 is both in a slot and waiting",
        ),
        (
            ["ssp", "1"],
            {"other": {"shardId-000000000000": {"at": "TRIM_HORIZON"}}},
            "other/shardId-000000000000 belongs to a stream missing from the offset",
        ),
        (
            ["departed"],
            {"orders": {"shardId-000000000003": {"at": "TRIM_HORIZON"}}},
            "orders/shardId-000000000003 is both present and departed",
        ),
        (["streams"], ..., "'streams'"),
        (["streams", "orders", "created"], ..., "'created'"),
        (["streams", "orders", "leases"], "", "'' is not a table name"),
        (["streams", "orders", "created"], 1.5, "1.5 is no whole number"),
        (
            ["streams", "orders", "start"],
            {"default": {"at": "SHARD_END"}},
            "SHARD_END is not a start",
        ),
        (
            [*SHARD_0, "follows"],
            ["shardId-000000000000"],
            "follows shardId-000000000000, which is not at SHARD_END",
        ),
        ([*SHARD_0, "follows"], [], "the unknown key 'follows'"),
        ([*SHARD_0, "at"], ..., "'at'"),
        ([*SHARD_0, "at"], "TIP", "unknown position 'TIP'"),
        ([*SHARD_0, "at"], "LATEST", "LATEST is not a position"),
        ([*SHARD_0, "at"], -1, "-1 is no whole number"),
        ([*SHARD_0, "at"], True, "True is no whole number"),
        ([*SHARD_0, "seen"], "yesterday", "'yesterday' is no whole number"),
        ([*SHARD_0, "first"], 12, "12 is not a sequence number"),
        ([*SHARD_0, "from"], {"at": "SHARD_END"}, "SHARD_END cannot be resumed from"),
        ([*SHARD_0, "from"], {"at": "LATEST"}, "LATEST is not a position"),
        ([*SHARD_0, "from"], {"after": "12x", "sub": 0}, "'12x' is not a sequence number"),
        ([*SHARD_3, "after"], "12x", "'12x' is not a sequence number"),
        ([*SHARD_3, "after"], "1_2", "'1_2' is not a sequence number"),
        ([*SHARD_3, "after"], 12, "12 is not a sequence number"),
        ([*SHARD_3, "sub"], ..., "'sub'"),
        ([*SHARD_3, "sub"], -1, "-1 is no whole number"),
        (SHARD_3, None, "not"),
    ],
)
def test_an_edited_offset_is_refused(path: list[str], value: object, found: str) -> None:
    error = _refusal(_edited(path, value))
    assert found in error.found
    assert error.expected == "the layout of version 1"
