"""One stream and a query of it, for tests of a single history."""

from __future__ import annotations

from contextlib import ExitStack

from spark_ssp.common.errors import SspError
from tests.support.simulation.judge import Judge, listening
from tests.support.simulation.query import (
    UNDISTURBED,
    Disturbance,
    Outcome,
    SimulatedQuery,
    Trigger,
)
from tests.support.simulation.world import World

STREAM = "orders"


class Scene:
    """A stream and a query of it."""

    def __init__(self, shards: int = 1, **options: str) -> None:
        self.world = World()
        self.world.create(STREAM, shards)
        self.judge = Judge(self.world, page=10_000)
        self.query = SimulatedQuery(world=self.world, witness=self.judge)
        self.options = {
            "streamName": STREAM,
            "region": "us-east-1",
            "startingPosition": "trim_horizon",
            **options,
        }

    def put(self, count: int, key: str = "key-1") -> None:
        for _ in range(count):
            self.world.put(STREAM, key)

    def start(self, trigger: Trigger = Trigger.PROCESSING_TIME, **options: str) -> None:
        """Start the query, or restart it with some options changed."""
        self.options |= options
        self.judge.started(self.options, unlimited=trigger is Trigger.ONCE)
        assert self.query.start(self.options, trigger), self.query.error

    def trigger(self, disturbance: Disturbance = UNDISTURBED) -> Outcome:
        outcome = self.query.step(disturbance)
        self.world.pass_time(1000)
        return outcome

    def run(self, triggers: int = 5) -> None:
        for _ in range(triggers):
            assert self.trigger() is not Outcome.FAILED, self.query.error

    def run_out(self, triggers: int = 50) -> None:
        """Trigger until nothing is new, as Spark does before it ends an AvailableNow run."""
        for _ in range(triggers):
            outcome = self.query.step()
            assert outcome is not Outcome.FAILED, self.query.error
            if outcome is Outcome.NO_NEWS:
                return
        raise AssertionError("the run does not end")

    def failure(self) -> SspError:
        """Return the error of the next trigger, which must fail."""
        assert self.trigger() is Outcome.FAILED
        assert self.query.error is not None
        self.judge.lost(str(self.query.error))
        return self.query.error

    def check_all_read(self) -> None:
        assert not self.judge.missing()
        self.judge.check_silence()


def scene(stack: ExitStack, shards: int = 1, **options: str) -> Scene:
    """A scene that ends with `stack`; the warnings of its query are kept for its judge."""
    made = Scene(shards, **options)
    stack.callback(made.query.stop)
    stack.enter_context(listening(made.judge))
    return made
