"""Leases for tests: given ones and arbitrary ones."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from spark_ssp.checkpoint.leases.lease import (
    Item,
    Lease,
    PendingCheckpoint,
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
    StreamIdentifier,
)
from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    EpochMillis,
    HashRange,
    SequenceNumber,
    ShardId,
    StreamName,
    WorkerId,
)

SHARD = ShardId("shardId-000000000000")
ANNE, BERT, CARL = WorkerId("anne"), WorkerId("bert"), WorkerId("carl")


def processed(sequence_number: int, sub: int = 0) -> Processed:
    """Return the position after the record."""
    return Processed(sequence_number=SequenceNumber(str(sequence_number)), sub=sub)


def lease(shard: str = SHARD, **more: Any) -> Lease:
    """Return a lease without owner, at TRIM_HORIZON, changed by `more`."""
    fields: dict[str, Any] = {"counter": 0, "progress": StartAtTrimHorizon()}
    return Lease(shard=ShardId(shard), **(fields | more))


def alike(item: Item) -> dict[str, tuple[str, object]]:
    """Return a row for comparisons: numbers by value, sets without order."""
    found: dict[str, tuple[str, object]] = {}
    for name, value in item.items():
        ((kind, content),) = value.items()
        if kind == "N":
            content = Decimal(content)
        elif kind == "SS":
            content = sorted(content)
        found[name] = (kind, content)
    return found


_MAX_LONG = (1 << 63) - 1
_counts = st.integers(0, _MAX_LONG)
_workers = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(WorkerId)
_shards = st.integers(0, 10**12 - 1).map(lambda number: ShardId(f"shardId-{number:012d}"))
_streams = st.builds(
    StreamIdentifier,
    account=st.from_regex(r"[0-9]{12}", fullmatch=True),
    name=st.from_regex(r"[a-zA-Z0-9_.-]{1,128}", fullmatch=True).map(StreamName),
    created=st.integers(1, 10**10),
)
_seen = st.none() | st.integers(0, 10**14).map(EpochMillis)
_numbers = st.integers(0, 10**56).map(lambda number: SequenceNumber(str(number)))
_processed = st.builds(Processed, sequence_number=_numbers, sub=_counts)
any_progress: st.SearchStrategy[Progress] = st.one_of(
    st.builds(StartAtTrimHorizon, last_caught_up_ms=_seen),
    st.builds(StartAtLatest, since_ms=_seen, last_caught_up_ms=_seen),
    st.just(ShardEnded()),
    st.builds(StartAtTimestamp, at_ms=_seen, last_caught_up_ms=_seen),
    st.builds(Processed, sequence_number=_numbers, sub=_counts, last_caught_up_ms=_seen),
)
_pending = st.builds(
    PendingCheckpoint,
    progress=_processed | st.just(ShardEnded()),
    state=st.none() | st.binary(min_size=1, max_size=20),
)
_hash_ranges = (
    st.tuples(st.integers(0, MAX_HASH_KEY), st.integers(0, MAX_HASH_KEY))
    .filter(lambda ends: ends[0] < ends[1])
    .map(lambda ends: HashRange(first=ends[0], last=ends[1]))
)
_others = st.dictionaries(
    st.from_regex(r"x[a-zA-Z0-9]{0,10}", fullmatch=True),
    st.one_of(
        st.builds(lambda value: {"S": value}, st.text(max_size=5)),
        st.builds(lambda value: {"N": str(value)}, st.integers(-9, 9)),
        st.builds(lambda value: {"BOOL": value}, st.booleans()),
        st.just({"M": {"deep": {"L": [{"N": "1"}, {"S": "two"}]}}}),
    ),
    max_size=3,
)
any_lease: st.SearchStrategy[Lease] = st.builds(
    Lease,
    shard=_shards,
    stream=st.none() | _streams,
    counter=_counts,
    progress=any_progress,
    owner=st.none() | _workers,
    checkpoint_owner=st.none() | _workers,
    ssp_owner=st.none() | _workers,
    requested_by=st.none() | _workers,
    requested_from=st.none() | _workers,
    switches=_counts,
    pending=st.none() | _pending,
    parents=st.lists(_shards, max_size=2).map(tuple),
    children=st.lists(_shards, max_size=2).map(tuple),
    hash_range=st.none() | _hash_ranges,
    throughput_kbps=st.none() | st.floats(0, 1e6, allow_subnormal=False),
    has_entity_type=st.booleans(),
    extra_attributes=_others,
)
