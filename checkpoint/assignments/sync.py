"""Keeps a query's assignment and the one in a store consistent.

The store has the union over the streams of all queries that name it; a query writes only its own
streams. A stream in the query's checkpoint is grouped from there, any other from the store: all
streams of a new query. Queries may detect an expansion at different times: the first writes it, and
the others compute the same. A new query that detects it late takes the store's tasks up to the
partitions that it sees.

The store is written before the offset with the assignment. A driver that dies in between starts
from the older assignment, which the store's extends, and computes the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from spark_ssp.checkpoint.assignments.store import (
    AssignmentConflictError,
    AssignmentContradictionError,
    AssignmentStore,
    store_subject,
)
from spark_ssp.common.errors import NEW_CHECKPOINT, IncompatibleStateError
from spark_ssp.grouping.assignment import (
    GROUPER,
    NO_ASSIGNMENT,
    SINGLE,
    Contradiction,
    TaskAssignment,
    contradiction,
    inherit,
    merged,
    replaced,
    restrict_to,
    up_to,
)
from spark_ssp.grouping.fixed_tasks import FixedTasks, OnPartitionCountChange, PartitionCountError
from spark_ssp.grouping.identifiers import SystemStreamPartition

_ATTEMPTS: Final = 50
"""Attempts while other queries write first. Each of them writes once at its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The assignment to group the partitions from, and the assignment to store first."""

    previous: TaskAssignment
    to_write: TaskAssignment | None = None
    """None if the store already has it."""


def decide(
    own: TaskAssignment,
    stored: TaskAssignment,
    ssps: Collection[SystemStreamPartition],
    grouping: FixedTasks,
) -> Decision | Contradiction:
    """Decide for a query with `own` in its checkpoint and the partitions `ssps`. `NO_ASSIGNMENT`
    means none. A query that regroups (`onPartitionCountChange`) replaces its streams in the store,
    but not other queries' streams with another grouper. Raises the errors of `FixedTasks.group`."""
    streams = {ssp.system_stream for ssp in ssps}
    previous = inherit(own, up_to(restrict_to(stored, streams), ssps))
    now = grouping.group(previous, ssps)
    if not now.tasks:
        return Decision(previous=previous)
    if grouping.on_count_change is OnPartitionCountChange.REGROUP:
        if stored.grouper != now.grouper and stored.counts.keys() - now.counts.keys():
            return Contradiction(about=GROUPER, stored=stored.grouper, own=now.grouper)
        union = replaced(stored, now)
    else:
        found = _contradiction(stored, now, grouping)
        if found is not None:
            return found
        union = merged(stored, now)
    return Decision(previous=previous, to_write=None if union == stored else union)


def _contradiction(
    stored: TaskAssignment, now: TaskAssignment, grouping: FixedTasks
) -> Contradiction | None:
    """Return a contradiction that exists, or will once both have the partitions of either."""
    found = contradiction(stored, now)
    if found is not None or now.grouper == SINGLE:
        return found
    for stream in sorted(stored.counts.keys() & now.counts.keys()):
        if stored.counts[stream][-1] == now.counts[stream][-1]:
            continue
        theirs, ours = restrict_to(stored, [stream]), restrict_to(now, [stream])
        every = theirs.owners().keys() | ours.owners().keys()
        try:
            found = contradiction(grouping.group(theirs, every), grouping.group(ours, every))
        except PartitionCountError:
            found = Contradiction(
                about=f"the numbers of partitions of {stream}",
                stored=_format_counts(stored.counts[stream]),
                own=_format_counts(now.counts[stream]),
            )
        if found is not None:
            return found
    return None


def _format_counts(counts: tuple[int, ...]) -> str:
    return ", then ".join(str(count) for count in counts)


def with_store_uri(
    error: PartitionCountError | IncompatibleStateError, store: AssignmentStore
) -> PartitionCountError | IncompatibleStateError:
    """Return an error of `FixedTasks.group` with the store that the partitions were grouped
    from."""
    return type(error)(
        f"{error.subject} ({store_subject(store.uri)})",
        found=error.found,
        expected=error.expected,
        next_step=f"{error.next_step} (a new checkpoint location takes its tasks from the store: "
        "name another assignmentStore with it, or none)",
    )


