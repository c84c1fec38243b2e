"""Kinesis as a system of a pipeline (`planner.graph.systems.System`): counts the shards
of streams and creates streams; the format `kinesis-ssp` reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from spark_ssp.common.errors import (
    InvalidOptionsError,
    OptionProblem,
    ServiceUnavailableError,
    SspError,
    StreamNotFoundError,
    UnsupportedError,
)
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.client.api import StreamInUseError
from spark_ssp.kinesis_source.client.boto3_client import Boto3Kinesis, connect
from spark_ssp.kinesis_source.model.shard import StreamRef
from spark_ssp.kinesis_source.options.parse import SOURCE, parse_options
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS, ConnectionOptions
from spark_ssp.planner.graph.operators import SystemKind
from spark_ssp.planner.graph.systems import SparkFormat, StreamUse, stream_exists_error

TIMEOUT_S: Final = 300.0
"""The longest time in which a stream may become usable, or be deleted. Seconds are usual."""

_PAUSE_S: Final = 1.0
"""DescribeStreamSummary is limited to 20 calls per second and account (API reference)."""


class KinesisSystem:
    """Kinesis of one account in one region. `options` are those of the format `kinesis-ssp`,
    without the stream. Raises InvalidOptionsError if they name a stream; the first call raises for
    other invalid options. `timeout_s` bounds the wait for a stream that is created."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        timeout_s: float = TIMEOUT_S,
        connect: Callable[[ConnectionOptions], Boto3Kinesis] = connect,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = dict(options)
        self._timeout_s = timeout_s
        self._connect = connect
        self._monotonic = monotonic
        self._sleep = sleep
        self._streams: Boto3Kinesis | None = None
        _refuse_streams(options)

    @property
    def kind(self) -> SystemKind:
        return SystemKind.KINESIS

    def __repr__(self) -> str:
        return f"KinesisSystem(options {', '.join(sorted(self._options))})"

    def partition_count(self, stream: str) -> int | None:
        """Return the number of open shards; None if the stream does not exist."""
        streams, ref = self._service(stream), _ref(stream)
        try:
            streams.describe(ref)
            return sum(not shard.closed for shard in streams.list_shards(ref))
        except StreamNotFoundError:
            return None

    def create(self, stream: str, partitions: int, *, use: StreamUse = StreamUse.EVENTS) -> None:
        """Create a stream of provisioned capacity, with evenly split hash keys. `use` has no
        effect, since no stream of Kinesis fills a table."""
        streams, ref = self._service(stream), _ref(stream)
        deadline = self._monotonic() + self._timeout_s
        while True:
            try:
                streams.create_stream(ref, partitions)
            except StreamInUseError as error:
                # It exists or is being created; or it is being deleted, and can be created soon.
                if self._is_active(streams, ref, deadline, error):
                    raise stream_exists_error(stream, error.found) from error
                continue
            while not self._is_active(streams, ref, deadline, None):
                pass
            return

    def reader_format(
        self, stream: str, *, from_start: bool = False, keep_tasks: bool = True
    ) -> SparkFormat:
        """Return the format and options that read the stream. `keep_tasks` has no effect: shards
        move between tasks."""
        options = dict(self._options)
        if from_start:
            options = KINESIS_OPTIONS.left_out(options, "startingPosition")
            options["startingPosition"] = "trim_horizon"
        return SparkFormat(SOURCE, {**options, "streamName": stream})

    def reader_problems(self, streams: Sequence[str]) -> Iterator[OptionProblem]:
        """Yield a problem for each option that only one of several readers may have: leases and
        positions are those of an application, and a consumer belongs to one reader of a stream."""
        if len(streams) < 2:
            return
        single = KINESIS_OPTIONS.spellings("applicationName", "consumerArn")
        if len({*streams}) < len(streams):
            single |= KINESIS_OPTIONS.spellings("consumerName")
        for name in sorted(self._options):
            if name.strip().lower() in single:
                yield OptionProblem(
                    option=name,
                    found=f"{len(streams)} readers of the system, of {', '.join(streams)}",
                    expected="one reader, since two with this value disturb each other",
                    next_step="put partition_by after the input, and derive the other lines from "
                    "its result; or read by several systems with different values",
                )

    def writer_format(self, stream: str) -> SparkFormat:
        """Raise UnsupportedError: pipelines do not write to Kinesis."""
        raise UnsupportedError(
            f"stream {stream}",
            found="a stream of Kinesis as an output",
            expected="streams of Kinesis as inputs only: a pipeline does not write to them",
            next_step="give partition_by or output a Kafka system",
        )

    def _service(self, stream: str) -> Boto3Kinesis:
        if self._streams is None:
            # Options need a stream; the connection does not depend on it.
            options = parse_options({**self._options, "streamName": stream})
            self._streams = self._connect(options.connection)
        return self._streams

    def _is_active(
        self, streams: Boto3Kinesis, ref: StreamRef, deadline: float, last: SspError | None
    ) -> bool:
        """Return whether the stream is usable; pause if not. After `deadline`, raise `last` or the
        service's error."""
        try:
            streams.describe(ref)
        except (StreamNotFoundError, ServiceUnavailableError) as error:
            if self._monotonic() >= deadline:
                raise (last or error) from None
            self._sleep(_PAUSE_S)
            return False
        return True


def _ref(stream: str) -> StreamRef:
    return StreamRef(name=StreamName(stream))


def _refuse_streams(options: Mapping[str, str]) -> None:
    naming = KINESIS_OPTIONS.spellings("streamName", "streamARN")
    problems = [
        OptionProblem(
            option=name,
            found="a stream",
            expected="options without a stream: the pipeline names the streams of a system",
            next_step="remove it, and give region where the ARN named it",
        )
        for name in sorted(options)
        if name.strip().lower() in naming
    ]
    if problems:
        raise InvalidOptionsError(SOURCE, problems)
