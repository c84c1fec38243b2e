"""That the judge of the histories can tell: every rule, broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext

import pytest

from spark_ssp.kinesis_source.model.offset import BEFORE_FIRST_BATCH, encode
from tests.support.simulation.judge import SECRETS
from tests.support.simulation.query import Row
from tests.support.simulation.scene import STREAM, Scene, scene
from tests.support.simulation.world import HOUR_MS

BEFORE = json.dumps(encode(BEFORE_FIRST_BATCH))


def planned(scenes: ExitStack, count: int, **options: str) -> Scene:
    """A batch of `count` records was planned by the real query; the judge is told the rest."""
    made = scene(scenes, 1, **options)
    made.put(count)
    made.start()
    made.judge.planning()
    assert made.query.reader is not None
    end = made.query.reader.latestOffset(
        json.loads(BEFORE), made.query.reader.getDefaultReadLimit()
    )
    made.query.offset_log.append(json.dumps(end))
    made.judge.planned(0, BEFORE, made.query.offset_log[0])
    return made


def rows(made: Scene, numbers: Sequence[int], slot: int = 0) -> list[Row]:
    """The rows as they should come, of the user records with these numbers."""
    found = []
    for number in numbers:
        life, index = made.world.owners[number]
        entry = made.world.entries[life][index]
        found.append(
            Row(
                stream=life.stream,
                shard=life.shard,
                sequence_number=entry.sequence_number,
                sub=0,
                id=number,
                key=entry.key,
                arrival=entry.arrival,
                slot=slot,
            )
        )
    return found


def test_right_is_right(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    made.judge.read(0, [(0, rows(made, range(5)))])
    made.judge.committed(0, rows(made, range(5)))
    assert not made.judge.missing()


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ([0, 1, 1, 2, 3, 4], "twice or too late"),
        ([0, 2, 1, 3, 4], "passed over"),
        ([0, 1, 3, 4], "passed over"),
        ([1, 2, 3, 4], "passed over"),
    ],
)
def test_wrong_rows(scenes: ExitStack, numbers: list[int], why: str) -> None:
    made = planned(scenes, 5)
    with pytest.raises(AssertionError, match=why):
        made.judge.committed(0, rows(made, numbers))


def test_a_batch_again(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    made.judge.committed(0, rows(made, range(5)))
    with pytest.raises(AssertionError, match="twice or too late"):
        made.judge.committed(0, rows(made, [4]))


def test_records_that_never_come(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    made.judge.committed(0, rows(made, range(3)))
    assert sum(made.judge.missing().values()) == 2


def test_records_lost_in_silence(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    made.judge.committed(0, rows(made, range(3)))
    made.world.pass_time(30 * HOUR_MS)
    with pytest.raises(AssertionError, match="in silence"):
        made.judge.check_silence()
    made.judge.lost(f"stream {STREAM}")
    made.judge.check_silence()


@pytest.mark.parametrize(
    ("numbers", "slot_of_child", "why"),
    [
        ([2, 3], 0, None),
        ([3], 0, "is read before"),
        ([3, 2], 0, "is read before"),
        ([2, 3], 1, "is read beside"),
    ],
)
def test_a_child_with_its_parent(
    scenes: ExitStack, numbers: list[int], slot_of_child: int, why: str | None
) -> None:
    made = planned(scenes, 3)
    made.judge.committed(0, rows(made, range(2)))
    made.world.split(STREAM, 0)
    made.put(1)
    read = [row for one in numbers for row in rows(made, [one], slot_of_child if one == 3 else 0)]
    with pytest.raises(AssertionError, match=why) if why else nullcontext():
        made.judge.committed(0, read)


def test_rows_before_the_start(scenes: ExitStack) -> None:
    made = planned(scenes, 3, startingPosition="latest")
    with pytest.raises(AssertionError, match="before the start"):
        made.judge.committed(0, rows(made, [2]))


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": "2"}, {"maxBytesPerTrigger": "40"}])
def test_more_than_the_limit(scenes: ExitStack, limit: dict[str, str]) -> None:
    made = planned(scenes, 5, **limit)
    with pytest.raises(AssertionError, match="under a limit"):
        made.judge.committed(0, rows(made, range(3)))


def test_another_replay(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    made.judge.read(0, [(0, rows(made, range(5)))])
    made.judge.read(0, [(0, rows(made, range(5)))])
    with pytest.raises(AssertionError, match="other rows"):
        made.judge.read(0, [(0, rows(made, range(4)))])


def test_too_many_tasks(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    with pytest.raises(AssertionError, match="2 tasks for 1 slots"):
        made.judge.read(0, [(0, rows(made, [0])), (1, rows(made, [1], slot=1))])


def test_a_shard_in_two_slots(scenes: ExitStack) -> None:
    made = planned(scenes, 5, slots="2")
    with pytest.raises(AssertionError, match="two slots"):
        made.judge.read(0, [(0, rows(made, [0])), (1, rows(made, [1], slot=1))])


def test_slots_that_change_within_a_run(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    end = made.query.offset_log[0]
    with pytest.raises(AssertionError, match="changed within a run"):
        made.judge.planned(1, end, end.replace('"slots": 1', '"slots": 2'))


@pytest.mark.parametrize("secret", [*SECRETS.values(), "payload-3", "key-1"])
def test_what_no_offset_may_hold(scenes: ExitStack, secret: str) -> None:
    made = planned(scenes, 5)
    end = made.query.offset_log[0]
    with pytest.raises(AssertionError, match="an offset contains"):
        made.judge.planned(1, end, end.replace(STREAM, secret))


def test_a_step_back(scenes: ExitStack) -> None:
    made = planned(scenes, 5)
    end = made.query.offset_log[0]
    last = made.world.entries[made.world.lives(STREAM)[0]]
    back = end.replace(str(last[4].sequence_number), str(last[1].sequence_number))
    assert back != end
    with pytest.raises(AssertionError, match="backwards"):
        made.judge.planned(1, end, back)
