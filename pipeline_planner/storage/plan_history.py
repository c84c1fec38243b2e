"""Plans kept beside the checkpoints: `<root>/_plans/1.json`, `2.json` and so on, the newest counts.

A plan is added when it says more than the newest one, and none is ever changed: so all that a store
must be able to do is to create a file unless it is there. Two runs that plan at once see the same
newest plan and want the same number; one of them gets it. Where: see `plan_folders`.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NoReturn

from pipeline_planner.planning.plan import Plan
from pipeline_planner.storage.plan_json import from_text, is_equivalent, to_text
from pipeline_planner.storage.plan_storage import PlanStoreError, open_folder, shown_root
from ssp_common.documents.immutable_files import WriteOnceFiles
from ssp_common.errors import SspError

_NAME: Final = re.compile(r"([1-9][0-9]*)\.json")


class PlanConflictError(SspError):
    """Another run recorded another plan since this one was made: plan again."""

    kind = "plan-conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """A plan as it was recorded, and its number, from 1."""

    number: int
    plan: Plan


def newest(root: str) -> RecordedPlan | None:
    """The newest plan recorded under `root`; None when there is none.

    Raises IncompatibleStateError when this version did not write it, PlanStoreError when the place
    cannot be read, UnsupportedError for a store that nothing here can reach. Of a root in S3 also
    AccessError, InvalidOptionsError without a region, ServiceUnavailableError when it does not
    answer, and InvalidRequestError.
    """
    try:
        with closing(open_folder(root)) as folder:
            return _newest(folder)
    except OSError as error:
        _refuse(root, error, "read")


def record(root: str, plan: Plan, *, after: RecordedPlan | None) -> RecordedPlan:
    """Record `plan` as the next one after `after`, which is what `newest` gave when it was made.

    Nothing is written when the newest one says the same already, be it `after` or one that another
    run recorded meanwhile. Raises PlanConflictError when the newest is another one than `after` and
    says something else, and as `newest` does.
    """
    number = 1 if after is None else after.number + 1
    try:
        with closing(open_folder(root)) as folder:
            now = _newest(folder)
            if now is not None and is_equivalent(now.plan, plan):
                return now
            if (0 if now is None else now.number) + 1 != number:
                raise _conflict(root, now)
            if not folder.create(f"{number}.json", to_text(plan).encode()):
                return _recorded_meanwhile(root, folder, plan)
    except OSError as error:
        _refuse(root, error, "written")
    return RecordedPlan(number=number, plan=plan)


def _newest(folder: WriteOnceFiles) -> RecordedPlan | None:
    numbers = [int(match[1]) for name in folder.names() if (match := _NAME.fullmatch(name))]
    if not numbers:
        return None
    text = folder.read(f"{max(numbers)}.json").decode(errors="replace")
    return RecordedPlan(number=max(numbers), plan=from_text(text))


def _recorded_meanwhile(root: str, folder: WriteOnceFiles, plan: Plan) -> RecordedPlan:
    now = _newest(folder)
    if now is not None and is_equivalent(now.plan, plan):
        return now
    raise _conflict(root, now)


def _conflict(root: str, now: RecordedPlan | None) -> PlanConflictError:
    return PlanConflictError(
        f"plans under {shown_root(root)}",
        found="no plan any more"
        if now is None
        else f"plan {now.number}, recorded by another run meanwhile",
        expected="the newest plan to be the one that this plan was made from",
        next_step="plan again, and run a pipeline once at a time under a root",
    )


def _refuse(root: str, error: OSError, done: str) -> NoReturn:
    raise PlanStoreError(
        f"plans under {shown_root(root)}",
        found=f"a place that cannot be {done} ({type(error).__name__}: {error.strerror or ''})",
        expected="a folder, or a store, to keep the plan in",
        next_step="mend the root's name or the permission to it",
    ) from error
