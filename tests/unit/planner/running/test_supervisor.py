"""Starting, watching and stopping the queries of a pipeline; the queries here do as told."""

from __future__ import annotations

import pickle
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from spark_ssp.common.errors import AccessError, DataLossError, InvalidOptionsError, OptionProblem
from spark_ssp.planner.graph.errors import kind_of, stage_failure, start_failure
from spark_ssp.planner.running import PipelineStageError, RunningPipeline, StageState
from spark_ssp.planner.running.supervisor import Phase

_DEADLINE_S = 30


class ToldQuery:
    """Runs until it is stopped, or until the test ends it."""

    def __init__(self, log: list[str], stage: str) -> None:
        self.isActive = True
        self.progress: Any = None
        self.spark_is_gone = False
        self.failure: BaseException | None = None
        self.refuses_to_stop = False
        self._log = log
        self._stage = stage

    @property
    def lastProgress(self) -> Any:
        if self.spark_is_gone:
            raise ConnectionRefusedError("no JVM")
        return self.progress

    def exception(self) -> BaseException | None:
        return self.failure

    def stop(self) -> None:
        self._log.append(f"stop {self._stage}")
        self.isActive = False
        if self.refuses_to_stop:
            raise RuntimeError("Spark is gone")

    def end(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.isActive = False


class Scene:
    """A pipeline of told queries, and a log of what was done with them."""

    def __init__(self, *phases: Phase) -> None:
        self.log: list[str] = []
        self.queries: dict[str, ToldQuery] = {}
        self.started = threading.Condition()
        self.on_start: Callable[[str], None] = lambda stage: None
        self.running = RunningPipeline("p", phases, self._start, poll_s=0.001)

    def _start(self, stage: str, finite: bool) -> ToldQuery:
        self.on_start(stage)
        with self.started:
            self.log.append(f"start {stage}{' to its end' if finite else ''}")
            self.queries[stage] = ToldQuery(self.log, stage)
            self.started.notify_all()
        return self.queries[stage]

    def await_started(self, stage: str, times: int = 1) -> ToldQuery:
        with self.started:
            assert self.started.wait_for(
                lambda: sum(line.startswith(f"start {stage}") for line in self.log) >= times,
                _DEADLINE_S,
            )
        return self.queries[stage]

    def states(self) -> dict[str, StageState]:
        return {status.stage: status.state for status in self.running.status}


def for_ever(*stages: str) -> Phase:
    return Phase(stages=stages, finite=False)


def to_the_end(*stages: str) -> Phase:
    return Phase(stages=stages, finite=True)


def test_stages_run_side_by_side_and_are_stopped_together() -> None:
    scene = Scene(for_ever("one", "two"))
    with scene.running.launch() as running:
        assert set(scene.states().values()) == {StageState.RUNNING}
        assert not running.await_termination(0)
        scene.queries["two"].progress = {"batchId": 7}
        assert [status.batch for status in running.status] == [None, 7]
        for query in scene.queries.values():
            query.spark_is_gone = True
        assert [status.batch for status in running.status] == [None, 7]
    assert scene.log == ["start one", "start two", "stop two", "stop one"]
    assert set(scene.states().values()) == {StageState.STOPPED}
    assert running.await_termination()


def test_a_failure_stops_the_others_and_names_the_stage() -> None:
    scene = Scene(for_ever("one", "two", "three"))
    running = scene.running.launch()
    cause = ValueError("the value 'secret' is no number")
    scene.queries["two"].end(cause)
    with pytest.raises(PipelineStageError, match="stage two of pipeline p") as raised:
        running.await_termination(_DEADLINE_S)
    assert raised.value.stage == "two"
    assert raised.value.__cause__ is cause
    assert "secret" not in str(raised.value)
    assert scene.states() == {
        "one": StageState.STOPPED,
        "two": StageState.FAILED,
        "three": StageState.STOPPED,
    }
    with pytest.raises(PipelineStageError):
        running.__exit__(None, None, None)


@pytest.mark.parametrize("lost", [False, True])
def test_a_failure_just_before_the_end_is_reported(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that looks after queries has not seen it yet."""
    scene = Scene(for_ever("one", "two", "three"))
    # Nobody looks at queries but when they are stopped.
    monkeypatch.setattr(scene.running, "_watch", lambda phase: scene.running._stop_asked.wait())
    cause = ValueError("the value 'secret' is no number")
    if lost:
        monkeypatch.setattr(ToldQuery, "exception", _raising(cause))
    with (
        pytest.raises(PipelineStageError, match="stage two of pipeline p") as raised,
        scene.running.launch(),
    ):
        scene.queries["two"].end(cause)
    assert raised.value.__cause__ is cause
    assert "secret" not in str(raised.value)
    assert scene.states() == {
        "one": StageState.STOPPED,
        "two": StageState.FAILED,
        "three": StageState.STOPPED,
    }
    assert scene.log[-3:] == ["stop three", "stop two", "stop one"]
    with pytest.raises(PipelineStageError):
        scene.running.await_termination()


def _raising(error: Exception) -> Callable[[ToldQuery], BaseException | None]:
    def refuse(query: ToldQuery) -> BaseException | None:
        raise error

    return refuse


def test_an_error_of_the_body_is_not_hidden_by_one_of_a_stage() -> None:
    scene = Scene(for_ever("one"))
    running = scene.running.launch()
    scene.queries["one"].end(ValueError())
    with pytest.raises(KeyError), running:
        raise KeyError


def test_a_stage_that_is_stopped_from_outside_ends_the_pipeline() -> None:
    scene = Scene(for_ever("one", "two"))
    running = scene.running.launch()
    scene.queries["one"].end()
    with pytest.raises(PipelineStageError, match=r"stage one .* stopped from outside"):
        running.await_termination(_DEADLINE_S)
    assert "stop two" in scene.log


def test_a_query_that_does_not_start_stops_those_before_it() -> None:
    scene = Scene(for_ever("one", "two", "three"))

    def refuse(stage: str) -> None:
        if stage == "two":
            raise RuntimeError("no")

    scene.on_start = refuse
    with pytest.raises(PipelineStageError, match=r"stage two .* does not start"):
        scene.running.launch()
    assert scene.log == ["start one", "stop one"]
    assert scene.states()["three"] is StageState.WAITING


def test_each_phase_waits_for_the_one_before() -> None:
    scene = Scene(to_the_end("one"), to_the_end("two"))
    running = scene.running.launch()
    assert scene.log == ["start one to its end"]
    assert scene.states() == {"one": StageState.RUNNING, "two": StageState.WAITING}
    scene.queries["one"].end()
    scene.await_started("two").end()
    assert running.await_termination(_DEADLINE_S)
    assert set(scene.states().values()) == {StageState.ENDED}


def test_a_stage_may_run_to_its_end_first_and_then_go_on() -> None:
    scene = Scene(to_the_end("one"), for_ever("one", "two"))
    running = scene.running.launch()
    scene.queries["one"].end()
    scene.await_started("two")
    # Stopping waits until Spark has forgotten the query of that name.
    assert scene.log == ["start one to its end", "stop one", "start one", "start two"]
    running.stop()
    assert set(scene.states().values()) == {StageState.STOPPED}


def test_a_stage_of_several_runs_ends_with_the_last_of_them() -> None:
    scene = Scene(Phase(stages=("one",), finite=True, runs=2), for_ever("two"))
    with scene.running.launch() as running:
        scene.queries["one"].progress = {"batchId": 7}
        scene.queries["one"].end()
        again = scene.await_started("one", times=2)
        assert scene.states() == {"one": StageState.RUNNING, "two": StageState.WAITING}
        assert [status.batch for status in running.status] == [7, None]
        again.end()
        scene.await_started("two")
        assert scene.states() == {"one": StageState.ENDED, "two": StageState.RUNNING}
    assert scene.log[:4] == [
        "start one to its end",
        "stop one",
        "start one to its end",
        "stop one",
    ]


def test_an_ended_query_that_spark_has_forgotten_keeps_no_stage_from_starting_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a server of Spark Connect does after an hour."""
    scene = Scene(to_the_end("one"), to_the_end("two"), for_ever("two", "one"))
    with scene.running.launch() as running:
        forgotten = scene.queries["one"]
        forgotten.progress = {"batchId": 7}
        forgotten.end()
        two = scene.await_started("two")
        forgotten.spark_is_gone = forgotten.refuses_to_stop = True
        assert [status.batch for status in running.status] == [7, None]
        two.end()
        scene.await_started("one", times=2)
    assert scene.log.count("stop one") == 2
    assert "did not stop" not in caplog.text


def test_a_failure_of_a_later_run_of_a_stage_ends_its_phase() -> None:
    scene = Scene(Phase(stages=("one",), finite=True, runs=2), for_ever("two"))
    running = scene.running.launch()
    scene.queries["one"].end()
    scene.await_started("one", times=2).end(ValueError())
    with pytest.raises(PipelineStageError, match="stage one"):
        running.await_termination(_DEADLINE_S)
    assert "two" not in scene.queries


def test_a_failure_in_a_first_phase_starts_no_other() -> None:
    scene = Scene(to_the_end("one"), for_ever("two"))
    running = scene.running.launch()
    scene.queries["one"].end(ValueError())
    with pytest.raises(PipelineStageError, match="stage one"):
        running.await_termination(_DEADLINE_S)
    assert "two" not in scene.queries


def test_a_stop_while_queries_start_starts_no_more() -> None:
    scene = Scene(for_ever("one", "two", "three"))
    stopping: list[threading.Thread] = []

    def stop_at_two(stage: str) -> None:
        if stage == "two":
            stopping.append(threading.Thread(target=scene.running.stop))
            stopping[0].start()
            assert scene.running._stop_asked.wait(_DEADLINE_S)

    scene.on_start = stop_at_two
    running = scene.running.launch()
    assert running.await_termination(_DEADLINE_S)
    stopping[0].join(_DEADLINE_S)
    assert scene.log == ["start one", "start two", "stop two", "stop one"]


def test_an_interrupt_stops_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(for_ever("one"))
    running = scene.running.launch()
    waited = running._over.wait
    interrupted: list[bool] = []

    def interrupt_once(timeout: float | None = None) -> bool:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return waited(timeout)

    monkeypatch.setattr(running._over, "wait", interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        running.await_termination()
    assert scene.log == ["start one", "stop one"]


def test_a_query_that_does_not_stop_does_not_keep_others_running(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(for_ever("one", "two"))
    running = scene.running.launch()
    scene.queries["two"].refuses_to_stop = True
    running.stop()
    assert scene.log[-2:] == ["stop two", "stop one"]
    assert "stage two did not stop" in caplog.text


def test_what_an_error_of_ours_says_is_passed_on() -> None:
    told = str(DataLossError("shard 3", found="a gap", expected="none", next_step="decide"))
    failed = stage_failure("p", "one", RuntimeError(f"Job aborted: Traceback\n  {told}\nat java"))
    assert "[data-loss] shard 3: found a gap" in failed.found
    assert "Job aborted" not in str(failed)


def test_of_several_errors_of_ours_the_last_is_passed_on() -> None:
    """Python shows an error after its cause, and an error may list several problems."""
    cause = AccessError("topic t", found="no permission", expected="one", next_step="get it")
    try:
        try:
            raise cause
        except AccessError as first:
            problem = OptionProblem(option="a", found="b", expected="c", next_step="d")
            raise InvalidOptionsError("kafka-ssp", [problem, problem]) from first
    except InvalidOptionsError:
        told = kind_of(RuntimeError(f"Job aborted: {traceback.format_exc()}\tat java"))
    assert told == (
        "RuntimeError: [invalid-options] 2 problems with the options of kafka-ssp: "
        "1. a: found b; expected c. Next step: d 2. a: found b; expected c. Next step: d"
    )


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: cannot parse [alice] 4711-0815, salary 90000",
        "[alice] 4711: found salary; expected none. Next step: salary",
        "[data-loss] salary 90000",
        "[data-loss] topic t: found salary",
    ],
)
def test_nothing_is_quoted_that_is_not_wholly_an_error_of_ours(text: str) -> None:
    assert kind_of(RuntimeError(f"Traceback\n  {text}\n")) == "RuntimeError"


def test_what_follows_an_error_of_ours_is_not_quoted() -> None:
    told = str(DataLossError("shard 3", found="a gap", expected="none", next_step="decide"))
    for text in (f"{told}\nsalary", repr(f"{told}\nsalary")):
        assert kind_of(RuntimeError(text)) == f"RuntimeError: {told}"


def test_what_stands_in_a_plan_is_no_error() -> None:
    text = "no worker\n=== Streaming Query ===\nraise_error([incompatible-state] x: found y)"
    assert stage_failure("p", "one", RuntimeError(text)).found.startswith(
        "a query that failed, RuntimeError; "
    )


@pytest.mark.parametrize(
    "text",
    [
        "[data-loss] " + ": found x" * 20_000,
        "[data-loss] " + ": found x; expected y" * 10_000,
        "[data-loss] x: found y" + "; expected z. Next" * 10_000,
        "[invalid-options] 1 problems" + ": 1 problems" * 10_000 + ":\n  1. x",
        "[data-loss] " * 2_000,
    ],
)
def test_a_long_text_that_is_nearly_an_error_of_ours_is_soon_read(text: str) -> None:
    """Meanwhile nobody would stop the other stages."""
    begun = time.process_time()
    assert kind_of(RuntimeError(text)) == "RuntimeError"
    assert time.process_time() - begun < _DEADLINE_S


class ForgottenError(Exception):
    """Of a JVM that is gone."""

    def getCondition(self) -> str:
        raise ConnectionRefusedError("no JVM")


def test_an_error_whose_text_cannot_be_asked_for_stops_all_the_same() -> None:
    scene = Scene(for_ever("one", "two"))
    scene.running.launch()
    scene.await_started("two").end(ForgottenError())
    with pytest.raises(PipelineStageError, match="a query that failed, ForgottenError;"):
        scene.running.await_termination(_DEADLINE_S)
    assert scene.log[-1] == "stop one"


@pytest.mark.parametrize("make", [stage_failure, start_failure])
def test_errors_come_through_pickle(make: Callable[..., PipelineStageError]) -> None:
    error = make("p", "one", ValueError("x"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.stage) == (str(error), "one")
