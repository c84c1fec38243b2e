"""The shard-to-slot mappers by example: misuse, the free-slot rules, the hash-range formula."""

from __future__ import annotations

import pytest

from spark_ssp.grouping.identifiers import MAX_HASH_KEY, ShardKey, SlotId
from spark_ssp.grouping.slots import (
    Assignment,
    FreeSlotMapper,
    HashRangeMapper,
    MappableShard,
    ShardPartitionMapper,
    mapper_for,
)
from tests.support.kinesis.shards import key, placed, ranged, shard

FREE, BY_RANGE = FreeSlotMapper(), HashRangeMapper()


def by_slot(assignment: Assignment) -> dict[int, list[ShardKey]]:
    return {
        slot: sorted(k for k, at in assignment.items() if at == slot)
        for slot in sorted(set(assignment.values()))
    }


# --- Names and misuse -----------------------------------------------------------------------------


def test_mappers_are_found_by_the_names_of_the_option() -> None:
    assert isinstance(mapper_for("free"), FreeSlotMapper)
    assert isinstance(mapper_for("hash-range"), HashRangeMapper)
    with pytest.raises(ValueError, match=r"'hash_range'; there are: free, hash-range"):
        mapper_for("hash_range")


@pytest.mark.parametrize("mapper", [FREE, BY_RANGE])
@pytest.mark.parametrize("slots", [0, -1])
def test_fewer_than_one_slot_is_an_error(mapper: ShardPartitionMapper, slots: int) -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        mapper.assign({}, [], slots)


@pytest.mark.parametrize("mapper", [FREE, BY_RANGE])
def test_a_shard_given_twice_is_an_error(mapper: ShardPartitionMapper) -> None:
    with pytest.raises(ValueError, match="orders/shardId-000000000001 is given twice"):
        mapper.assign({}, [shard(1), shard(0), shard(1)], 2)


@pytest.mark.parametrize("mapper", [FREE, BY_RANGE])
def test_no_shards_need_no_slot(mapper: ShardPartitionMapper) -> None:
    assert mapper.assign(placed({0: 0}), [], 2) == {}


# --- Free slots, rule by rule ---------------------------------------------------------------------


def test_a_fresh_start_deals_sorted_shards_out_in_turn() -> None:
    shards = [shard(n) for n in (4, 0, 3, 1, 2)]
    assert FreeSlotMapper().assign({}, shards, 5) == placed({0: 0, 1: 1, 2: 2, 3: 3, 4: 4})
    assert FreeSlotMapper().assign({}, shards, 2) == placed({0: 0, 1: 1, 2: 0, 3: 1, 4: 0})
    assert FreeSlotMapper().assign({}, shards, 9) == placed({0: 0, 1: 1, 2: 2, 3: 3, 4: 4})


def test_a_slot_is_free_only_when_its_last_shard_has_left() -> None:
    previous = placed({0: 0, 1: 0, 2: 1})
    assert FREE.assign(previous, [shard(1), shard(2), shard(9)], 2)[key(9)] == 0
    assert FREE.assign(previous, [shard(1), shard(2), shard(8), shard(9)], 3) == placed(
        {1: 0, 2: 1, 8: 2, 9: 0}
    )
    assert FREE.assign(previous, [shard(2), shard(8), shard(9)], 2) == placed({2: 1, 8: 0, 9: 0})


def test_both_children_of_a_split_when_another_slot_is_free() -> None:
    assert FREE.assign(placed({0: 1}), [shard(1, 0), shard(2, 0)], 3) == placed({1: 1, 2: 0})


def test_a_merges_child_takes_the_lower_of_its_parents_slots_not_the_lowest_free_one() -> None:
    previous = placed({0: 0, 1: 3, 2: 2})
    assert FREE.assign(previous, [shard(0), shard(3, 1, 2)], 4) == placed({0: 0, 3: 2})


def test_a_parents_slot_goes_to_its_child_before_it_goes_to_another_shard() -> None:
    """Sorted order alone would give slot 0 to shard 4, which has no claim to it."""
    previous = placed({0: 0, 1: 1, 2: 2})
    shards = [shard(2), shard(4), shard(5, 0, 1)]
    assert FREE.assign(previous, shards, 3) == placed({2: 2, 4: 1, 5: 0})


def test_a_parents_slot_that_still_carries_another_shard_is_not_free() -> None:
    previous = placed({0: 0, 1: 0, 2: 1})
    assert FREE.assign(previous, [shard(1), shard(3, 0)], 2) == placed({1: 0, 3: 1})


