"""The effort of a run, by the environment variable SSP_EFFORT.

`quick` (`make quick`) finds only coarse faults, `dev` (the default) is short and random, `ci` is
the gate (`make test`) and draws the same examples on every run, so that a change is judged only by
its faults; `soak` (`make soak`) is long and random. A random failure prints the data to repeat it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from hypothesis import HealthCheck, settings


class Effort(StrEnum):
    QUICK = "quick"
    DEV = "dev"
    CI = "ci"
    SOAK = "soak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """The amounts of one level of effort."""

    examples: int
    """Examples of a property."""
    histories: int
    """Histories of a state machine."""
    kills: int
    """The number of times that a running query is killed and restarted."""


_AMOUNTS = {
    Effort.QUICK: Amount(examples=10, histories=10, kills=1),
    Effort.DEV: Amount(examples=50, histories=50, kills=1),
    Effort.CI: Amount(examples=100, histories=500, kills=3),
    Effort.SOAK: Amount(examples=2_000, histories=10_000, kills=20),
}

EFFORT = Effort(os.environ.get("SSP_EFFORT", Effort.DEV))
AMOUNT = _AMOUNTS[EFFORT]


def load_hypothesis_profile() -> None:
    """Make the Hypothesis profile of this run's effort the default. Tests have no time limit: a
    slow machine is not a fault."""
    for effort, amount in _AMOUNTS.items():
        settings.register_profile(
            f"ssp-{effort}",
            max_examples=amount.examples,
            deadline=None,
            derandomize=effort is Effort.CI,
            database=None if effort is Effort.CI else settings().database,
            print_blob=effort is not Effort.CI,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile(f"ssp-{EFFORT}")
