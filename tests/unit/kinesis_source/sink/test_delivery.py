"""What a sink sends, over generated histories of refusals, lost replies and reshards."""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ssp.common.errors import ServiceUnavailableError, UnsupportedError
from spark_ssp.common.structs import replace
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, SequenceNumber, ShardId, hash_of
from spark_ssp.kinesis_source.model.deaggregation import open_aggregate
from spark_ssp.kinesis_source.model.shard import PutOutcome, Shard
from spark_ssp.kinesis_source.sink.aggregation import ANY, AggregateLimits, Packing, ShardMap
from spark_ssp.kinesis_source.sink.delivery import (
    MAX_BYTES,
    MAX_RECORDS,
    THROTTLED,
    PutRequest,
    StreamDelivery,
)
from spark_ssp.kinesis_source.sink.pacing import (
    BYTES_PER_SECOND,
    RECORDS_PER_SECOND,
    LinkWindow,
    Upload,
)
from tests.support.kinesis.sink_writer import Entry, entries_of, rows_of, shard_of

LAYOUTS = (1, 2, 4)


def shards_of(layout: int) -> list[Shard]:
    width = (MAX_HASH_KEY + 1) // layout
    return [
        Shard(
            shard_id=ShardId(f"shardId-{layout}-{number}"),
            hash_range=HashRange(first=number * width, last=(number + 1) * width - 1),
            first_sequence_number=SequenceNumber("1"),
            closed=False,
        )
        for number in range(layout)
    ]


MAPS = {layout: ShardMap(shards_of(layout)) for layout in LAYOUTS}
IDS = [*MAPS[2].shards, *MAPS[4].shards[2:]]
"""The shard ids of a stream of four shards that has replaced one of two."""
RANGES = {each.shard_id: each.hash_range for layout in LAYOUTS for each in shards_of(layout)}


def add(
    delivery: StreamDelivery,
    *rows: tuple[str, int],
    first: int = 0,
    hash_keys: Sequence[str | None] = (None,),
) -> None:
    """Add rows of a key and a size of at least 8 bytes, which begin with the number of the row."""
    entries = [
        Entry(number.to_bytes(8).ljust(size), key, hash_keys[number % len(hash_keys)])
        for number, (key, size) in enumerate(rows, first)
    ]
    delivery.add(rows_of(entries))


def row_of(entry: Entry) -> int:
    return int.from_bytes(entry.data[:8])


class Service:
    """A stream that stores entries, by its own layout."""

    def __init__(self) -> None:
        self.layout = 1
        self.stored: list[Entry] = []
        self.shards: list[ShardId] = []
        self.lost: Counter[int] = Counter()
        self.writes: dict[str, list[tuple[float, int]]] = defaultdict(list)

    def put(self, request: PutRequest, codes: list[str | None], now: float) -> PutOutcome:
        shards: list[ShardId | None] = []
        for one, code in zip(entries_of(request.entries), codes, strict=True):
            hash_key = hash_of(one.partition_key or "", one.explicit_hash_key)
            shard = shard_of(MAPS[self.layout], hash_key)
            self.writes[shard].append((now, len(one.data) + len(one.partition_key or "")))
            if not code:
                self.stored.append(one)
                self.shards.append(shard)
            shards.append(None if code else shard)
        return PutOutcome(shards=shards, codes=codes)


def run(
    delivery: StreamDelivery,
    service: Service,
    rows: Sequence[tuple[str, int]],
    actions: Sequence[str],
    random: Callable[[], float],
    packing: Packing | None = None,
    hash_keys: Sequence[str | None] = (None,),
) -> None:
    """Deliver all rows, which are added in parts, with an action for each answer."""
    now, planned, flying, added = 0.0, deque(actions), deque[PutRequest](), 0
    while delivery.pending or added < len(rows):
        if not delivery.pending or random() < 0.5:
            part = rows[added : added + 1 + int(random() * 20)]
            add(delivery, *part, first=added, hash_keys=hash_keys)
            added += len(part)
        request = delivery.take(now)
        if request is not None:
            assert 1 <= request.entries.count <= MAX_RECORDS
            assert sum(len(one.data) for one in entries_of(request.entries)) <= MAX_BYTES
            flying.append(request)
            if random() < 0.5:
                continue
        if flying:
            now += 0.01
            request = flying.popleft() if random() < 0.5 else flying.pop()
            answer(delivery, service, request, planned.popleft() if planned else "ok", now, random)
        elif delivery.pending and not delivery.is_outdated:
            assert now < delivery.wake_at < now + 10
            now = delivery.wake_at
        if delivery.is_outdated and random() < 0.5:
            current = MAPS[service.layout]
            if packing is not None:
                packing.shard_map = current
            delivery.replace_shards(current, RANGES, now)


