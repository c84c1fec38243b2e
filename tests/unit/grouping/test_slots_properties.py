"""What holds of the shard-to-slot mappers for all shards, pasts and numbers of slots."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, HashRange, ShardKey, SlotId
from spark_ssp.grouping.slots import (
    Assignment,
    FreeSlotMapper,
    HashRangeMapper,
    MappableShard,
    ShardPartitionMapper,
)
from tests.support.kinesis.shards import key, ranged, shard

_T = TypeVar("_T")

FREE, BY_RANGE = FreeSlotMapper(), HashRangeMapper()

hash_ranges = st.tuples(st.integers(0, MAX_HASH_KEY), st.integers(0, MAX_HASH_KEY)).map(
    lambda ends: HashRange(first=min(ends), last=max(ends))
)
keys = st.builds(key, st.integers(0, 25), st.sampled_from(["a", "b"]))
shard_sets = st.lists(
    st.builds(
        MappableShard,
        key=keys,
        parents=st.lists(keys, max_size=2).map(tuple),
        hash_range=hash_ranges,
    ),
    max_size=20,
    unique_by=lambda given_shard: given_shard.key,
)
previous_ones = st.dictionaries(keys, st.integers(-1, 9).map(SlotId), max_size=20)
slot_counts = st.integers(1, 8)
mappers = st.sampled_from([FREE, BY_RANGE])


@given(mappers, previous_ones, shard_sets, slot_counts)
def test_every_shard_has_one_slot_that_exists(
    mapper: ShardPartitionMapper,
    previous: dict[ShardKey, SlotId],
    shards: list[MappableShard],
    slots: int,
) -> None:
    assigned = mapper.assign(previous, shards, slots)
    assert list(assigned) == sorted(given_shard.key for given_shard in shards)
    assert all(0 <= slot < slots for slot in assigned.values())


@given(mappers, previous_ones, shard_sets, slot_counts, st.randoms(use_true_random=False))
def test_the_order_of_the_input_is_irrelevant_and_nothing_is_remembered(
    mapper: ShardPartitionMapper,
    previous: dict[ShardKey, SlotId],
    shards: list[MappableShard],
    slots: int,
    random: Random,
) -> None:
    shuffled = _shuffled(shards, random)
    mixed = dict(_shuffled(list(previous.items()), random))
    turned = [
        MappableShard(key=s.key, parents=s.parents[::-1], hash_range=s.hash_range) for s in shuffled
    ]
    before = dict(previous)
    first = mapper.assign(previous, shards, slots)
    assert list(mapper.assign(mixed, turned, slots).items()) == list(first.items())
    assert previous == before


def _shuffled(items: list[_T], random: Random) -> list[_T]:
    return random.sample(items, len(items))


@given(previous_ones, shard_sets, slot_counts)
def test_a_shard_moves_only_if_its_slot_does_not_exist(
    previous: dict[ShardKey, SlotId], shards: list[MappableShard], slots: int
) -> None:
    assigned = FREE.assign(previous, shards, slots)
    for shard_key, slot in assigned.items():
        if shard_key in previous and 0 <= previous[shard_key] < slots:
            assert slot == previous[shard_key]


@given(previous_ones, shard_sets, slot_counts)
def test_a_new_shard_joins_another_only_when_no_slot_is_free(
    previous: dict[ShardKey, SlotId], shards: list[MappableShard], slots: int
) -> None:
    assigned = FREE.assign(previous, shards, slots)
    stayed = _staying(previous, assigned, slots)
    new = assigned.keys() - stayed.keys()
    occupied, used = set(stayed.values()), set(assigned.values())
    assert len(used) == min(slots, len(occupied) + len(new))
    # Joiners go where least is carried: no slot that took one could have done with fewer than
    # the emptiest slot has now.
    load, before = Counter(assigned.values()), Counter(stayed.values())
    least = min(load[SlotId(slot)] for slot in range(slots))
    assert all(load[slot] <= least + 1 for slot in used if load[slot] > before[slot])


@given(previous_ones, shard_sets, slot_counts)
def test_a_slot_that_parents_left_goes_to_one_of_their_children(
    previous: dict[ShardKey, SlotId], shards: list[MappableShard], slots: int
) -> None:
    assigned = FREE.assign(previous, shards, slots)
    stayed = _staying(previous, assigned, slots)
    occupied = set(stayed.values())
    claims = {
        s.key: {previous[p] for p in s.parents if p in previous} & set(range(slots)) - occupied
        for s in shards
        if s.key not in stayed
    }
    inherited = {assigned[child] for child in claims if assigned[child] in claims[child]}
    for child, claimed in claims.items():
        # Either it sits where a parent sat, or children of those who sat there have it all.
        assert assigned[child] in claimed or claimed <= inherited


def _staying(previous: Assignment, assigned: Assignment, slots: int) -> dict[ShardKey, SlotId]:
    return {k: previous[k] for k in assigned if k in previous and 0 <= previous[k] < slots}


@given(shard_sets, slot_counts)
def test_a_fresh_spread_is_balanced(shards: list[MappableShard], slots: int) -> None:
    load = Counter(FreeSlotMapper().assign({}, shards, slots).values())
    counts = [load[SlotId(slot)] for slot in range(slots)]
    assert max(counts) - min(counts) <= 1
    assert FreeSlotMapper().assign({}, shards, slots) == FREE.assign({}, shards, slots)


@given(previous_ones, shard_sets, slot_counts)
def test_assigning_again_changes_nothing(
    previous: dict[ShardKey, SlotId], shards: list[MappableShard], slots: int
) -> None:
    once = FREE.assign(previous, shards, slots)
    assert FREE.assign(once, shards, slots) == once


@given(previous_ones, shard_sets, slot_counts)
def test_by_hash_range_neither_the_past_nor_other_shards_matter(
    previous: dict[ShardKey, SlotId], shards: list[MappableShard], slots: int
) -> None:
    together = BY_RANGE.assign(previous, shards, slots)
    for alone in shards:
        assert BY_RANGE.assign({}, [alone], slots) == {alone.key: together[alone.key]}


@given(st.integers(1, 1000), st.data())
def test_children_stay_in_their_slot_if_the_parents_range_lies_within_one(
    slots: int, draw: st.DataObject
) -> None:
    slot = draw.draw(st.integers(0, slots - 1))
    # The hash keys h with (h * slots) >> 128 == slot.
    lowest = -((-slot << 128) // slots)
    highest = -((-(slot + 1) << 128) // slots) - 1
    first = draw.draw(st.integers(lowest, highest))
    last = draw.draw(st.integers(first, highest))
    cut = draw.draw(st.integers(first, last))
    family = [ranged(0, first, last), ranged(1, first, cut, 0), ranged(2, cut, last, 0)]
    assert set(BY_RANGE.assign({}, family, slots).values()) == {slot}


@given(hash_ranges, st.integers(1, 1000))
def test_the_formula_is_the_floor_of_the_exact_middle(hash_range: HashRange, slots: int) -> None:
    slot = BY_RANGE.assign({}, [shard(0, hash_range=hash_range)], slots)[key(0)]
    doubled = (hash_range.first + hash_range.last) * slots
    assert slot * (1 << 129) <= doubled < (slot + 1) * (1 << 129)


@given(st.data(), slot_counts)
def test_no_history_of_reshards_breaks_the_contract(draw: st.DataObject, slots: int) -> None:
    """Splits, merges and ends in any order; a child comes once its parents have gone."""
    living = {n: shard(n) for n in range(draw.draw(st.integers(1, 4)))}
    born = len(living)
    now = FreeSlotMapper().assign({}, living.values(), slots)
    for _ in range(draw.draw(st.integers(0, 12))):
        numbers = sorted(living)
        ended = draw.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=2, unique=True))
        for number in ended:
            del living[number]
        for _ in range(draw.draw(st.integers(1, 2))):
            living[born] = shard(born, *ended)
            born += 1
        before, now = now, FREE.assign(now, living.values(), slots)
        _check_one_reshard(before, now, {key(n) for n in living}, {key(n) for n in ended}, slots)


def _check_one_reshard(
    before: Assignment,
    now: Assignment,
    living: set[ShardKey],
    ended: set[ShardKey],
    slots: int,
) -> None:
    assert set(now) == living
    stayed = {k: before[k] for k in now if k in before}
    assert {k: now[k] for k in stayed} == stayed
    new = living - stayed.keys()
    left = {before[k] for k in ended} - set(stayed.values())
    # Every child here has all the ended shards as parents: what they left is used first.
    assert len(left & {now[k] for k in new}) == min(len(left), len(new))
    assert len(set(now.values())) == min(slots, len(set(stayed.values())) + len(new))
