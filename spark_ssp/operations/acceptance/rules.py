"""The answers of Kinesis that this project relies on, as rules over the answers.

A rule yields a text for each deviation, and nothing for an answer that is as expected. Answers are
those of the API, by its field names, with times as `datetime`. The texts have shards, sequence
numbers and codes, and never a key, the data of a record or an ARN. `spark-ssp acceptance` and the
contract tests use the same rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from spark_ssp.common.logs import count_of
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import MAX_HASH_KEY, hash_of
from spark_ssp.kinesis_source.model.shard import CLOCK_UNCERTAINTY_MS

Answer = Mapping[str, Any]
"""An answer of the API, or a part of it."""

Deviations = Iterator[str]

REFUSED_REQUEST: Final = frozenset({"InvalidArgumentException", "ValidationException"})
NOT_FOUND: Final = frozenset({"ResourceNotFoundException"})
EXPIRED: Final = frozenset({"ExpiredIteratorException"})
IN_USE: Final = frozenset({"ResourceInUseException"})
SUBSCRIBED: Final = IN_USE | {"LimitExceededException"}
"""The codes of a subscription right after another: one call a second is allowed."""

_LAG_TOLERANCE_MS: Final = 60_000
"""The most by which a service may count the lag of a record beyond its age."""


class Check(StrEnum):
    """An assumption. The name is for programs, the value for people."""

    NEW_SHARDS = "the shards of a new stream share all hash keys and are open"
    SUMMARY = "DescribeStreamSummary has name, ARN, status, retention, creation and open shards"
    PLACEMENT = "the MD5 of the key, or the explicit hash key, decides the shard of a record"
    NUMBERS = "sequence numbers grow in the order of the puts"
    RECORDS = "GetRecords returns every record once, as it was put, in the order of the numbers"
    ARRIVALS = "arrival times have the order of the records and are those of the service's clock"
    PAGES = "pages follow each other without gap or repetition, within their limit"
    POSITIONS = "AT begins with the record, AFTER with the next, LATEST with later ones"
    TIMES = "AT_TIMESTAMP begins with the first record that arrived then or later"
    NO_LAG = "MillisBehindLatest is 0 at the latest record"
    LAG = "MillisBehindLatest counts from the last record of the page to now"
    CONTINUATION = "a page of an open shard has an iterator, also if it is empty"
    ABSENT = "a stream or shard that does not exist is not found"
    FOREIGN_NUMBER = "a sequence number of another shard is refused"
    FUTURE_TIME = "a time ahead of the service's clock is refused"
    MADE_UP_ITERATOR = "an iterator that the service did not give is refused"
    ERRORS = "the client translates these refusals to the errors that queries handle"
    SPLIT = "a split closes the shard and opens two children with its hash keys"
    CHILD_NUMBERS = "sequence numbers of children are larger than those of their parents"
    SHARD_END = "the last page of a closed shard has no iterator, no lag and the children"
    ENDING_NUMBER = "the EndingSequenceNumber of a closed shard is not before its last record"
    MERGE = "a merge closes two shards and opens one child with both as parents"
    LISTING = "the pages of ListShards have every shard once"
    QUERY = "a query's batches return every record once, parents before children"
    NEXT_BATCH = "the next batch returns the records put since, and the one after it none"
    REPLAY = "a batch that is read again returns the same rows"
    BATCH = "a batch read returns every record once"
    LEASES = "a write to the lease table takes effect only if the row is as observed"
    PUSHED = "a subscription pushes every record once, and a continuation after the last"
    PUSHED_END = "a subscription to a closed shard ends after its last record"
    SECOND_SUBSCRIPTION = "a second subscription within five seconds is refused"
    PUSHED_QUERY = "a batch read by subscriptions returns every record once"
    AUTO_SUMMARY = "DescribeStreamSummary has the record distribution strategy"
    AUTO_PLACEMENT = "under AUTO the service spreads the records of a key"
    AUTO_KEYLESS = "under AUTO a record needs no key, and comes back without one"
    EXPIRED_ITERATOR = "an iterator that is older than five minutes has expired"


# --- Shards and streams --------------------------------------------------------------------------


def new_shards_share_the_hash_keys(shards: Sequence[Answer]) -> Deviations:
    """Check the listing of a stream that was never resharded."""
    names = [shard["ShardId"] for shard in shards]
    expected = [f"shardId-{number:012}" for number in range(len(shards))]
    if names != expected:
        yield _differ("shards", names, expected)
    yield from _share(shards, 0, MAX_HASH_KEY)
    for shard in shards:
        extra = sorted(set(shard) - {"ShardId", "HashKeyRange", "SequenceNumberRange"})
        if extra:
            yield f"{shard['ShardId']}: found {', '.join(extra)}; expected no parents"
        if not is_open(shard):
            yield f"{shard['ShardId']}: found an EndingSequenceNumber; expected an open shard"


def summary_describes_the_stream(summary: Answer, *, name: str, open_shards: int) -> Deviations:
    """Check the fields of DescribeStreamSummary that are read."""
    expected = {"StreamName": name, "StreamStatus": "ACTIVE", "OpenShardCount": open_shards}
    for key, value in expected.items():
        if summary.get(key) != value:
            yield _differ(key, summary.get(key), value)
    if not str(summary.get("StreamARN")).endswith(f":stream/{name}"):
        yield f"StreamARN: expected the ARN of a stream that ends in :stream/{name}"
    hours = summary.get("RetentionPeriodHours")
    if not isinstance(hours, int) or hours < 1:
        yield _differ("RetentionPeriodHours", hours, "1 or more")
    if not isinstance(summary.get("StreamCreationTimestamp"), datetime):
        yield "StreamCreationTimestamp: found no time; expected the time of the creation"


def a_split_opens_two_children(
    parent: str, at: int, before: Sequence[Answer], after: Sequence[Answer]
) -> Deviations:
    """Check the listings before and after a split of `parent` at hash key `at`."""
    closed = by_id(after).get(parent)
    children = new_shards(before, after)
    yield from _closed([parent], after)
    if len(children) != 2 or closed is None:
        yield _differ("new shards", [c["ShardId"] for c in children], "two children")
        return
    first, last = hash_range(closed)
    ranges = [hash_range(child) for child in children]
    if ranges != [(first, at - 1), (at, last)]:
        yield "hash keys of the children: expected those of the parent, divided at the split"
    for child in children:
        if parents_of(child) != [parent]:
            yield _differ(f"parents of {child['ShardId']}", parents_of(child), [parent])


def a_merge_opens_one_child(
    shard: str, adjacent: str, before: Sequence[Answer], after: Sequence[Answer]
) -> Deviations:
    """Check the listings before and after `adjacent` was merged into `shard`."""
    children = new_shards(before, after)
    yield from _closed([shard, adjacent], after)
    if len(children) != 1:
        yield _differ("new shards", [c["ShardId"] for c in children], "one child")
        return
    (child,) = children
    if parents_of(child) != [shard, adjacent]:
        yield _differ(f"parents of {child['ShardId']}", parents_of(child), [shard, adjacent])
    listed = by_id(after)
    ends = [key for one in (shard, adjacent) if one in listed for key in hash_range(listed[one])]
    if ends and hash_range(child) != (min(ends), max(ends)):
        yield f"hash keys of {child['ShardId']}: expected those of both parents"


def listing_pages_join(
    pages: Sequence[Sequence[str]], most: int, whole: Sequence[str]
) -> Deviations:
    """Check pages of ListShards of at most `most` shards against the whole listing."""
    if any(len(page) > most for page in pages):
        yield _differ("shards in a page", max(map(len, pages)), f"at most {most}")
    found = [shard for page in pages for shard in page]
    if found != list(whole):
        yield _differ("shards in all pages", found, list(whole))


# --- Records -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A record that was put: its keys and data, and where it went."""

    shard: str
    number: str
    key: str
    data: bytes = field(repr=False)
    hash_key: int | None = None
    """The explicit hash key."""


