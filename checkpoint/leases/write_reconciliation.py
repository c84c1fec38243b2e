"""Retries a conditional write whose effect is unknown.

The retry finds the row changed by the first attempt. If that counted as a conflict, a worker would
give up a lease that it holds. So once an attempt may have taken effect, the row of a failed
condition is compared with the result of the write (`is_applied`).

Without such an attempt a failed condition is always a conflict: two workers with the same id must
not mistake each other's writes for their own.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_ssp.checkpoint.leases.conditional_writes import (
    Conflict,
    Done,
    Outcome,
    Write,
    is_applied,
)

Attempt = Callable[[], Outcome]


def reconcile(
    write: Write,
    attempt: Attempt,
    *,
    retrying: Callable[[Attempt], Outcome],
    may_have_applied: Callable[[Exception], bool],
) -> Outcome:
    """Run `attempt` through `retrying`, which repeats it after transient errors; return the
    result."""
    doubtful = False

    def once() -> Outcome:
        nonlocal doubtful
        try:
            return attempt()
        except Exception as error:
            doubtful = doubtful or may_have_applied(error)
            raise

    outcome = retrying(once)
    if doubtful and isinstance(outcome, Conflict) and is_applied(write, outcome.found):
        lease = write.lease if outcome.found is None else outcome.found
        return Done(lease=lease)
    return outcome
