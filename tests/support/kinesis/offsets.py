"""Offsets of the Kinesis source, drawn at random."""

from __future__ import annotations

from hypothesis import strategies as st

from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, SlotId, StreamName
from spark_ssp.kinesis_source.model.offset import Offset, StreamEntry
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
from tests.support.kinesis.shards import key

ORDERS = StreamName("orders")
CLICKS = StreamName("clicks")

_points = st.one_of(
    st.builds(TrimHorizon),
    st.builds(AtTimestamp, millis=st.integers(0, 1 << 45).map(EpochMillis)),
    st.builds(
        AfterRecord,
        sequence_number=st.integers(0, 1 << 186).map(lambda n: SequenceNumber(str(n))),
        sub=st.integers(0, 1 << 31),
    ),
)
_positions = _points | st.builds(ShardEnd)
_states = st.builds(
    ShardState,
    position=_positions,
    last_caught_up_ms=st.none() | st.integers(0, 1 << 45).map(EpochMillis),
    first=st.none() | st.integers(0, 1 << 186).map(lambda n: SequenceNumber(str(n))),
    resume_from=st.none()
    | st.builds(
        ShardState,
        position=_points,
        last_caught_up_ms=st.none() | st.integers(0, 1 << 45).map(EpochMillis),
    ),
)
_keys = st.builds(key, st.integers(0, 30), st.sampled_from([ORDERS, CLICKS]))
_starts = st.builds(
    StartingPosition,
    default=st.none() | st.builds(Latest) | _points,
    by_shard=st.dictionaries(
        _keys,
        _points,
        max_size=3,
    ),
)


@st.composite
def offsets(draw: st.DrawFn) -> Offset:
    """Any offset."""
    slots = draw(st.integers(1, 12))
    states = draw(st.dictionaries(_keys, _states, max_size=20))
    ended = {k for k, state in states.items() if isinstance(state.position, ShardEnd)}
    for k in sorted(states.keys() - ended):
        older = sorted(one.shard for one in ended if one.stream == k.stream and draw(st.booleans()))
        states[k] = replace(states[k], follows=tuple(older))
    waiting = draw(st.dictionaries(_keys.filter(lambda k: k not in states), _states, max_size=5))
    elsewhere = _keys.filter(lambda k: k not in states and k not in waiting)
    departed = draw(st.dictionaries(elsewhere, _states, max_size=5))
    entries = st.builds(
        StreamEntry,
        created=st.integers(0, 1 << 45).map(EpochMillis),
        start=st.none() | _starts,
        leases=st.none() | st.sampled_from(["orders-etl", "other.table"]),
        retention=st.none()
        | st.builds(
            Retention,
            millis=st.integers(1, 1 << 35),
            kept_since=st.none() | st.integers(0, 1 << 45).map(EpochMillis),
        ),
        placement=st.none()
        | st.builds(
            KeyPlacement,
            since=st.integers(0, 1 << 45).map(EpochMillis),
            families=st.dictionaries(
                st.integers(0, 30).map(lambda number: key(number).shard),
                st.builds(
                    HashRange, first=st.integers(0, MAX_HASH_KEY), last=st.just(MAX_HASH_KEY)
                ),
                max_size=3,
            ),
        ),
    )
    return Offset(
        slots=slots,
        streams={name: draw(entries) for name in (ORDERS, CLICKS)},
        assignment={k: SlotId(draw(st.integers(0, slots - 1))) for k in states},
        states=states,
        waiting=waiting,
        lost_shards=departed,
    )
