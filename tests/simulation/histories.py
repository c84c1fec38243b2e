"""Histories of a query: what happens to a stream and to the query that reads it, drawn at random.
One state machine; `emphases.py` has its variants. Each history ends by letting the query catch up,
undisturbed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import ClassVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from spark_ssp.common.errors import DataLossError, SspError
from tests.simulation.draws import (
    MINUTE_MS,
    fetches,
    layouts,
    limits,
    moments,
    shapes,
    small_index,
    stages,
    starts,
)
from tests.support.simulation.judge import SECRETS, Judge, listening
from tests.support.simulation.query import (
    UNDISTURBED,
    Disturbance,
    Outcome,
    SimulatedQuery,
    Stage,
    Trigger,
)
from tests.support.simulation.world import KEYS, ShardLife, World

MANY = 40
"""More records than this are caught up with without a limit."""

COVERED: Counter[str] = Counter()
"""What the histories of this process came to: in how many of them each thing happened."""


class Histories(RuleBasedStateMachine):
    """The rules that all emphases share."""

    must_happen: ClassVar[tuple[str, ...]] = (
        "available-now run ended",
        "burst",
        "children with their parents",
        "died after: logged",
        "died after: planned",
        "died after: read",
        "died after: written",
        "a backlog followed by silence",
        "distribution switched",
        "iterator at AtTimestamp",
        "iterators expired with time",
        "limit met",
        "merge",
        "once",
        "outcome: replay",
        "put while planning",
        "put: hidden_ms",
        "put: shift_ms",
        "put under auto",
        "put: straggler",
        "put: stray",
        "put: users",
        "replay compared",
        "reshard in an available-now run",
        "several streams",
        "slots changed",
        "split",
        "split while planning",
        "start at a time",
        "start by shard",
        "start latest",
        "start trim_horizon",
        "tasks torn",
    )
    """What hundreds of histories must have come to, or they show nothing."""
    page: ClassVar[int] = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.judge = Judge(self.world, page=self.page)
        self.world.pushes = True
        self.query = SimulatedQuery(world=self.world, witness=self.judge)
        self.streams: tuple[str, ...] = ()
        self.options: dict[str, str] = {}
        self._stack = ExitStack()
        self._stack.enter_context(listening(self.judge))

    # --- The beginning ----------------------------------------------------------------------------

    @initialize(
        shards=st.lists(st.integers(1, 3), min_size=1, max_size=2),
        before=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=4),
        start=starts,
        limit=limits,
        layout=layouts,
        fetch=fetches,
    )
    def begin(
        self,
        shards: list[int],
        before: list[tuple[int, int]],
        start: str,
        limit: dict[str, str],
        layout: dict[str, str],
        fetch: dict[str, str],
    ) -> None:
        """Streams with a past, and a query that has not been started yet."""
        self.streams = tuple(f"stream-{number}" for number in range(len(shards)))
        for stream, count in zip(self.streams, shards, strict=True):
            self.world.create(stream, count)
        noon = self.world.clock.now_ms()
        for number, reshard in before:
            stream = self.streams[number % len(self.streams)]
            self._put_many(stream, number, number, {})
            self.world.pass_time(1000)
            if reshard == 1:
                self.world.split(stream, number)
            elif reshard == 2:
                self.world.merge(stream, number)
            noon = noon if number % 2 else self.world.clock.now_ms()
        self.options = {
            "streamName": ",".join(self.streams),
            "region": "us-east-1",
            "startingPosition": self._start(start, noon),
            "failOnDataLoss": "true",
            **SECRETS,
            **limit,
            **layout,
            **fetch,
        }
        self._happened(f"start {start}")
        if len(shards) > 1:
            self._happened("several streams")

    def _start(self, start: str, noon: int) -> str:
        if start == "at a time":
            return f"at_timestamp {noon}"
        if start != "by shard":
            return start
        stream = self.streams[0]
        by_shard = ", ".join(
            f'"{life.shard}": "{"latest" if number % 2 else "trim_horizon"}"'
            for number, life in enumerate(self.world.open_shards(stream))
        )
        return f'{{"{stream}": {{{by_shard}}}, "default": "trim_horizon"}}'

    # --- What happens to the stream ---------------------------------------------------------------

    @rule(
        stream=small_index,
        key=small_index,
        count=st.integers(1, 20),
        gap=st.integers(0, 400),
        shape=shapes,
    )
    def put(self, stream: int, key: int, count: int, gap: int, shape: dict[str, int]) -> None:
        """A few records, one after the other."""
        self._put_many(self._stream(stream), key, count, shape, gap)

    @rule(stream=small_index, count=st.sampled_from([60, 150]))
    def burst(self, stream: int, count: int) -> None:
        """Many records at once."""
        self._put_many(self._stream(stream), 0, count, {})
        self._happened("burst")

    @rule(stream=small_index, gap=st.sampled_from([50, 300]), silence=st.integers(10, 60))
    def backlog_and_silence(self, stream: int, gap: int, silence: int) -> None:
        """Records for some seconds, then none, as the query finds it that comes too late."""
        self._put_many(self._stream(stream), 0, 60, {}, gap)
        self.world.pass_time(silence * 1000)
        self._happened("a backlog followed by silence")

    @rule(stream=small_index, index=small_index)
    def split(self, stream: int, index: int) -> None:
        """Split a shard."""
        self.world.split(self._stream(stream), index)

    @rule(stream=small_index, index=small_index)
    def merge(self, stream: int, index: int) -> None:
        """Merge two shards."""
        self.world.merge(self._stream(stream), index)

    @rule(stream=small_index)
    def switch_distribution(self, stream: int) -> None:
        """Let the service choose the shards of records, or let their keys do it again."""
        self.world.switch_distribution(self._stream(stream))

    @rule(milliseconds=moments)
    def pass_time(self, milliseconds: int) -> None:
        """Let time go by."""
        self.world.pass_time(milliseconds)
        if milliseconds > 5 * MINUTE_MS:
            self._happened("iterators expired with time")

    # --- What happens to the query ----------------------------------------------------------------

    @rule(dies_after=stages, torn=st.booleans(), meanwhile=st.sampled_from(["", "", "put", "time"]))
    def trigger(self, dies_after: Stage | None, torn: bool, meanwhile: str) -> None:
        """One trigger; the process may die in it."""
        self._step(
            Disturbance(dies_after=dies_after, torn=torn, meanwhile=self._meanwhile(meanwhile))
        )

    @rule(stream=small_index, shard=small_index, nth=st.integers(1, 6), what=st.booleans())
    def interrupt(self, stream: int, shard: int, nth: int, what: bool) -> None:
        """Something happens to a shard while the next batch is being planned."""
        opened = self.world.open_shards(self._stream(stream))
        life = opened[shard % len(opened)]
        name = life.stream
        if what:
            self.world.service.interrupt(life, nth, partial(self._put_into, life, 3))
        else:
            self.world.service.interrupt(life, nth, partial(self._split_if_open, life))
            self._happened("split while planning")
        self._step(UNDISTURBED)
        assert name in self.streams

    @rule(limit=limits, layout=layouts, fetch=fetches)
    def restart(self, limit: dict[str, str], layout: dict[str, str], fetch: dict[str, str]) -> None:
        """The process dies and is started again with other options."""
        self._restart(limit, layout, fetch)

    def _restart(
        self, limit: dict[str, str], layout: dict[str, str], fetch: dict[str, str]
    ) -> None:
        kept = ("streamName", "region", "startingPosition", "failOnDataLoss", *SECRETS)
        self.query.stop()
        before = self.options.get("slots"), self.options.get("slotAssignment")
        self.options = {name: self.options[name] for name in kept} | limit | layout | fetch
        if before != (self.options.get("slots"), self.options.get("slotAssignment")):
            self._happened("slots changed")

    @rule(events=st.lists(st.integers(0, 5), max_size=4), dies_in=st.integers(0, 12))
    def available_now(self, events: list[int], dies_in: int) -> None:
        """Run until the latest records at its start, while the stream continues."""
        there = self.judge.visible_now()
        if not self._start_process(Trigger.AVAILABLE_NOW):
            return
        for number in range(self._patience(there)):
            dies = Stage.WRITTEN if dies_in == number + 1 else None
            outcome = self._step(Disturbance(dies_after=dies))
            if outcome is Outcome.NO_NEWS:
                break
            if outcome not in (Outcome.BATCH, Outcome.REPLAY):
                return
            if events:
                self._go_on(events.pop())
        else:
            raise AssertionError("the run does not end")
        missing = self.judge.missing(there)
        assert not missing, f"what was there at the start was not read: {missing}"
        self.query.stop()
        self._happened("available-now run ended")

    @rule()
    def once(self) -> None:
        """A run of one batch."""
        if self._start_process(Trigger.ONCE):
            self._step(UNDISTURBED)
            self.query.stop()
            self._happened("once")

    # --- Helpers ----------------------------------------------------------------------------------

    def _happened(self, what: str) -> None:
        self.world.happened[what] += 1

    def _stream(self, index: int) -> str:
        return self.streams[index % len(self.streams)]

    def _put_many(
        self, stream: str, key: int, count: int, shape: dict[str, int], gap: int = 0
    ) -> None:
        for number in range(count):
            self.world.put(stream, KEYS[(key + number * number) % len(KEYS)], **shape)  # type: ignore[arg-type]
            self.world.pass_time(gap)
        for name in shape:
            self._happened(f"put: {name}")

    def _put_into(self, life: ShardLife, count: int) -> None:
        if life in self.world.open_shards(life.stream):
            for _ in range(count):
                self.world.put(life.stream, f"into-{life.shard}", into=life.shard)
            self._happened("put while planning")

    def _split_if_open(self, life: ShardLife) -> None:
        opened = self.world.open_shards(life.stream)
        if life in opened:
            self.world.split(life.stream, opened.index(life))

    def _meanwhile(self, what: str) -> Callable[[], None] | None:
        if what == "put":
            return lambda: self._put_many(self.streams[0], 1, 5, {})
        if what == "time":
            return lambda: self.world.pass_time(6 * MINUTE_MS)
        return None

    def _go_on(self, what: int) -> None:
        stream = self._stream(what)
        self._put_many(stream, what, 6, {})
        if what == 4:
            self.world.split(stream, what)
            self._happened("reshard in an available-now run")
        if what == 5:
            self.world.merge(stream, what)
        self.world.pass_time(700)

    def _start_process(self, trigger: Trigger) -> bool:
        self.judge.started(self.options, unlimited=trigger is Trigger.ONCE)
        if self.query.start(self.options, trigger):
            return True
        self._failed()
        return False

    def _step(self, disturbance: Disturbance) -> Outcome:
        if self.query.reader is None and not self._start_process(Trigger.PROCESSING_TIME):
            return Outcome.FAILED
        outcome = self.query.step(disturbance)
        self._happened(f"outcome: {outcome}")
        if disturbance.torn:
            self._happened("tasks torn")
        if outcome is Outcome.DIED:
            self._happened(f"died after: {disturbance.dies_after}")
        if outcome is Outcome.FAILED:
            self._failed()
        return outcome

    def _failed(self) -> None:
        """The process failed: with something that may be, or the history ends here."""
        error = self.query.error
        assert error is not None
        self._happened(f"failed: {error.kind}")
        if isinstance(error, DataLossError):
            self.judge.lost(str(error))
            self.options["failOnDataLoss"] = "false"
        if not self._may_fail_with(error):
            raise error

    def _may_fail_with(self, error: SspError) -> bool:
        """Whether the process may fail so, in these histories."""
        return False

    def _patience(self, there: dict[ShardLife, int]) -> int:
        """So many batches at most until all of `there` is read."""
        missing = sum(self.judge.missing().values())
        if not self.query.offset_log:  # until it begins, nothing is missed
            missing = max(missing, sum(there.values()))
        per_batch = 1
        if not any(name.startswith("max") and "Trigger" in name for name in self.options):
            per_batch = min(1000, self.page // 4)  # many may have arrived in one instant
        return 12 + 3 * len(there) + 2 * missing // per_batch

    # --- The end ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let the query catch up with nothing in its way, then look at what quiet costs."""
        try:
            if self.streams and sys.exc_info()[0] is None:
                self._catch_up()
                self._check_quiet_calls()
                self.judge.check_silence()
        finally:
            self.query.stop()
            self._stack.close()
        for kind in self.world.service.opened:
            self._happened(f"iterator at {kind}")
        for what, times in sorted(self.world.happened.items()):
            if times:
                COVERED[what] += 1
                event(what)
        COVERED["histories"] += 1

    def _catch_up(self) -> None:
        self.world.state.faults.clear()
        self.world.pass_time(10_000)  # what is hidden appears
        for _ in range(2):  # the first start may name shards that are gone
            if not self.query.offset_log:
                self._step(UNDISTURBED)
        missing = self.judge.missing()
        if sum(missing.values()) > MANY:
            self._restart({}, {}, {})
        lives = [life for stream in self.streams for life in self.world.lives(stream)]
        for _ in range(2):
            for _ in range(self._patience(dict.fromkeys(lives, 0))):
                if not missing:
                    break
                outcome = self._step(UNDISTURBED)
                self.world.pass_time(1000)
                if outcome is not Outcome.NO_NEWS:
                    missing = self.judge.missing()
            if missing:  # a shard whose calls tasks have used up is spared for a while
                self.world.pass_time(10 * MINUTE_MS)
        assert not missing, f"the query does not catch up: {missing}"

    def _check_quiet_calls(self) -> None:
        """Rule 10: a trigger over quiet shards is one GetRecords for each, and nothing else. And
        rule 8: nothing new is the same text."""
        self._settle()
        calls = self.world.state.calls
        for code in calls.refused:
            self._happened(f"refused: {code}")
        calls.reset()
        self.world.pass_time(1000)
        assert self._step(UNDISTURBED) is Outcome.NO_NEWS
        opened = [life.shard for stream in self.streams for life in self.world.open_shards(stream)]
        assert calls.by_operation() == {"GetRecords": len(opened)}
        assert all(
            calls.count("GetRecords", shard=shard) == opened.count(shard) for shard in opened
        )

    def _settle(self) -> None:
        """Go on until nothing is new twice in a row, the second time with a fresh listing."""
        quiet = 0
        # By then no shard is spared any more because tasks use up its calls.
        self.world.pass_time(10 * MINUTE_MS)
        for _ in range(300):  # records that may be left out are read within the limit, too
            self.world.pass_time(11_000)
            quiet = quiet + 1 if self._step(UNDISTURBED) is Outcome.NO_NEWS else 0
            if quiet == 2:
                return
        raise AssertionError("the query does not come to rest")
