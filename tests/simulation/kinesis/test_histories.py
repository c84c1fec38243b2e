"""Many random histories of a query, judged against a naive record of what was put."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.emphases import Faulty, Lossy, Narrow, Plain
from tests.simulation.histories import COVERED, Histories
from tests.support.simulation.effort import AMOUNT, EFFORT, Effort

SHARES = {Plain: 0.3, Narrow: 0.2, Faulty: 0.25, Lossy: 0.25}
STEPS = 25


@pytest.mark.parametrize("emphasis", SHARES)
@pytest.mark.timeout(7200 if EFFORT is Effort.SOAK else 900)
def test_nothing_is_lost_nothing_comes_twice(emphasis: type[Histories]) -> None:
    COVERED.clear()
    run_state_machine_as_test(
        emphasis,
        settings=settings(
            max_examples=round(AMOUNT.histories * SHARES[emphasis]), stateful_step_count=STEPS
        ),
    )
    print(f"{emphasis.__name__}:", dict(sorted(COVERED.items())))
    if AMOUNT.histories >= 1000:
        missing = sorted(set(emphasis.must_happen) - set(COVERED))
        assert not missing, f"the histories do not come to {missing}"