def keys_place_records(puts: Sequence[Put], shards: Sequence[Answer]) -> Deviations:
    """Check that each record went to the open shard with its hash key."""
    ranges = {shard["ShardId"]: hash_range(shard) for shard in shards if is_open(shard)}
    for put in puts:
        hash_key = hash_of(put.key) if put.hash_key is None else put.hash_key
        expected = [name for name, (first, last) in ranges.items() if first <= hash_key <= last]
        if [put.shard] != expected:
            yield _differ(f"shard of a record with hash key {hash_key}", put.shard, expected)


def numbers_grow(numbers: Sequence[str]) -> Deviations:
    """Check the numbers of puts to one shard, each made after the one before."""
    for before, after in pairwise(numbers):
        if int(after) <= int(before):
            yield f"found {after} after {before}; expected a larger number"


def records_come_back(puts: Sequence[Put], records: Sequence[Answer]) -> Deviations:
    """Check all records of a shard against those that were put into it."""
    expected = {put.number: put for put in puts}
    yield from every_number_once(list(expected), [record["SequenceNumber"] for record in records])
    for record in records:
        put = expected.get(record["SequenceNumber"])
        if put is not None and record["Data"] != put.data:
            yield f"record {put.number}: other data than was put"
        if put is not None and record.get("PartitionKey") != put.key:
            yield f"record {put.number}: another partition key than was put"