def answer(
    delivery: StreamDelivery,
    service: Service,
    request: PutRequest,
    action: str,
    now: float,
    random: Callable[[], float],
) -> None:
    count = request.entries.count
    none: list[str | None] = [None] * count
    match action:
        case "some":
            codes = ["InternalFailure" if random() < 0.5 else None for _ in none]
            delivery.settle(request, service.put(request, codes, now), now)
        case "throttle":
            codes = [THROTTLED] * count
            delivery.settle(request, service.put(request, codes, now), now)
        case "lost":
            service.put(request, none, now)
            service.lost.update(row_of(one) for one in entries_of(request.entries))
            delivery.fail(request, "unreachable", now)
        case "refused":
            delivery.fail(request, THROTTLED, now)
        case _:
            if action == "reshard":
                service.layout = LAYOUTS[(LAYOUTS.index(service.layout) + 1) % 3]
            delivery.settle(request, service.put(request, none, now), now)


ACTIONS = st.sampled_from(["ok", "ok", "some", "throttle", "lost", "refused", "reshard"])
KEYS = st.sampled_from(["a", "b", "c", "d", "e", "f"])


@given(
    rows=st.lists(st.tuples(KEYS, st.sampled_from([8, 10, 300_000])), min_size=1, max_size=60),
    actions=st.lists(ACTIONS, max_size=25),
    draws=st.randoms(use_true_random=False),
    is_ordered=st.booleans(),
    hash_keys=st.sampled_from([[None], ["0", None, str(MAX_HASH_KEY)]]),
)
@example(  # a request is cut before a record that others wait for
    rows=[*[(key, 300_000) for key in "abcde"], *[(key, 8) for key in "aedcbaf"]],
    actions=["some"],
    draws=Random(1),
    is_ordered=True,
    hash_keys=[None],
)
@example(  # a key has records of two shards
    rows=[("a", 8)] * 40,
    actions=["reshard"],
    draws=Random(0),
    is_ordered=True,
    hash_keys=["0", str(MAX_HASH_KEY)],
)
@settings(deadline=None)
def test_nothing_is_lost_and_only_lost_replies_repeat(
    rows: list[tuple[str, int]],
    actions: list[str],
    draws: Any,
    is_ordered: bool,
    hash_keys: list[str | None],
) -> None:
    service = Service()
    delivery = _delivery(is_ordered=is_ordered, timeout=1e9, random=draws.random)
    run(delivery, service, rows, actions, draws.random, hash_keys=hash_keys)
    copies = Counter(row_of(one) for one in service.stored)
    assert copies == {row: 1 + service.lost[row] for row in range(len(rows))}
    assert delivery.metrics.records == len(rows)
    assert (delivery.pending, delivery.pending_bytes, delivery._held) == (0, 0, {})
    if is_ordered:
        by_key = defaultdict(list)
        for one in service.stored:
            by_key[one.partition_key].append(row_of(one))
        assert all(order == sorted(order) for order in by_key.values())


@given(
    rows=st.lists(st.tuples(KEYS, st.sampled_from([8, 10, 300_000])), min_size=1, max_size=60),
    actions=st.lists(ACTIONS, max_size=25),
    draws=st.randoms(use_true_random=False),
)
@example(  # an aggregate is refused after its shard was split and the shards were listed
    rows=[(key, 8) for key in "abcdef" * 10], actions=["reshard", "refused"], draws=Random(9)
)
@settings(deadline=None)
def test_each_row_of_an_aggregate_is_read_from_the_shard_that_stored_it(
    rows: list[tuple[str, int]], actions: list[str], draws: Any
) -> None:
    """As the KCL reads: an aggregate with a row of another shard is dropped."""
    service = Service()
    packing = Packing(MAPS[1], AggregateLimits(record_bytes=1 << 20, rows=7))
    delivery = _delivery(is_ordered=False, timeout=1e9, random=draws.random, packing=packing)
    run(delivery, service, rows, actions, draws.random, packing)
    found: Counter[int] = Counter()
    for one, shard in zip(service.stored, service.shards, strict=True):
        aggregate = open_aggregate(one.data)
        keys = [one.partition_key] if aggregate is None else aggregate.partition_keys
        data = [one.data] if aggregate is None else aggregate.data
        if all(hash_of(key or "", None) in RANGES[shard] for key in keys):
            found.update(int.from_bytes(each[:8]) for each in data)
    assert set(found) == set(range(len(rows)))
    if not {"lost", "reshard"} & set(actions):
        assert set(found.values()) == {1}
    assert delivery.metrics.rows == len(rows)
    assert (delivery.pending, delivery.pending_bytes) == (0, 0)