def test_parents_that_are_not_known_any_more_give_no_preference() -> None:
    assert FREE.assign(placed({2: 0}), [shard(2), shard(3, 1)], 3) == placed({2: 0, 3: 1})


def test_without_a_free_slot_a_new_shard_joins_the_slot_that_carries_least() -> None:
    previous = placed({0: 0, 1: 0, 2: 1, 3: 1, 4: 2})
    shards = [shard(n) for n in range(8)]
    assert FREE.assign(previous, shards, 3) == placed(
        {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 0, 7: 1}
    )


def test_shards_stay_even_where_that_is_uneven() -> None:
    previous = placed({0: 1, 1: 1, 2: 1, 3: 0})
    assert FREE.assign(previous, [shard(0), shard(1), shard(2)], 3) == placed({0: 1, 1: 1, 2: 1})


def test_previous_slots_that_do_not_exist_make_their_shards_new() -> None:
    previous = {**placed({0: 0, 1: 5, 2: 1}), key(3): SlotId(-1)}
    assert FREE.assign(previous, [shard(n) for n in range(4)], 2) == placed(
        {0: 0, 1: 0, 2: 1, 3: 1}
    )
    assert FREE.assign(previous, [shard(0), shard(4, 1)], 2) == placed({0: 0, 4: 1})


def test_shards_of_several_streams_share_the_slots_and_keep_their_names_apart() -> None:
    shards = [shard(0, stream="b"), shard(0, stream="a"), shard(1, stream="a")]
    fresh = FREE.assign({}, shards, 3)
    assert fresh == {key(0, "a"): 0, key(1, "a"): 1, key(0, "b"): 2}
    after = FREE.assign(fresh, [shard(2, 0, stream="b"), *shards[1:]], 3)
    assert after == {key(0, "a"): 0, key(1, "a"): 1, key(2, "b"): 2}


# --- The design's example, steps 1 to 7 -----------------------------------------------------------


def assign(previous: Assignment, slots: int, *shards: MappableShard) -> dict[ShardKey, SlotId]:
    return FREE.assign(previous, shards, slots)


def test_the_designs_seven_steps_with_two_containers() -> None:
    """The Kinesis system consumer's design, "Dynamic Re-sharding", steps 1 to 7.

    Two containers with two slots each are two mappers: a container maps the shards that the lease
    balancing gave it. The pictures of the original are missing. So free here are which container
    gets which child (chosen so that step 4 puts Shard-6 beside Shard-3 in Task1's first slot, as
    its text says: a record of Shard-3, then one of Shard-6, in "Task1:ssp1"), and the numbering of
    the slots (ours begins with 0). Every step checks a sentence of the text.
    """
    # 1. Two shards, two tasks with two slots each; each shard is mapped to a free slot.
    one = assign({}, 2, shard(0))
    two = assign({}, 2, shard(1))
    assert (one, two) == (placed({0: 0}), placed({1: 0}))

    # 2. Shard-0 is split into Shard-2 and Shard-3: it is unmapped, they get free slots.
    one = assign(one, 2, shard(3, 0))
    two = assign(two, 2, shard(1), shard(2, 0))
    assert (one, two) == (placed({3: 0}), placed({1: 0, 2: 1}))

    # 3. Shard-1 is split into Shard-4 and Shard-5: likewise. Now every slot carries one shard.
    one = assign(one, 2, shard(3, 0), shard(4, 1))
    two = assign(two, 2, shard(2, 0), shard(5, 1))
    assert (one, two) == (placed({3: 0, 4: 1}), placed({2: 1, 5: 0}))

    # 4. Shard-2 is split into Shard-6 and Shard-7: one takes the slot that Shard-2 left, for the
    # other there is none, so it joins a slot that is mapped to another shard.
    one = assign(one, 2, shard(3, 0), shard(4, 1), shard(6, 2))
    two = assign(two, 2, shard(5, 1), shard(7, 2))
    assert (one, two) == (placed({3: 0, 4: 1, 6: 0}), placed({5: 0, 7: 1}))
    assert by_slot(one)[0] == [key(3), key(6)]

    # 5. On a restart each task has as many slots as there are shards, mapped one to one.
    one = FreeSlotMapper().assign({}, [shard(3, 0), shard(4, 1), shard(6, 2)], 5)
    two = FreeSlotMapper().assign({}, [shard(5, 1), shard(7, 2)], 5)
    assert (one, two) == (placed({3: 0, 4: 1, 6: 2}), placed({5: 0, 7: 1}))

    # 6. A third container is added and takes a shard from each of the others.
    one = assign(one, 5, shard(4, 1), shard(6, 2))
    two = assign(two, 5, shard(5, 1))
    three = assign({}, 5, shard(3, 0), shard(7, 2))
    assert (one, two, three) == (placed({4: 1, 6: 2}), placed({5: 0}), placed({3: 0, 7: 1}))

    # 7. Shard-5 and Shard-6 are merged into Shard-8: both are unmapped, it gets a free slot,
    # whichever container reads it. Where a parent has left a slot, it is that one.
    assert assign(one, 5, shard(4, 1)) == placed({4: 1})
    assert assign(one, 5, shard(4, 1), shard(8, 5, 6)) == placed({4: 1, 8: 2})
    assert assign(two, 5, shard(8, 5, 6)) == placed({8: 0})
    assert assign(three, 5, shard(3, 0), shard(7, 2), shard(8, 5, 6)) == placed({3: 0, 7: 1, 8: 2})


