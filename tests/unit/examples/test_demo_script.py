"""What the demo puts into the stream: the same on each run, in the file's order."""

from __future__ import annotations

from functools import cache

import orjson
import pyarrow as pa
import pytest

from examples.flights import data, script
from examples.flights.script import Message, OpenShard, Reshard

COUNT = 5_000


@cache
def table() -> pa.Table:
    return data.departures(COUNT)


@cache
def everything() -> list[script.Step]:
    return list(script.steps(table()))


def messages() -> list[Message]:
    return [message for step in everything() if not isinstance(step, Reshard) for message in step]


def test_each_departure_is_put_once_and_in_order() -> None:
    bad = {message.data for message in script.malformed(table())}
    good = [orjson.loads(message.data) for message in messages() if message.data not in bad]
    assert [row["index"] for row in good] == list(range(COUNT))
    assert good[0] == table().slice(0, 1).to_pylist()[0]


def test_the_malformed_ones_lie_among_them() -> None:
    bad = script.malformed(table())
    assert len(bad) == script.malformed_count(COUNT) == script.MIN_MALFORMED
    assert len(messages()) == script.record_count(COUNT) == COUNT + len(bad)
    wanted = set(bad)
    assert [message for message in messages() if message in wanted] == bad


def test_a_malformed_record_has_the_key_of_the_departure_before() -> None:
    bad = set(script.malformed(table()))
    sent = messages()
    places = [place for place, message in enumerate(sent) if message in bad]
    assert [sent[place].key for place in places] == [sent[place - 1].key for place in places]


def test_batches_are_no_larger_than_the_service_takes() -> None:
    sizes = [len(step) for step in everything() if not isinstance(step, Reshard)]
    assert max(sizes) == script.BATCH_RECORDS
    assert min(sizes) > 0


def test_the_stream_is_split_three_times_and_merged_once_at_spread_moments() -> None:
    done, moments = 0, []
    for step in everything():
        if isinstance(step, Reshard):
            moments.append((step, round(done / script.record_count(COUNT), 2)))
        else:
            done += len(step)
    assert moments == [
        (Reshard.SPLIT, 0.15),
        (Reshard.SPLIT, 0.35),
        (Reshard.SPLIT, 0.55),
        (Reshard.MERGE, 0.75),
    ]


def test_the_key_is_the_tail_number_or_else_the_flight() -> None:
    keys = data.partition_keys(table()).to_pylist()
    tails = table()["tailnum"].to_pylist()
    assert keys[0] == tails[0] == "N14228"
    nameless = tails.index(None)
    row = table().slice(nameless, 1).to_pylist()[0]
    assert keys[nameless] == f"{row['carrier']}{row['flight']}"


def test_the_other_tables_have_what_departures_refer_to() -> None:
    carriers = set(data.airlines()["carrier"].to_pylist())
    assert set(table()["carrier"].to_pylist()) <= carriers
    assert set(table()["origin"].to_pylist()) <= set(data.airports()["faa"].to_pylist())
    assert data.planes().num_rows > 3_000


# --- Which shards ---------------------------------------------------------------------------------


def shard(name: str, first: int, last: int, parent: str | None = None) -> OpenShard:
    return OpenShard(shard=name, parent=parent, first=first, last=last)


def test_the_widest_shard_is_split_in_its_middle() -> None:
    shards = [shard("a", 0, 3), shard("b", 4, 11), shard("c", 12, 19)]
    assert script.shard_to_split(shards).shard == "b"
    assert script.shard_to_split(shards).middle == 8


@pytest.mark.parametrize(
    ("shards", "chosen"),
    [
        ([shard("a", 0, 7), shard("b", 8, 9), shard("c", 10, 19)], ("a", "b")),
        (
            [shard("c", 4, 11, "q"), shard("b", 2, 3, "p"), shard("a", 0, 1, "p")],
            ("b", "c"),
        ),
    ],
)
def test_narrow_neighbours_of_different_parents_are_merged(
    shards: list[OpenShard], chosen: tuple[str, str]
) -> None:
    one, other = script.shards_to_merge(
        [
            s if s.parent else OpenShard(shard=s.shard, parent=s.shard, first=s.first, last=s.last)
            for s in shards
        ]
    )
    assert (one.shard, other.shard) == chosen