_Answer = tuple[TaskAssignment, frozenset[SystemStreamPartition], TaskAssignment]
"""The arguments of the last call and its result; most triggers repeat them."""


class AssignmentSync:
    """A query's side of a store. Used by one thread at a time."""

    def __init__(self, store: AssignmentStore, grouping: FixedTasks) -> None:
        self._store = store
        self.grouping = grouping
        self._cached: TaskAssignment | None = None
        self._last: _Answer | None = None

    def stored(self) -> TaskAssignment:
        """Return the store's assignment as last read, reading it the first time; `NO_ASSIGNMENT`
        for none."""
        if self._cached is None:
            found = self._store.read()
            self._cached = NO_ASSIGNMENT if found is None else found.assignment
        return self._cached

    def previous(
        self, own: TaskAssignment, ssps: Collection[SystemStreamPartition]
    ) -> TaskAssignment:
        """Return the assignment to group `ssps` from (`BatchRules.previous`), after storing the
        result.

        `own` is the assignment in the query's checkpoint. The store is read the first time, and
        again if there is something to write: for an expansion or a new stream.

        Raises AssignmentContradictionError and the errors of the store and of `FixedTasks.group`.
        """
        found = frozenset(ssps)
        if self._last is None or self._last[:2] != (own, found):
            self._last = (own, found, self._resolve(own, found))
        return self._last[2]

    def close(self) -> None:
        """Release the store's connections."""
        self._store.close()

    def _resolve(
        self, own: TaskAssignment, ssps: Collection[SystemStreamPartition]
    ) -> TaskAssignment:
        if self._cached is not None:
            decision = self._decide_from_cache(own, self._cached, ssps)
            if isinstance(decision, Decision) and decision.to_write is None:
                return decision.previous
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._read_and_write(own, ssps)
            except AssignmentConflictError:
                continue
        return self._read_and_write(own, ssps)

    def _decide_from_cache(
        self,
        own: TaskAssignment,
        known: TaskAssignment,
        ssps: Collection[SystemStreamPartition],
    ) -> Decision | Contradiction | None:
        """Return None if the cached assignment cannot be grouped: then the store is read, and
        errors name it."""
        try:
            return decide(own, known, ssps, self.grouping)
        except (PartitionCountError, IncompatibleStateError):
            return None

    def _read_and_write(
        self, own: TaskAssignment, ssps: Collection[SystemStreamPartition]
    ) -> TaskAssignment:
        found = self._store.read()
        stored = NO_ASSIGNMENT if found is None else found.assignment
        decision = self._decide(own, stored, ssps)
        if decision.to_write is not None:
            self._store.write(decision.to_write, None if found is None else found.version)
            stored = decision.to_write
        self._cached = stored
        return decision.previous

    def _decide(
        self,
        own: TaskAssignment,
        stored: TaskAssignment,
        ssps: Collection[SystemStreamPartition],
    ) -> Decision:
        try:
            decision = decide(own, stored, ssps, self.grouping)
        except (PartitionCountError, IncompatibleStateError) as error:
            streams = {ssp.system_stream for ssp in ssps}
            if inherit(own, restrict_to(stored, streams)) == own:
                raise
            raise with_store_uri(error, self._store) from error
        if isinstance(decision, Contradiction):
            raise self._contradiction_error(decision)
        return decision

    def _contradiction_error(self, found: Contradiction) -> AssignmentContradictionError:
        afresh = f"to take over the store's tasks, start it on {NEW_CHECKPOINT}"
        if found.about == GROUPER:
            afresh = f"start it, with grouper and tasks as in the store, on {NEW_CHECKPOINT}"
        return AssignmentContradictionError(
            store_subject(self._store.uri),
            found=f"{found.about}: {found.stored!r} in the store, {found.own!r} in this query",
            expected="the same in all queries that name the store",
            next_step=f"name another assignmentStore for this query; or {afresh}; or, if no other "
            "query needs it, empty the store",
        )