def test_the_designs_seven_steps_in_one_query_of_four_slots() -> None:
    """The same steps as a query reads them: one mapper for all shards, with the four slots that
    the two containers have between them; step 5 restarts with one slot to a shard, step 6 (more
    workers) changes nothing, because slots do not belong to workers."""
    now = assign({}, 4, shard(0), shard(1))
    assert now == placed({0: 0, 1: 1})
    now = assign(now, 4, shard(1), shard(2, 0), shard(3, 0))
    assert now == placed({1: 1, 2: 0, 3: 2})
    now = assign(now, 4, shard(2, 0), shard(3, 0), shard(4, 1), shard(5, 1))
    assert now == placed({2: 0, 3: 2, 4: 1, 5: 3})
    now = assign(now, 4, shard(3, 0), shard(4, 1), shard(5, 1), shard(6, 2), shard(7, 2))
    assert now == placed({3: 2, 4: 1, 5: 3, 6: 0, 7: 0})
    open_shards = [shard(3, 0), shard(4, 1), shard(5, 1), shard(6, 2), shard(7, 2)]
    now = FreeSlotMapper().assign({}, open_shards, 5)
    assert now == placed({3: 0, 4: 1, 5: 2, 6: 3, 7: 4})
    assert assign(now, 5, *open_shards) == now
    now = assign(now, 5, shard(3, 0), shard(4, 1), shard(7, 2), shard(8, 5, 6))
    assert now == placed({3: 0, 4: 1, 7: 4, 8: 2})


# --- Hash range, by example -----------------------------------------------------------------------


def test_the_hash_range_formula_at_its_edges() -> None:
    half = 1 << 127
    shards = [
        ranged(0, 0, 0),
        ranged(1, 0, half - 1),
        ranged(2, half, MAX_HASH_KEY),
        ranged(3, MAX_HASH_KEY, MAX_HASH_KEY),
        ranged(4, 0, MAX_HASH_KEY),  # the middle is a half below the border
        ranged(5, half - 1, half),
        ranged(6, half, half),
    ]
    slots = {0: 0, 1: 0, 2: 1, 3: 1, 4: 0, 5: 0, 6: 1}
    assert BY_RANGE.assign({}, shards, 2) == placed(slots)
    assert set(BY_RANGE.assign({}, shards, 1).values()) == {0}


def test_even_shards_get_a_slot_each_and_children_stay_in_it() -> None:
    quarter = 1 << 126
    parents = [ranged(n, n * quarter, (n + 1) * quarter - 1) for n in range(4)]
    now = BY_RANGE.assign({}, parents, 4)
    assert now == placed({0: 0, 1: 1, 2: 2, 3: 3})
    children = [
        ranged(4, 2 * quarter, 2 * quarter + 99, 2),
        ranged(5, 2 * quarter + 100, 3 * quarter - 1, 2),
    ]
    assert BY_RANGE.assign(now, [parents[0], *children], 4) == placed({0: 0, 4: 2, 5: 2})


def test_streams_go_by_the_same_formula() -> None:
    shards = [shard(n, stream=name) for name in ("b", "a") for n in (0, 1)]
    assert set(BY_RANGE.assign({}, shards, 7).values()) == {3}
