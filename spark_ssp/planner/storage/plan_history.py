"""History of plans beside the checkpoints: `<root>/_plans/1.json`, `2.json` and so on.

The newest plan is in force. A plan is added when it differs from the newest one, and files are
never changed: so a store must only be able to create a file if it is absent. Two runs that plan at
the same time see the same newest plan and try to create the same number; one of them succeeds.
`plan_storage` opens the folder.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NoReturn

from spark_ssp.common.documents.immutable_files import WriteOnceFiles
from spark_ssp.common.errors import SspError
from spark_ssp.planner.planning.plan import Plan
from spark_ssp.planner.storage.plan_json import from_text, is_equivalent, to_text
from spark_ssp.planner.storage.plan_storage import PlanStoreError, open_folder, shown_root

_NAME: Final = re.compile(r"([1-9][0-9]*)\.json")


class PlanConflictError(SspError):
    """Another run has recorded another plan since this one was made: plan again."""

    kind = "plan-conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """A recorded plan and its number, from 1."""

    number: int
    plan: Plan


def newest(root: str) -> RecordedPlan | None:
    """Return the newest plan recorded under `root`, None without any.

    Raises IncompatibleStateError for a plan of another format, PlanStoreError when the folder
    cannot be read, UnsupportedError for an unsupported store. For a root in S3 also AccessError,
    InvalidOptionsError without a region, ServiceUnavailableError and InvalidRequestError.
    """
    try:
        with closing(open_folder(root)) as folder:
            return _newest(folder)
    except OSError as error:
        _refuse(root, error, "read")


def record(root: str, plan: Plan, *, after: RecordedPlan | None) -> RecordedPlan:
    """Record `plan` as the successor of `after`, the result of `newest` when it was made.

    Does not write if the newest plan is equivalent, be it `after` or one recorded concurrently.
    Raises PlanConflictError when the newest is neither equivalent nor `after`, and as `newest`
    does.
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
        else f"plan {now.number}, recorded by another run since",
        expected="the plan that this one was made from as the newest",
        next_step="plan again, and run only one pipeline at a time under a root",
    )


def _refuse(root: str, error: OSError, done: str) -> NoReturn:
    raise PlanStoreError(
        f"plans under {shown_root(root)}",
        found=f"a folder that cannot be {done} ({type(error).__name__}: {error.strerror or ''})",
        expected="an accessible folder for the plan",
        next_step="correct the root's name or its permissions",
    ) from error
