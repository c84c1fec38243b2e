"""Four emphases of the histories. `Plain` (reshards, limits, crashes, restarts), `Narrow` (the same
with pages of few records), `Faulty` (what a service does wrong in addition) and `Lossy` (records
trimmed before they are read, streams deleted and created again)."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from spark_ssp.common.errors import (
    DataLossError,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
)
from spark_ssp.kinesis_source.probing import (
    batch_end_probe,
    instant_probe,
    limited_end_probe,
    probe_protocol,
)
from spark_ssp.kinesis_source.probing.initial_positions import UnnamedShardError
from spark_ssp.testing.kinesis import UnusualAnswers
from spark_ssp.testing.kinesis.state.faults import (
    DropConnection,
    EmptyPage,
    ExpiredIterator,
    Fault,
    InternalFailure,
    LostReply,
    Throttle,
)
from tests.simulation.draws import small_index, unusual_answers
from tests.simulation.histories import Histories
from tests.support.simulation.query import UNDISTURBED, Disturbance, Stage
from tests.support.simulation.world import HOUR_MS


class Plain(Histories):
    """Nothing goes wrong but the query's own process."""

    must_happen = (*Histories.must_happen, "size limit held")


class Narrow(Histories):
    """A page of the service holds few records, so that most probes see only older ones."""

    page = 12

    def __init__(self) -> None:
        super().__init__()
        for module in (probe_protocol, batch_end_probe, instant_probe):
            self._stack.enter_context(patch.object(module, "PAGE_RECORDS", self.page))
        self._stack.enter_context(patch.object(batch_end_probe, "PEEK_RECORDS", 3))
        self._stack.enter_context(patch.object(batch_end_probe, "REST_BYTES", 1000))
        self._stack.enter_context(patch.object(limited_end_probe, "EXACT_RECORDS", self.page))
        self._stack.enter_context(patch.object(limited_end_probe, "COUNT_BYTES", 200))


class Faulty(Histories):
    """The service errs as well."""

    must_happen = (
        *Histories.must_happen,
        "failed: service-unavailable",
        "fault: DropConnection",
        "fault: EmptyPage",
        "fault: LostReply",
        "a page cut at the latest record",
        "refused: ExpiredIteratorException",
        "refused: InternalFailure",
        "refused: LimitExceededException",
        "refused: ProvisionedThroughputExceededException",
        "refused: ServiceUnavailable",
    )

    @rule(
        stream=small_index,
        shard=small_index,
        fault=st.sampled_from(
            [
                Throttle(),
                InternalFailure(),
                InternalFailure(status=503),
                DropConnection(),
                LostReply(),
            ]
        ),
        operation=st.sampled_from(
            [
                "GetRecords",
                "GetRecords",
                "GetRecords",
                "GetShardIterator",
                "ListShards",
                "DescribeStreamSummary",
            ]
        ),
        count=st.sampled_from([1, 2, 4, 9]),
    )
    def err(self, stream: int, shard: int, fault: Fault, operation: str, count: int) -> None:
        """The next calls about a shard or a stream go wrong."""
        self._inject(stream, shard, fault, operation, count)

    @rule(
        stream=small_index,
        shard=small_index,
        operation=st.sampled_from(["GetRecords", "ListShards"]),
        count=st.sampled_from([1, 2, 4]),
    )
    def throttle(self, stream: int, shard: int, operation: str, count: int) -> None:
        """The service's limits are used up, for one shard or for listing. A rule of its own, since
        it is what a query meets most."""
        self._inject(stream, shard, Throttle(), operation, count)

    @rule(answers=unusual_answers)
    def answer_unusually(self, answers: UnusualAnswers) -> None:
        """Cut pages have no lag, empty pages come before the latest record, or the end
        of a closed shard shows late."""
        self.world.state.answers = answers
        if answers.zero_lag:
            self._happened("a page cut at the latest record")

    @rule(stream=small_index, shard=small_index, count=st.sampled_from([1, 3, 30]))
    def empty_pages(self, stream: int, shard: int, count: int) -> None:
        """A shard answers with empty pages although it holds records."""
        self._inject(stream, shard, EmptyPage(), "GetRecords", count)

    @rule(stream=small_index, shard=small_index, count=st.integers(1, 4))
    def expire_iterators(self, stream: int, shard: int, count: int) -> None:
        """Iterators expire before their time."""
        self._inject(stream, shard, ExpiredIterator(), "GetRecords", count)

    def _may_fail_with(self, error: SspError) -> bool:
        # Records are never hidden so long that a planner or a reader at the latest record gives up.
        gave_up = any(text in str(error) for text in ("latest record", "when the run began"))
        return isinstance(error, ServiceUnavailableError) and not gave_up

    def _inject(self, stream: int, shard: int, fault: Fault, operation: str, count: int) -> None:
        lives = self.world.lives(self._stream(stream))
        self.world.inject(fault, operation, lives[-1 - shard % len(lives)], count)
        self._happened(f"fault: {type(fault).__name__}")


class Lossy(Histories):
    """Records go before they are read."""

    must_happen = (
        *Histories.must_happen,
        "failed: data-loss",
        "long pause",
        "loss reported",
        "records missed",
        "stream recreated",
    )

    @rule(hours=st.sampled_from([1, 5, 13, 23, 25, 30, 49]), stopped=st.booleans())
    def long_pause(self, hours: int, stopped: bool) -> None:
        """Hours go by, with the query stopped or with it hanging."""
        if stopped:
            self.query.stop()
        self.world.pass_time(hours * HOUR_MS)
        self._happened("long pause")

    @precondition(lambda self: self.streams)
    @rule(stream=small_index, hours=st.sampled_from([13, 23, 25, 30]))
    def miss_records(self, stream: int, hours: int) -> None:
        """Records come while the query is stopped, and others hours later."""
        self.query.stop()
        for _ in range(2):
            self._put_many(self._stream(stream), 0, 5, {})
            self.world.pass_time(hours * HOUR_MS // 2)
        self._put_many(self._stream(stream), 0, 5, {})
        self._step(UNDISTURBED)
        self._happened("records missed")

    @rule(hours=st.integers(2, 30))
    def steady_hours(self, hours: int) -> None:
        """Hours go by, and the query looks every hour."""
        for _ in range(hours):
            self.world.pass_time(HOUR_MS)
            self._step(UNDISTURBED)

    @rule(
        dies_after=st.sampled_from([Stage.LOGGED, Stage.READ]), hours=st.sampled_from([2, 23, 26])
    )
    def replay_late(self, dies_after: Stage, hours: int) -> None:
        """A batch is planned, and replayed hours later."""
        self._step(Disturbance(dies_after=dies_after))
        self.world.pass_time(hours * HOUR_MS)
        self._step(UNDISTURBED)

    @precondition(lambda self: self.streams)
    @rule(stream=small_index, shards=st.integers(1, 3), stopped=st.booleans())
    def recreate(self, stream: int, shards: int, stopped: bool) -> None:
        """A stream is deleted, and another of the same name created."""
        if stopped:
            self.query.stop()
        self.world.recreate(self._stream(stream), shards)

    @rule(fail=st.booleans())
    def choose(self, fail: bool) -> None:
        """The user restarts with another `failOnDataLoss`."""
        self.query.stop()
        self.options["failOnDataLoss"] = str(fail).lower()

    def _may_fail_with(self, error: SspError) -> bool:
        if isinstance(error, UnnamedShardError) and not self.query.offset_log:
            # The start names shards that were gone before the query began.
            self.options["startingPosition"] = "trim_horizon"
            return True
        return isinstance(error, DataLossError | StreamNotFoundError)