@pytest.mark.parametrize("size", [8, 200])
def test_the_rows_of_waiting_aggregates_take_the_memory_of_their_text(size: int) -> None:
    """`pending_bytes` limits the memory of a task. The text is base64, a third more."""

    def filled() -> StreamDelivery:
        packing = Packing(MAPS[1], AggregateLimits(record_bytes=1 << 20))
        delivery = _delivery(is_ordered=False, packing=packing)
        for first in range(0, 20_000, 2_000):
            add(delivery, *((f"key-{row}", size) for row in range(first, first + 2_000)))
        return delivery

    filled()  # fills caches
    tracemalloc.start()
    try:
        delivery = filled()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert delivery.pending_bytes > 20_000 * size
    assert used < 1.6 * delivery.pending_bytes


@pytest.mark.parametrize("size", [10, 5_000])
def test_a_shard_is_written_at_its_limits_and_not_beyond(size: int) -> None:
    service, now = Service(), 0.0
    delivery = _delivery(is_ordered=False)
    add(delivery, *[(f"k{row}", size) for row in range(5_000)])
    while delivery.pending:
        request = delivery.take(now)
        if request is None:
            now = delivery.wake_at
        else:
            delivery.settle(request, service.put(request, [None] * request.entries.count, now), now)
    (writes,) = service.writes.values()
    for begin, _ in writes[::97]:
        within = [size for at, size in writes if begin <= at < begin + 1.0]
        assert len(within) <= RECORDS_PER_SECOND
        assert sum(within) <= BYTES_PER_SECOND
    rate = max(5_000 / RECORDS_PER_SECOND, sum(size for _, size in writes) / BYTES_PER_SECOND)
    assert now <= rate * 1.15


def test_a_record_larger_than_the_rate_of_a_shard_is_sent() -> None:
    delivery = _delivery(is_ordered=False)
    add(delivery, ("k", 9 << 20), ("k", 9 << 20))
    first = delivery.take(0.0)
    assert first is not None
    assert first.entries.count == 1
    delivery.settle(first, Service().put(first, [None], 0.4), 0.4)
    assert delivery.take(0.5) is None
    assert 9.4 <= delivery.wake_at < 10


def test_a_full_request_does_not_delay_other_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ssp.kinesis_source.sink.delivery.MAX_BYTES", 1 << 20)
    delivery, service = _delivery(is_ordered=False, layout=4), Service()
    service.layout = 4
    hash_keys = [str(shard.hash_range.first) for shard in shards_of(4)]
    add(delivery, *[("k", 10)] * 4, hash_keys=hash_keys)
    first = delivery.take(0.0)
    assert first is not None
    delivery.settle(first, service.put(first, [None] * 4, 0.0), 0.0)
    add(delivery, *[("k", 700_000)] * 4, hash_keys=hash_keys)
    requests = [delivery.take(0.1) for _ in range(4)]
    assert [request and request.entries.count for request in requests] == [1, 1, 1, 1]


def test_a_record_that_is_refused_for_too_long_fails_the_task() -> None:
    delivery, now = _delivery(is_ordered=False), 0.0
    add(delivery, ("k", 10))
    refused = PutOutcome(shards=[None], codes=["InternalFailure"])
    while now < 10:
        request = delivery.take(now)
        if request is None:
            now = delivery.wake_at
        else:
            delivery.settle(request, refused, now)
    request = delivery.take(now)
    assert request is not None
    with pytest.raises(ServiceUnavailableError, match=r"-1-0: found InternalFailure .* 1\d s"):
        delivery.settle(request, refused, now)


def test_an_aggregate_in_a_shard_that_is_not_listed_yet_is_kept_and_not_repeated() -> None:
    packing = Packing(MAPS[1], AggregateLimits(record_bytes=1 << 20))
    delivery = _delivery(is_ordered=False, packing=packing)
    add(delivery, ("a", 8), ("b", 8))
    request = delivery.take(0.0)
    assert request is not None
    (one,) = entries_of(request.entries)
    stored = shard_of(MAPS[2], hash_of(one.partition_key or "", one.explicit_hash_key))
    delivery.settle(request, PutOutcome(shards=[stored], codes=[None]), 0.1)
    for now in (0.2, 9.0):
        before = {one.shard_id: one.hash_range for one in shards_of(1)}
        delivery.replace_shards(MAPS[1], before, now)
        delivery.check_listed(now, "it")
        assert delivery.take(now) is None
        assert delivery.is_outdated
    with pytest.raises(ServiceUnavailableError, match="found it, for 10 s after a reshard"):
        delivery.check_listed(10.2, "it")
    packing.shard_map = MAPS[2]
    delivery.replace_shards(MAPS[2], RANGES, 11.0)
    again = delivery.take(11.0)
    assert again is not None
    assert again.entries.count == len({*MAPS[2].place(["a", "b"])})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [200, 20_000])