def every_number_once(expected: Collection[str], found: Sequence[str]) -> Deviations:
    """Check that the numbers of one shard are all there, once, in their order."""
    wanted = sorted(expected, key=int)
    missing = [number for number in wanted if number not in found]
    extra = sorted(set(found) - set(wanted), key=int)
    if missing:
        yield f"missing: {_some(missing)}"
    if extra:
        yield f"not put, or not expected there: {_some(extra)}"
    if len(set(found)) < len(found):
        yield f"{count_of(len(found) - len(set(found)), 'row')} too many: records come again"
    if list(found) != sorted(found, key=int):
        yield "the records are not in the order of their numbers"


def arrivals_keep_order(records: Sequence[Answer], began_ms: int, ended_ms: int) -> Deviations:
    """Check the arrival times of records of one shard that were put between two times of the
    service's clock."""
    times = [arrival_ms(record) for record in records]
    for before, after in pairwise(times):
        if after < before:
            yield f"arrival: found {time_text(after)} after {time_text(before)}"
    earliest, latest = began_ms - CLOCK_UNCERTAINTY_MS, ended_ms + CLOCK_UNCERTAINTY_MS
    for time in times:
        if not earliest <= time <= latest:
            yield (
                f"arrival: found {time_text(time)}; expected a time from {time_text(earliest)} to "
                f"{time_text(latest)}"
            )


# --- Pages and positions -------------------------------------------------------------------------


def pages_follow_each_other(
    pages: Sequence[Answer], limit: int, numbers: Collection[str]
) -> Deviations:
    """Check pages that were read one after the other with this limit, from the first record on."""
    if any(len(page["Records"]) > limit for page in pages):
        yield _differ("records in a page", max(len(p["Records"]) for p in pages), limit)
    yield from every_number_once(numbers, numbers_of(pages))


def a_position_begins_at(kind: str, found: Sequence[str], expected: Sequence[str]) -> Deviations:
    """Check the numbers that were read from an iterator of this type on."""
    if list(found) != list(expected):
        yield _differ(f"from {kind}", _some(found), _some(expected))


def numbers_from(records: Sequence[Answer], at_ms: int) -> list[str]:
    """Return the numbers that AT_TIMESTAMP returns: from the first record that arrived then or
    later on."""
    for place, record in enumerate(records):
        if arrival_ms(record) >= at_ms:
            return [each["SequenceNumber"] for each in records[place:]]
    return []


