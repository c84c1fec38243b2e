"""Which leases this worker takes, renews, hands over and gives up: a state machine of values.

There is no clock, no chance and no I/O in here. A loop around it does what `next_steps` says and
tells what became of it:

    state = initial(Settings(worker=worker))
    while not finished(state):
        steps = next_steps(state, now(), random())
        state = started(state, steps, now())
        ...                     # each write -> written, a scan -> scanned or scan_failed,
                                # the reader's reports -> reported, and its end -> closing

All functions return a new state. `now` is this process's monotonic clock in milliseconds, and never
goes back.
"""

from __future__ import annotations

from checkpoint.coordination_state import (
    CoWorkers,
    Monotonic,
    Settings,
    State,
    Steps,
)
from checkpoint.coworking import Report, Status
from checkpoint.store import Rows
from checkpoint.writes import Outcome, Write
from ssp_common.errors import SspError

__all__ = [
    "CoWorkers",
    "Monotonic",
    "Settings",
    "State",
    "Steps",
    "closing",
    "finished",
    "initial",
    "next_steps",
    "reported",
    "scan_failed",
    "scanned",
    "started",
    "status",
    "written",
]


def initial(settings: Settings) -> State:
    """Before anything is known."""
    return State(settings=settings)


def reported(state: State, report: Report, now: Monotonic) -> State:
    """The reader has said what is true for it."""
    raise NotImplementedError


def scanned(state: State, rows: Rows, co_workers: CoWorkers, now: Monotonic) -> State:
    """The table was read. `now`: when the answer had come."""
    raise NotImplementedError


def scan_failed(state: State, error: SspError, now: Monotonic) -> State:
    """The table could not be read."""
    raise NotImplementedError


def next_steps(state: State, now: Monotonic, draw: float) -> Steps:
    """What to do now. `draw` is uniform in [0, 1): it spreads workers that start at once."""
    raise NotImplementedError


def started(state: State, steps: Steps, now: Monotonic) -> State:
    """The steps are about to be done. `now`: before the first of them is sent.

    Until `written` tells of a write, no other write of its row is planned; until `scanned` or
    `scan_failed`, no other scan. So `next_steps` may be asked while some are under way.
    """
    raise NotImplementedError


def written(state: State, write: Write, outcome: Outcome | SspError, now: Monotonic) -> State:
    """What became of a write that was started. An error: it may have taken effect or not."""
    raise NotImplementedError


def closing(state: State, now: Monotonic) -> State:
    """The reader has gone: write what it has committed, give everything back, take nothing."""
    raise NotImplementedError


def finished(state: State) -> bool:
    """After `closing` or a report with `leave`: nothing is held and nothing under way."""
    raise NotImplementedError


def status(state: State, now: Monotonic) -> Status:
    """What the reader is to know."""
    raise NotImplementedError
