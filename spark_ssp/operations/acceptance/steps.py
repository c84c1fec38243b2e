"""The steps of `spark-ssp acceptance`: calls of the service, and the checks of its answers.

A step that fails does not end the run: those that need it are not run, the others are. Everything
that was made is deleted at the end, also after an error or Ctrl-C.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from spark_ssp.checkpoint.leases.conditional_writes import (
    Checkpoint,
    Conflict,
    Create,
    Delete,
    Done,
    Outcome,
    Renew,
    Take,
    Write,
)
from spark_ssp.checkpoint.leases.lease import Lease, Processed, StartAtTrimHorizon
from spark_ssp.checkpoint.leases.lease_store import LeaseStore
from spark_ssp.common.errors import SspError, StreamNotFoundError
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.identifiers import (
    MAX_HASH_KEY,
    EpochMillis,
    SequenceNumber,
    ShardId,
    ShardKey,
    StreamName,
    WorkerId,
)
from spark_ssp.kinesis_source.client.api import (
    ExpiredIteratorError,
    InvalidPositionError,
    ShardNotFoundError,
    Subscriber,
    Subscription,
    SubscriptionError,
    ThrottledError,
)
from spark_ssp.kinesis_source.client.messages import to_datetime
from spark_ssp.kinesis_source.model.shard import (
    AfterRecord,
    AtTimestamp,
    ConsumerArn,
    ShardIterator,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.values import KinesisOptions
from spark_ssp.operations.acceptance import rules
from spark_ssp.operations.acceptance.account import (
    NOT_OFFERED,
    Account,
    Kind,
    Ledger,
    LeftBehind,
    Refusal,
    RefusedError,
    Thing,
    refused,
)
from spark_ssp.operations.acceptance.queries import Query, batch_read
from spark_ssp.operations.acceptance.rules import Answer, Check
from spark_ssp.operations.acceptance.stream import (
    POLL_S,
    READ_WITHIN_S,
    TRIES,
    Answers,
    TrialStream,
)

FIRST: Final = "shardId-000000000000"
SECOND: Final = "shardId-000000000001"
_ABSENT: Final = "shardId-000000000999"
_MADE_UP: Final = ("nonsense", "A" * 224)
_MERGED: Final = ("ShardToMerge", "AdjacentShardToMerge")
_AUTO_RECORDS: Final = 24
_AGE_S: Final = 4.0
_ITERATOR_LIFE_S: Final = 305.0
_SUBSCRIBE_AGAIN_S: Final = 6.0
_WINDOW: Final = 1 << 20


class Status(StrEnum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_SUPPORTED = "not supported"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A check of a step, with its deviations."""

    step: str
    check: Check
    status: Status
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A step that could not be carried out."""

    step: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts of a run. `name` is that of everything that is made."""

    name: str
    lease_table: bool = False
    fan_out: bool = False

    @property
    def things(self) -> tuple[Thing, ...]:
        """The things to create and delete."""
        table = (Thing(kind=Kind.TABLE, name=self.name),) if self.lease_table else ()
        return (Thing(kind=Kind.STREAM, name=self.name), *table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The results of a run."""

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    left: tuple[LeftBehind, ...]
    interrupted: bool
    took_s: float

    @property
    def passed(self) -> bool:
        """True if everything was proven that the service supports, and nothing was left."""
        good = {Status.PASSED, Status.NOT_SUPPORTED}
        ended = not (self.left or self.failures or self.interrupted)
        return ended and all(result.status in good for result in self.results)


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    run: Callable[[], None]
    checks: tuple[Check, ...]
    needs: tuple[str, ...] = ()


def prove(
    plan: Plan, account: Account, options: KinesisOptions, say: Callable[[str], None]
) -> Proof:
    """Run the acceptance, and delete everything that it made in any case. `options` are those of a
    query of the stream of this name; `say` shows the progress."""
    began = account.monotonic()
    ledger = Ledger(account, say)
    run = _Run(plan, account, options, ledger)
    steps = run.steps()
    failures: list[Failure] = []
    bad: dict[str, Status] = {}
    interrupted = False
    try:
        try:
            for step in steps:
                blocked = [bad[need] for need in step.needs if need in bad]
                if blocked:
                    bad[step.name] = min(blocked)  # not run, rather than not supported
                    continue
                say(step.name)
                try:
                    step.run()
                except RefusedError as error:
                    offered = error.code not in NOT_OFFERED
                    bad[step.name] = Status.NOT_RUN if offered else Status.NOT_SUPPORTED
                    if offered:
                        reason = f"{error.code} on {error.subject}"
                        failures.append(Failure(step=step.name, reason=reason))
                except SspError as error:
                    bad[step.name] = Status.NOT_RUN
                    failures.append(Failure(step=step.name, reason=f"{error.kind}: {error.found}"))
                except Exception as error:  # noqa: BLE001 - what was made must still be deleted
                    bad[step.name] = Status.NOT_RUN
                    failures.append(Failure(step=step.name, reason=_unexpected(error)))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            left = ledger.delete_all()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        # Again, for an interruption right before the first.
        left = ledger.delete_all()
    return Proof(
        results=tuple(_results(steps, run, bad)),
        failures=tuple(failures),
        left=left,
        interrupted=interrupted,
        took_s=account.monotonic() - began,
    )


def _unexpected(error: Exception) -> str:
    """Describe an error without its text, which may hold a part of an answer."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"an answer that cannot be read, or a defect: {type(error).__name__}{place}"


def _results(steps: Sequence[_Step], run: _Run, bad: Mapping[str, Status]) -> Iterable[Result]:
    for step in steps:
        for check in step.checks:
            found = run.found.get(check)
            if check in run.not_supported:
                status = Status.NOT_SUPPORTED
            elif found:
                status = Status.FAILED
            elif found is None or step.name in bad:
                # Also if nothing deviated before the step ended: the check may be incomplete.
                status = bad.get(step.name, Status.NOT_RUN)
            else:
                status = Status.PASSED
            yield Result(step=step.name, check=check, status=status, found=tuple(found or ()))


class _Run:
    """The state of a run: the stream, and the deviations of each check so far."""

    def __init__(
        self, plan: Plan, account: Account, options: KinesisOptions, ledger: Ledger
    ) -> None:
        self._plan = plan
        self._account = account
        self._options = options
        self._ledger = ledger
        self._ref = StreamRef(name=StreamName(plan.name))
        self._stream = TrialStream(plan.name, account)
        self.found: dict[Check, list[str]] = {}
        self.not_supported: set[Check] = set()
        self._began_ms = 0
        self._old = ("", 0.0)
        """An iterator, and when it was opened."""

    def steps(self) -> list[_Step]:
        """Return the steps in their order."""
        steps = [
            _Step("create", self._create, (Check.NEW_SHARDS, Check.SUMMARY)),
            _Step("write", self._write, (Check.NUMBERS, Check.PLACEMENT), ("create",)),
            _Step(
                "read",
                self._read,
                (
                    Check.RECORDS,
                    Check.ARRIVALS,
                    Check.PAGES,
                    Check.POSITIONS,
                    Check.TIMES,
                    Check.NO_LAG,
                    Check.LAG,
                    Check.CONTINUATION,
                ),
                ("write",),
            ),
            _Step(
                "refusals",
                self._refusals,
                (
                    Check.ABSENT,
                    Check.FOREIGN_NUMBER,
                    Check.FUTURE_TIME,
                    Check.MADE_UP_ITERATOR,
                    Check.ERRORS,
                ),
                ("write",),
            ),
            _Step(
                "split",
                self._split,
                (Check.SPLIT, Check.ENDING_NUMBER),
                ("write",),
            ),
            _Step(
                "merge",
                self._merge,
                (Check.MERGE, Check.CHILD_NUMBERS, Check.SHARD_END, Check.LISTING),
                ("split",),
            ),
            _Step("query", self._query, (Check.QUERY, Check.REPLAY, Check.NEXT_BATCH), ("write",)),
            _Step("batch", self._batch, (Check.BATCH,), ("write",)),
        ]
        if self._plan.lease_table:
            steps.append(_Step("leases", self._leases, (Check.LEASES,)))
        if self._plan.fan_out:
            checks = (
                Check.PUSHED,
                Check.PUSHED_END,
                Check.SECOND_SUBSCRIPTION,
                Check.PUSHED_QUERY,
            )
            steps.append(_Step("fan-out", self._fan_out, checks, ("merge",)))
        auto = (Check.AUTO_SUMMARY, Check.AUTO_PLACEMENT, Check.AUTO_KEYLESS)
        steps.append(_Step("distribution", self._auto, auto, ("write",)))
        steps.append(_Step("expiry", self._expiry, (Check.EXPIRED_ITERATOR,), ("read",)))
        return steps

    # --- Steps -----------------------------------------------------------------------------------

    def _create(self) -> None:
        thing = Thing(kind=Kind.STREAM, name=self._plan.name)
        self._ledger.note(thing)
        answer = self._stream.call("CreateStream", self._stream.named | {"ShardCount": 2})
        if isinstance(answer, Refusal) and answer.code not in rules.IN_USE:
            raise refused("CreateStream", answer.code)
        summary = self._stream.settled()
        self._ledger.confirm(thing)
        self._stream.arn = str(summary["StreamARN"])
        self._began_ms = self._now()
        shards = self._stream.list_shards()
        self._check(Check.NEW_SHARDS, rules.new_shards_share_the_hash_keys(shards))
        self._check(
            Check.SUMMARY,
            rules.summary_describes_the_stream(summary, name=self._plan.name, open_shards=2),
        )

    def _write(self) -> None:
        puts = [self._stream.put(0) for _ in range(3)]
        self._account.sleep(1.5)
        puts += [self._stream.put(0) for _ in range(3)]
        self._check(Check.NUMBERS, rules.numbers_grow([put.number for put in puts]))
        placed = self._stream.put_batch(10)
        for hash_key in (key for shard in self._stream.shards for key in rules.hash_range(shard)):
            try:
                placed.append(self._stream.put(hash_key))
            except RefusedError as error:
                refusal = f"a record with hash key {hash_key}: found {error.code}"
                self._check(Check.PLACEMENT, [f"{refusal}; expected it to be stored"])
        self._check(Check.PLACEMENT, rules.keys_place_records(placed, self._stream.shards))

    def _read(self) -> None:
        pages: Answers = []
        for shard in (FIRST, SECOND):
            found = self._stream.read(shard, "TRIM_HORIZON", until=self._stream.numbers(shard))
            pages += found
            records = [record for page in found for record in page["Records"]]
            puts = [put for put in self._stream.puts if put.shard == shard]
            self._check(Check.RECORDS, rules.records_come_back(puts, records))
            now = self._now()
            self._check(Check.ARRIVALS, rules.arrivals_keep_order(records, self._began_ms, now))
        iterator = self._stream.iterator(FIRST, "TRIM_HORIZON")
        numbers = self._stream.numbers(FIRST)
        paged = self._stream.pages(iterator, until=numbers, limit=2)
        self._check(Check.PAGES, rules.pages_follow_each_other(paged, 2, numbers))
        pages += paged
        pages += self._read_positions(numbers)
        pages += self._read_lag()
        self._check(Check.CONTINUATION, rules.open_pages_go_on(pages))
        opened = self._account.monotonic()
        self._old = (self._stream.iterator(SECOND, "TRIM_HORIZON"), opened)

    def _read_positions(self, numbers: Sequence[str]) -> Answers:
        pages: Answers = []

        def check(check: Check, kind: str, expected: Sequence[str], **more: Any) -> None:
            found = self._stream.read(FIRST, kind, until=expected, **more)
            pages.extend(found)
            begins = rules.a_position_begins_at(kind, rules.numbers_of(found), expected)
            self._check(check, begins)

        for place in (0, len(numbers) // 2, len(numbers) - 1):
            number = {"StartingSequenceNumber": numbers[place]}
            check(Check.POSITIONS, "AT_SEQUENCE_NUMBER", numbers[place:], **number)
            check(Check.POSITIONS, "AFTER_SEQUENCE_NUMBER", numbers[place + 1 :], **number)
        records = self._stream.records(FIRST)
        times = [rules.arrival_ms(record) for record in records]
        self._account.sleep(POLL_S)
        for at in sorted({times[0] - 1000, *times, times[-1] + 1}):
            moment = to_datetime(EpochMillis(at))
            check(Check.TIMES, "AT_TIMESTAMP", rules.numbers_from(records, at), Timestamp=moment)
        latest = self._stream.iterator(FIRST, "LATEST")
        put = self._stream.put(0)
        found = self._stream.pages(latest, until=[put.number])
        pages += found
        self._check(
            Check.POSITIONS,
            rules.a_position_begins_at("LATEST", rules.numbers_of(found), [put.number]),
        )
        return pages

    def _read_lag(self) -> Answers:
        self._account.sleep(_AGE_S)
        latest = self._stream.read(FIRST, "TRIM_HORIZON", until=self._stream.numbers(FIRST))
        second = [record for page in latest for record in page["Records"]][1]
        while latest[-1].get("MillisBehindLatest") and len(latest) < READ_WITHIN_S:
            latest += self._stream.pages(latest[-1]["NextShardIterator"], until=())
        self._check(Check.NO_LAG, rules.the_latest_page_has_no_lag(latest[-1]))
        (page, *_) = (
            page
            for page in self._stream.pages(
                self._stream.iterator(FIRST, "TRIM_HORIZON"),
                until=self._stream.numbers(FIRST)[:1],
                limit=1,
            )
            if page["Records"]
        )
        age = self._now() - rules.arrival_ms(second)
        self._check(Check.LAG, rules.lag_counts_to_now(page, age))
        return latest

    def _refusals(self) -> None:
        latest: dict[str, Any] = {"ShardIteratorType": "LATEST"}
        no_shard = self._stream.named | {"ShardId": _ABSENT}
        no_stream = {"StreamName": f"{self._plan.name}-absent", "ShardId": FIRST}
        foreign = {
            "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
            "StartingSequenceNumber": self._stream.numbers(SECOND)[-1],
        }
        ahead = EpochMillis(self._now() + 60_000)
        future = {
            "ShardIteratorType": "AT_TIMESTAMP",
            "Timestamp": to_datetime(ahead),
        }
        here = self._stream.named | {"ShardId": FIRST}
        for check, situation, request, expected in (
            (Check.ABSENT, "a shard that does not exist", no_shard | latest, rules.NOT_FOUND),
            (Check.ABSENT, "a stream that does not exist", no_stream | latest, rules.NOT_FOUND),
            (Check.FOREIGN_NUMBER, "of another shard", here | foreign, rules.REFUSED_REQUEST),
            (Check.FUTURE_TIME, "a minute ahead", here | future, rules.REFUSED_REQUEST),
        ):
            code = self._stream.code_of("GetShardIterator", request, expected)
            self._check(check, rules.is_refused(situation, code, expected))
        for token in _MADE_UP:
            request = {"ShardIterator": token}
            code = self._stream.code_of("GetRecords", request, rules.REFUSED_REQUEST)
            refused = rules.is_refused("a made-up iterator", code, rules.REFUSED_REQUEST)
            self._check(Check.MADE_UP_ITERATOR, refused)
        self._check(Check.ERRORS, self._translations(foreign["StartingSequenceNumber"], ahead))

    def _translations(self, foreign: str, ahead: EpochMillis) -> Iterable[str]:
        """Make the same calls by the client of queries."""
        reader, stream = self._account.reader, self._ref
        first, absent = ShardId(FIRST), ShardId(_ABSENT)
        position = AfterRecord(sequence_number=SequenceNumber(foreign))
        calls: list[tuple[str, type[SspError] | None, Callable[[], object]]] = [
            (
                "a shard that does not exist",
                ShardNotFoundError,
                lambda: reader.open_iterator(stream, absent, TrimHorizon(), retry=False),
            ),
            (
                "a stream that does not exist",
                StreamNotFoundError,
                lambda: reader.describe(
                    StreamRef(name=StreamName(f"{stream.name}-absent")), retry=False
                ),
            ),
            (
                "a sequence number of another shard",
                InvalidPositionError,
                lambda: reader.open_iterator(stream, first, position, retry=False),
            ),
            (
                "a made-up iterator",
                ExpiredIteratorError,
                lambda: reader.get_records(
                    stream, first, ShardIterator(_MADE_UP[1]), limit=1, retry=False
                ),
            ),
            (
                "a time ahead",
                None,
                lambda: reader.open_iterator(stream, first, AtTimestamp(millis=ahead)),
            ),
        ]
        for situation, expected, call in calls:
            for _ in range(TRIES):
                found: type[SspError] | None = None
                try:
                    call()
                except SspError as error:
                    found = type(error)
                if found is None or not issubclass(found, ThrottledError):
                    break
                self._account.sleep(POLL_S)
            if found is not expected:
                names = [("an answer" if each is None else each.kind) for each in (found, expected)]
                yield f"{situation}: found {names[0]}; expected {names[1]}"

    def _split(self) -> None:
        before = self._stream.shards
        first, last = rules.hash_range(rules.by_id(before)[FIRST])
        middle = (first + last + 1) // 2
        request = {"ShardToSplit": FIRST, "NewStartingHashKey": str(middle)}
        self._stream.reshard("SplitShard", request)
        self._check(
            Check.SPLIT,
            rules.a_split_opens_two_children(FIRST, middle, before, self._stream.shards),
        )
        last_number = self._stream.numbers(FIRST)[-1]
        closed = rules.by_id(self._stream.shards)[FIRST]
        self._check(Check.ENDING_NUMBER, rules.the_end_is_not_before(closed, last_number))
        for child in rules.new_shards(before, self._stream.shards):
            self._put_child(child, FIRST)
        self._read_end(FIRST)

    def _merge(self) -> None:
        before = self._stream.shards
        children = [shard for shard in before if FIRST in rules.parents_of(shard)]
        parents = (max(children, key=rules.hash_range)["ShardId"], SECOND)
        self._stream.reshard("MergeShards", dict(zip(_MERGED, parents, strict=True)))
        self._check(
            Check.MERGE, rules.a_merge_opens_one_child(*parents, before, self._stream.shards)
        )
        for child in rules.new_shards(before, self._stream.shards):
            self._put_child(child, *parents)
        for parent in parents:
            self._read_end(parent)
        whole = [shard["ShardId"] for shard in self._stream.shards]
        pages: list[list[str]] = []
        request: dict[str, Any] = {**self._stream.named}
        while request:
            answer = self._stream.ask("ListShards", request | {"MaxResults": 2})
            pages.append([shard["ShardId"] for shard in answer["Shards"]])
            token = answer.get("NextToken")
            request = (
                {"NextToken": token} if token and len(pages) < len(self._stream.shards) else {}
            )
        whole = [shard["ShardId"] for shard in self._stream.shards]
        self._check(Check.LISTING, rules.listing_pages_join(pages, 2, whole))

    def _query(self) -> None:
        query = Query(self._options, self._account, ignored=self._stream.uncertain)
        try:
            batches = query.batches(len(self._stream.puts))
            tasks = [batch.tasks for batch in batches]
            expected = self._stream.numbers_by_shard()
            self._check(Check.QUERY, rules.batches_have_every_record_once(expected, tasks))
            self._check(Check.QUERY, rules.parents_come_first(tasks, self._stream.shards))
            new = [self._stream.put(0), self._stream.put(MAX_HASH_KEY - 1)]
            for batch in batches:
                again = query.replay(batch).tasks
                self._check(Check.REPLAY, rules.a_replay_is_the_same(again, batch.tasks))
                self._check(Check.REPLAY, rules.parents_come_first([again], self._stream.shards))
            following = [batch.tasks for batch in query.batches(len(new))]
            added: dict[str, list[str]] = {}
            for put in new:
                added.setdefault(put.shard, []).append(put.number)
            once = rules.batches_have_every_record_once(added, following)
            self._check(Check.NEXT_BATCH, once)
            last = query.trigger()
            if last is not None and last.rows:
                self._check(Check.NEXT_BATCH, [f"found {last.rows} rows; expected none"])
        finally:
            query.close()

    def _batch(self) -> None:
        tasks, _ = batch_read(self._options, self._account, ignored=self._stream.uncertain)
        expected = self._stream.numbers_by_shard()
        self._check(Check.BATCH, rules.batches_have_every_record_once(expected, [tasks]))

    def _leases(self) -> None:
        thing = Thing(kind=Kind.TABLE, name=self._plan.name)
        self._ledger.note(thing)
        store = self._account.open_leases(thing.name)
        try:
            store.prepare()
            self._ledger.confirm(thing)
            self._check(Check.LEASES, _lease_writes(store))
        finally:
            store.close()

    def _fan_out(self) -> None:
        consumer = self._stream.register()
        tasks, pushed = batch_read(
            self._options, self._account, ignored=self._stream.uncertain, consumer=consumer
        )
        expected = self._stream.numbers_by_shard()
        self._check(Check.PUSHED_QUERY, rules.batches_have_every_record_once(expected, [tasks]))
        if not pushed:
            self._check(
                Check.PUSHED_QUERY,
                ["found no record from a subscription; expected some: GetRecords took over"],
            )
        self._account.sleep(_SUBSCRIBE_AGAIN_S)
        opened = [shard["ShardId"] for shard in self._stream.shards if rules.is_open(shard)]
        subscriber = self._account.open_subscriber(_WINDOW)
        try:
            for shard in (opened[-1], FIRST):
                self._check_subscription(subscriber, consumer, shard)
        finally:
            subscriber.close()

    def _check_subscription(
        self, subscriber: Subscriber, consumer: ConsumerArn, shard: str
    ) -> None:
        key = ShardKey(stream=self._ref.name, shard=ShardId(shard))
        expected = self._stream.numbers(shard)
        is_open = rules.is_open(rules.by_id(self._stream.shards)[shard])
        subscription = self._subscribed(subscriber, consumer, key)
        try:
            if is_open:
                code = self._second_subscription(subscriber, consumer, key)
                refused = rules.is_refused("a second subscription", code, rules.SUBSCRIBED)
                self._check(Check.SECOND_SUBSCRIPTION, refused)
            found: list[str] = []
            continuation: str | None = ""
            deadline = self._account.monotonic() + READ_WITHIN_S
            while not (is_open and found[-1:] == expected[-1:]):
                if self._account.monotonic() > deadline or subscription.next_size() is None:
                    break
                page = subscription.next_page()
                rows = zip(page.sequence_numbers, page.data, strict=True)
                found += [number for number, data in rows if data not in self._stream.uncertain]
                continuation = page.next_iterator
        finally:
            subscription.close()
        self._check(Check.PUSHED, rules.every_number_once(expected, found))
        if is_open:
            number = continuation or "0"
            if int(number) < int(expected[-1]):
                text = f"found the continuation {number}; expected {expected[-1]} or more"
                self._check(Check.PUSHED, [text])
        else:
            ended = [] if continuation is None else ["found a continuation; expected the end"]
            self._check(Check.PUSHED_END, ended)

    def _subscribed(
        self, subscriber: Subscriber, consumer: ConsumerArn, key: ShardKey
    ) -> Subscription:
        """Subscribe, again after a fault once the consumer may."""
        for _ in range(TRIES - 1):
            try:
                return subscriber.subscribe(consumer, key, TrimHorizon())
            except SubscriptionError:
                self._account.sleep(_SUBSCRIBE_AGAIN_S)
        return subscriber.subscribe(consumer, key, TrimHorizon())

    def _second_subscription(
        self, subscriber: Subscriber, consumer: ConsumerArn, key: ShardKey
    ) -> str | None:
        """Return the code of the refusal; None if there was none."""
        code: str | None = None
        for _ in range(TRIES):
            try:
                subscriber.subscribe(consumer, key, TrimHorizon()).close()
            except SubscriptionError as error:
                code = error.code
            else:
                return None
            if code in rules.SUBSCRIBED:
                break
        return code

    def _auto(self) -> None:
        checks = (Check.AUTO_SUMMARY, Check.AUTO_PLACEMENT, Check.AUTO_KEYLESS)
        mode = {"StreamARN": self._stream.arn, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
        self._stream.ask("UpdateStreamMode", mode)
        summary = self._stream.settled()
        request = {"StreamARN": self._stream.arn, "RecordDistributionStrategy": "AUTO"}
        answer = self._stream.call("UpdateStreamRecordDistributionStrategy", request)
        if isinstance(answer, Refusal):
            if "RecordDistributionStrategy" in summary and answer.code not in NOT_OFFERED:
                raise refused("UpdateStreamRecordDistributionStrategy", answer.code)
            self.not_supported.update(checks)
            return
        described = self._stream.settled(lambda s: s.get("RecordDistributionStrategy") == "AUTO")
        strategy = described.get("RecordDistributionStrategy")
        self._check(
            Check.AUTO_SUMMARY,
            [] if strategy == "AUTO" else [f"found {strategy or 'none'}; expected AUTO"],
        )
        self._stream.shards = self._stream.list_shards()
        opened = [shard["ShardId"] for shard in self._stream.shards if rules.is_open(shard)]
        placed = [self._stream.put(None).shard for _ in range(_AUTO_RECORDS)]
        self._check(Check.AUTO_PLACEMENT, rules.auto_spreads_a_key(placed, opened))
        self._put_keyless()

    def _put_keyless(self) -> None:
        data = self._stream.new_data()
        answer = self._stream.call("PutRecord", self._stream.named | {"Data": data})
        if isinstance(answer, Refusal):
            if answer.code in NOT_OFFERED:
                self.not_supported.add(Check.AUTO_KEYLESS)
            else:
                refused = [f"found {answer.code}; expected the record to be stored"]
                self._check(Check.AUTO_KEYLESS, refused)
            return
        number = {"StartingSequenceNumber": answer["SequenceNumber"]}
        found = self._stream.read(
            answer["ShardId"], "AT_SEQUENCE_NUMBER", until=[answer["SequenceNumber"]], **number
        )
        records = [r for page in found for r in page["Records"] if r["Data"] == data]
        keyed = [record for record in records if record.get("PartitionKey")]
        self._check(Check.AUTO_KEYLESS, [] if records else ["the record does not come back"])
        self._check(Check.AUTO_KEYLESS, ["the record has a key"] if keyed else [])

    def _expiry(self) -> None:
        iterator, opened = self._old
        rest = opened + _ITERATOR_LIFE_S - self._account.monotonic()
        self._account.sleep(max(0.0, rest))
        code = self._stream.code_of("GetRecords", {"ShardIterator": iterator}, rules.EXPIRED)
        life = seconds_text(_ITERATOR_LIFE_S)
        refused = rules.is_refused(f"an iterator opened {life} ago", code, rules.EXPIRED)
        self._check(Check.EXPIRED_ITERATOR, refused)

    def _now(self) -> EpochMillis:
        """Return the service's time, by an answer of now."""
        self._account.reader.describe(self._ref)
        return self._account.reader.service_time()

    # --- Parts of steps --------------------------------------------------------------------------

    def _put_child(self, child: Answer, *parents: str) -> None:
        last = [max(self._stream.numbers(parent), key=int, default="0") for parent in parents]
        first = self._stream.put(rules.hash_range(child)[0])
        self._stream.put(rules.hash_range(child)[1] - 1)
        for number in last:
            self._check(Check.CHILD_NUMBERS, rules.numbers_grow([number, first.number]))

    def _read_end(self, shard: str) -> None:
        """Check the end of a closed shard, from three positions."""
        numbers = self._stream.numbers(shard)
        places: list[tuple[str, list[str], dict[str, str]]] = [
            ("TRIM_HORIZON", numbers, {}),
            ("LATEST", [], {}),
        ]
        if numbers:
            last = {"StartingSequenceNumber": numbers[-1]}
            places.append(("AFTER_SEQUENCE_NUMBER", [], last))
        for kind, expected, more in places:
            iterator = self._stream.iterator(shard, kind, **more)
            pages = self._stream.pages(iterator, until=(), to_end=True)
            begins = rules.a_position_begins_at(kind, rules.numbers_of(pages), expected)
            self._check(Check.SHARD_END, begins)
            named = rules.the_end_names_the_children(shard, pages, self._stream.shards)
            self._check(Check.SHARD_END, named)

    def _check(self, check: Check, deviations: Iterable[str]) -> None:
        self.found.setdefault(check, []).extend(deviations)


def _lease_writes(store: LeaseStore) -> Iterable[str]:
    """Write a lease as two workers do, and compare each outcome with its condition."""
    ours, theirs = WorkerId("acceptance-1"), WorkerId("acceptance-2")
    new = Lease(shard=ShardId(FIRST), counter=0, progress=StartAtTrimHorizon())

    def deviation(name: str, write: Write, expected: type[Outcome]) -> tuple[list[str], Lease]:
        outcome = store.write(write)
        lease = outcome.lease if isinstance(outcome, Done) else outcome.found or write.lease
        if isinstance(outcome, expected):
            return [], lease
        words: dict[type[Outcome], str] = {Done: "it took effect", Conflict: "a conflict"}
        return [f"{name}: found {words[type(outcome)]}; expected {words[expected]}"], lease

    texts, row = deviation("create", Create(lease=new), Done)
    yield from texts
    texts, _ = deviation("create again", Create(lease=replace(new, owner=theirs)), Conflict)
    yield from texts
    texts, taken = deviation("take", Take(lease=row, owner=ours), Done)
    yield from texts
    texts, renewed = deviation("renew", Renew(lease=taken), Done)
    yield from texts
    texts, _ = deviation("renew an old row", Renew(lease=taken), Conflict)
    yield from texts
    read = Processed(sequence_number=SequenceNumber("1"))
    texts, moved = deviation("checkpoint", Checkpoint(lease=renewed, progress=read), Done)
    yield from texts
    texts, stolen = deviation("take from another", Take(lease=moved, owner=theirs), Done)
    yield from texts
    texts, _ = deviation("renew a lost lease", Renew(lease=moved), Conflict)
    yield from texts
    if store.scan().leases != (stolen,):
        yield "scan: found other rows; expected the last one written"
    texts, _ = deviation("delete", Delete(lease=stolen), Done)
    yield from texts
    if store.scan().leases:
        yield "scan: found a row; expected none after its deletion"