def the_latest_page_has_no_lag(page: Answer) -> Deviations:
    """Check a page after which no record follows."""
    if page.get("MillisBehindLatest") != 0:
        yield _differ("MillisBehindLatest at the latest record", page.get("MillisBehindLatest"), 0)


def lag_counts_to_now(page: Answer, age_ms: int) -> Deviations:
    """Check a page after which records follow, the oldest of which is `age_ms` old."""
    behind = page.get("MillisBehindLatest")
    least = max(1, age_ms - CLOCK_UNCERTAINTY_MS)
    if not isinstance(behind, int) or not least <= behind <= age_ms + _LAG_TOLERANCE_MS:
        age = duration_text(age_ms)
        yield _differ(
            "MillisBehindLatest", behind, f"at least {least}, as a record of {age} follows"
        )


def open_pages_go_on(pages: Sequence[Answer]) -> Deviations:
    """Check pages of a shard that was open."""
    for page in pages:
        if not page.get("NextShardIterator"):
            yield f"a page of {len(page['Records'])} records of an open shard has no iterator"


def the_end_names_the_children(
    shard: str, pages: Sequence[Answer], shards: Sequence[Answer]
) -> Deviations:
    """Check the pages of a closed shard up to its end. The last may be empty."""
    if not pages or pages[-1].get("NextShardIterator"):
        yield f"{shard}: found no end; expected a page without an iterator"
        return
    for page in pages[:-1]:
        if page.get("ChildShards"):
            yield f"{shard}: found ChildShards in a page with an iterator"
    last = pages[-1]
    if last.get("MillisBehindLatest") != 0:
        yield _differ(f"{shard}: MillisBehindLatest at the end", last.get("MillisBehindLatest"), 0)
    yield from children_are_announced(shard, last.get("ChildShards") or [], shards)


def children_are_announced(
    shard: str, announced: Sequence[Answer], shards: Sequence[Answer]
) -> Deviations:
    """Check ChildShards at the end of a shard against the listing."""
    children = {one["ShardId"]: one for one in shards if shard in parents_of(one)}
    names = sorted(child["ShardId"] for child in announced)
    if names != sorted(children):
        yield _differ(f"{shard}: ChildShards", names, sorted(children))
        return
    for child in announced:
        listed = children[child["ShardId"]]
        if sorted(child["ParentShards"]) != sorted(parents_of(listed)):
            yield _differ(
                f"parents of {child['ShardId']}", child["ParentShards"], parents_of(listed)
            )
        if child["HashKeyRange"] != listed["HashKeyRange"]:
            yield f"hash keys of {child['ShardId']}: expected those of ListShards"


def the_end_is_not_before(shard: Answer, last: str) -> Deviations:
    """Check the EndingSequenceNumber of a closed shard against its last record's number."""
    ending = shard["SequenceNumberRange"].get("EndingSequenceNumber")
    if ending is None or int(ending) < int(last):
        yield _differ("EndingSequenceNumber", ending, f"{last} or more")


def is_refused(situation: str, code: str | None, expected: Collection[str]) -> Deviations:
    """Check the error code of a call. None: it was answered."""
    if code not in expected:
        found = "an answer" if code is None else code
        yield _differ(situation, found, " or ".join(sorted(expected)))


# --- Record distribution -------------------------------------------------------------------------


def auto_spreads_a_key(placed: Sequence[str], open_shards: Collection[str]) -> Deviations:
    """Check the shards of records with one key, many times as many as there are shards."""
    if len(set(placed)) < min(2, len(open_shards)):
        yield _differ("shards of the records of a key", len(set(placed)), "more than one")
    if not set(placed) <= set(open_shards):
        yield _differ("shards", sorted(set(placed)), sorted(open_shards))


# --- Rows of queries -----------------------------------------------------------------------------


class Row(NamedTuple):
    """The place of a row of a query."""

    shard: str
    number: str


Batch = Sequence[Sequence[Row]]
"""The rows of the tasks of a batch, each in its order."""