def test_the_window_grows_with_a_service_that_answers_before_the_next_request(
    layout: int, size: int
) -> None:
    window, delivery, now = LinkWindow(), _delivery(is_ordered=False, layout=layout), 0.0
    cut = 0
    for number in range(0, 3_000, 100):
        add(delivery, *((f"key-{each}", size) for each in range(100)), first=number)
    while delivery.pending:
        request = delivery.take(now, window.request_bytes)
        if request is None:
            now = delivery.wake_at
            continue
        sent = Upload(
            began=now,
            size=request.size,
            in_flight=request.size,
            seconds=0.001,
            is_measured=True,
            is_cut=request.is_cut,
        )
        now += 0.001
        cut += request.is_cut
        window = window.after(sent, now)
        count = request.entries.count
        shards = [part.shard for part in request.parts for _ in range(part.count)]
        delivery.settle(request, PutOutcome(shards=shards, codes=[None] * count), now)
    assert cut < 15


def test_aggregates_in_shards_without_their_hash_keys_fail_the_task() -> None:
    """The stream was switched to the strategy AUTO. They would be packed again without end."""
    packing = Packing(MAPS[4], AggregateLimits(record_bytes=1 << 20))
    delivery = _delivery(is_ordered=False, layout=4, packing=packing)
    add(delivery, *((f"key-{number}", 8) for number in range(100)))
    request = delivery.take(0.0)
    assert request is not None
    shards = MAPS[4].shards
    others = [shards[(shards.index(part.shard) + 1) % 4] for part in request.parts]
    delivery.settle(request, PutOutcome(shards=others, codes=[None] * 4), 0.1)
    assert delivery.is_outdated
    with pytest.raises(UnsupportedError, match="AUTO"):
        delivery.replace_shards(MAPS[4], RANGES, 0.2)


@pytest.mark.parametrize("is_aggregating", [True, False])
def test_aggregates_for_the_former_shards_of_a_recreated_stream_fail_the_task(
    *, is_aggregating: bool
) -> None:
    """Those that count as stored may be in shards that do not have the keys of their rows."""
    packing = Packing(MAPS[2], AggregateLimits(record_bytes=1 << 20)) if is_aggregating else None
    delivery = _delivery(is_ordered=False, layout=2, packing=packing)
    add(delivery, ("a", 8), ("b", 8))
    other = [replace(each, shard_id=ids) for each, ids in zip(shards_of(4), IDS, strict=True)]
    ranges = {each.shard_id: each.hash_range for each in other}
    if is_aggregating:
        with pytest.raises(UnsupportedError, match=IDS[0]):
            delivery.replace_shards(ShardMap(other), ranges, 0.1)
    else:
        delivery.replace_shards(ShardMap(other), ranges, 0.1)
        request = delivery.take(0.1)
        assert request is not None
        assert request.entries.count == 2


def test_records_that_the_service_places_have_one_queue() -> None:
    delivery = StreamDelivery(
        "orders",
        shard_map=ANY,
        weight=3,
        is_ordered=False,
        timeout=10,
        now=0.0,
        random=lambda: 0.5,
    )
    delivery.add(rows_of([Entry(b"")] * 4_000))
    requests = []
    while (request := delivery.take(0.0)) is not None:
        requests.append(request)
    sent = sum(one.entries.count for one in requests)
    assert 2 * RECORDS_PER_SECOND < sent <= 3 * RECORDS_PER_SECOND
    shards: list[ShardId | None] = [ShardId(f"shardId-{number % 7}") for number in range(500)]
    delivery.settle(requests[0], PutOutcome(shards=shards, codes=[None] * 500), 0.1)
    assert not delivery.is_outdated


def _delivery(
    *,
    is_ordered: bool,
    layout: int = 1,
    timeout: float = 10,
    random: Callable[[], float] = lambda: 0.5,
    packing: Packing | None = None,
) -> StreamDelivery:
    return StreamDelivery(
        "orders",
        shard_map=MAPS[layout],
        packing=packing,
        is_ordered=is_ordered,
        timeout=timeout,
        now=0.0,
        random=random,
    )
