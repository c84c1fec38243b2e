"""Trying a conditional write again when it is unknown whether it took effect.

The second attempt then finds the row changed, by the first. Taken for a conflict, a worker would
give up a lease that it holds. So once an attempt may have taken effect, a failed condition is
compared with what the write itself would have left behind (`writes.shows`).

Without such an attempt a failed condition is a conflict, whatever the row looks like: two workers
under one id must not take each other's writes for their own.
"""

from __future__ import annotations

from collections.abc import Callable

from checkpoint.leases.conditional_writes import Conflict, Done, Outcome, Write, is_applied

Attempt = Callable[[], Outcome]


def reconcile(
    write: Write,
    attempt: Attempt,
    *,
    retrying: Callable[[Attempt], Outcome],
    may_have_applied: Callable[[Exception], bool],
) -> Outcome:
    """The outcome of `write`. `retrying` runs a function, again when it raises what may pass."""
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