def batches_have_every_record_once(
    expected: Mapping[str, Collection[str]], batches: Sequence[Batch]
) -> Deviations:
    """Check the rows of batches against the numbers that each shard has."""
    found: dict[str, list[str]] = {shard: [] for shard in expected}
    for row in (row for batch in batches for task in batch for row in task):
        found.setdefault(row.shard, []).append(row.number)
    for shard in sorted(found):
        for text in every_number_once(expected.get(shard, ()), found[shard]):
            yield f"{shard}: {text}"


def parents_come_first(batches: Sequence[Batch], shards: Sequence[Answer]) -> Deviations:
    """Check that the rows of a child follow those of its parents: in a later batch, or in the same
    task."""
    places: dict[str, list[tuple[int, int, int]]] = {}
    for number, batch in enumerate(batches):
        for task, rows in enumerate(batch):
            for place, row in enumerate(rows):
                places.setdefault(row.shard, []).append((number, task, place))
    for shard in shards:
        child = shard["ShardId"]
        for parent in parents_of(shard):
            if child not in places or parent not in places:
                continue
            first, last = places[child][0], places[parent][-1]
            if not (last[0] < first[0] or (last[:2] == first[:2] and last < first)):
                yield f"rows of {child} come before the last row of its parent {parent}"


def a_replay_is_the_same(found: Batch, before: Batch) -> Deviations:
    """Check the rows of a batch that is read again. Shards of a task are read side by side, so
    only the rows of each shard have an order."""
    if [_by_shard(task) for task in found] != [_by_shard(task) for task in before]:
        yield "found other rows, or another order in a shard, than at first"


def _by_shard(task: Sequence[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in task:
        found.setdefault(row.shard, []).append(row.number)
    return found


# --- Parts of answers ----------------------------------------------------------------------------


def by_id(shards: Sequence[Answer]) -> dict[str, Answer]:
    """Return the shards of a listing by their ids."""
    return {shard["ShardId"]: shard for shard in shards}


def is_open(shard: Answer) -> bool:
    """Return whether a listed shard takes records."""
    return "EndingSequenceNumber" not in shard["SequenceNumberRange"]


def parents_of(shard: Answer) -> list[str]:
    """Return the parents of a listed shard."""
    names = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    return [name for name in names if name is not None]


def hash_range(shard: Answer) -> tuple[int, int]:
    """Return the first and the last hash key of a listed shard."""
    keys = shard["HashKeyRange"]
    return int(keys["StartingHashKey"]), int(keys["EndingHashKey"])


def new_shards(before: Sequence[Answer], after: Sequence[Answer]) -> list[Answer]:
    """Return the shards that a listing has in addition, by their hash keys."""
    known = by_id(before)
    return sorted((s for s in after if s["ShardId"] not in known), key=hash_range)


def numbers_of(pages: Sequence[Answer]) -> list[str]:
    """Return the sequence numbers of the records of pages."""
    return [record["SequenceNumber"] for page in pages for record in page["Records"]]


def arrival_ms(record: Answer) -> int:
    """Return the arrival time of a record."""
    seconds: float = record["ApproximateArrivalTimestamp"].timestamp()
    return round(seconds * 1000)


def _share(shards: Sequence[Answer], first: int, last: int) -> Deviations:
    ranges = [hash_range(shard) for shard in shards]
    ends = [first - 1, *(end for _, end in ranges)]
    if [start for start, _ in ranges] != [end + 1 for end in ends[:-1]] or ends[-1] != last:
        yield "hash keys: expected ranges that follow each other and have all keys"


def _closed(names: Sequence[str], shards: Sequence[Answer]) -> Deviations:
    listed = by_id(shards)
    for name in names:
        if name not in listed:
            yield f"{name}: found no such shard; expected it in the listing, closed"
        elif is_open(listed[name]):
            yield f"{name}: found an open shard; expected an EndingSequenceNumber"


def _some(numbers: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(numbers[:most]) or "none"
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"


def _differ(subject: str, found: object, expected: object) -> str:
    return f"{subject}: found {_text(found)}; expected {_text(expected)}"


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
