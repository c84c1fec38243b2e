"""History of plans beside the checkpoints: `<root>/_plans/1.json`, `2.json` and so on.

The newest plan is in force. A plan is added when it differs from the newest one, and files are
never changed: so a store must only be able to create a file if it is absent. Two runs that plan at
the same time see the same newest plan and try to create the same number; one of them succeeds.

A root is a path of this machine, or a URI: `file:`, `s3a:` (`s3:`, `s3n:`), or one that fsspec
supports. The folder `_plans` conflicts with no stage: names begin with a letter or a digit.
"""

from __future__ import annotations

import errno
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import unquote

from spark_ssp.common.errors import SspError, UnsupportedError
from spark_ssp.common.locations import file_path, is_path, shown_location
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.write_once_files import (
    PACKAGES,
    FsspecFiles,
    LocalFiles,
    S3Folder,
    WriteOnceFiles,
    is_bucket,
    missing_package,
)
from spark_ssp.planner.planning.plan import NotJsonError, Plan, from_text, is_equivalent, to_text

_NAME: Final = re.compile(r"([1-9][0-9]*)\.json")


class PlanConflictError(SspError):
    """Another run has recorded another plan since this one was made: plan again."""

    kind = "plan-conflict"


class PlanStoreError(SspError):
    """The folder of recorded plans cannot be read or written."""

    kind = "plan-store"


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
            return _newest(root, folder)
    except OSError as error:
        _refuse(root, error, "read")


def record(root: str, plan: Plan, *, after: RecordedPlan | None) -> RecordedPlan:
    """Record `plan` as the successor of `after`, the result of `newest` when it was made. Does not
    write if the newest plan is equivalent, be it `after` or one recorded concurrently. Raises
    PlanConflictError when the newest is neither equivalent nor `after`, and as `newest` does."""
    number = 1 if after is None else after.number + 1
    try:
        with closing(open_folder(root)) as folder:
            now = _newest(root, folder)
            follows = (0 if now is None else now.number) + 1 == number
            if follows and not (now is not None and is_equivalent(now.plan, plan)):
                if folder.create(f"{number}.json", to_text(plan).encode()):
                    return RecordedPlan(number=number, plan=plan)
                now = _newest(root, folder)  # another run was first
    except OSError as error:
        _refuse(root, error, "written")
    if now is not None and is_equivalent(now.plan, plan):
        return now
    raise PlanConflictError(
        f"plans under {shown_location(root)}",
        found="no plan any more"
        if now is None
        else f"plan {now.number}, recorded by another run since",
        expected="the plan that this one was made from as the newest",
        next_step="plan again, and run only one pipeline at a time under a root",
    )


def _newest(root: str, folder: WriteOnceFiles) -> RecordedPlan | None:
    numbers = [int(match[1]) for name in folder.names() if (match := _NAME.fullmatch(name))]
    if not numbers:
        return None
    newest = max(numbers)
    text = folder.read(f"{newest}.json").decode(errors="replace")
    try:
        return RecordedPlan(number=newest, plan=from_text(text))
    except NotJsonError as error:
        raise _incomplete(root, newest, error) from None


def _incomplete(root: str, number: int, error: NotJsonError) -> NotJsonError:
    before = (
        "no plan is in force then"
        if number == 1
        else f"plan {number - 1} before it is in force then"
    )
    return NotJsonError(
        f"file {FOLDER}/{number}.json under {shown_location(root)}",
        found=f"{error.found}, as during a write or after one that was cut off",
        expected=error.expected,
        next_step="if another run may be recording a plan now, run the pipeline again; if not, "
        "free space if the disk is full, remove the file and run the pipeline again: "
        f"{before}; if queries have run by this plan, restore the file from a backup instead",
    )


def _refuse(root: str, error: OSError, done: str) -> NoReturn:
    raise PlanStoreError(
        f"plans under {shown_location(root)}",
        found=f"a folder that cannot be {done} ({type(error).__name__}: {error.strerror or ''})",
        expected="an accessible folder for the plan",
        next_step="correct the root's name or its permissions",
    ) from error


# --- The folder of plans --------------------------------------------------------------------------


FOLDER: Final = "_plans"
"""Name of the folder below a root that contains its plans."""
_S3: Final = frozenset({"s3", "s3a", "s3n"})
"""Schemes of Hadoop's file systems for S3, past and present."""


def open_folder(root: str) -> WriteOnceFiles:
    """Return the folder of a root's plans without accessing it. The folder's methods raise OSError,
    or an SspError for S3. Raises UnsupportedError for an unsupported store, PlanStoreError for an
    invalid S3 root or for plans as of `_refuse_decoded`, and as `S3Calls.open` does."""
    if is_path(root):
        return _local_folder(Path(root))
    scheme = root.partition(":")[0]
    if scheme.lower() == "file":
        path = file_path(root)
        _refuse_decoded(root, path)
        return _local_folder(path)
    if scheme.lower() in _S3:
        return _open_s3(root)
    return _open_by_fsspec(root, scheme)


def _local_folder(root: Path) -> WriteOnceFiles:
    # Some mounted stores do not support links.
    return LocalFiles(root / FOLDER, _as_os_error, needs_links=False)


def _refuse_decoded(root: str, path: Path) -> None:
    """Raise PlanStoreError if the plans of a `file:` root may be where version 0.1.0 wrote them: it
    decoded the path, other than Spark, which wrote the checkpoints."""
    decoded = Path(unquote(re.split("[?#]", str(path))[0]))
    if decoded != path and (decoded / FOLDER).is_dir() and not (path / FOLDER).is_dir():
        raise PlanStoreError(
            f"plans under {shown_location(root)}",
            found=f"plans in {decoded / FOLDER}, and none beside the checkpoints",
            expected=f"plans in {path / FOLDER}: a root is not decoded, as by Spark",
            next_step=f"if they are this root's, move them there; if not, pass the root as {path}",
        )


# --- S3 ------------------------------------------------------------------------------------------


def _open_s3(root: str) -> WriteOnceFiles:
    """Open the folder with AWS's default credentials chain, region and endpoint: a client of
    Spark Connect cannot read Spark's S3 settings."""
    # Loaded only if needed: the AWS SDK is large.
    from spark_ssp.common.aws.store import S3Calls, S3Files, StoreLocation

    folder = s3_folder(root)
    where = StoreLocation(
        subject=f"plans under {shown_location(root)}",
        service="s3",
        resource=folder.resource,
        option="root",
        read_by="a pipeline",
        absent=PlanStoreError,
    )
    return S3Files(folder, S3Calls.open(where, ConnectionOptions()))


def s3_folder(root: str) -> S3Folder:
    """Return the folder of the plans of a root in S3, beside the checkpoints. So the root is parsed
    as by Hadoop, which decodes nothing and collapses repeated slashes."""
    _, slashes, rest = root.partition("://")
    bucket, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    if not slashes or not is_bucket(bucket) or not {".", ".."}.isdisjoint(parts):
        raise PlanStoreError(
            f"plans under {shown_location(root)}",
            found="a root without a valid S3 bucket or folder",
            expected="s3a://bucket/path, with a valid bucket name of 3 to 63 characters, and "
            "without a user, a password, '.' and '..'",
            next_step="correct the root; credentials come from AWS's default chain",
        )
    return S3Folder(bucket=bucket, path="/".join([*parts, FOLDER]))


# --- Other stores --------------------------------------------------------------------------------


def _open_by_fsspec(root: str, scheme: str) -> WriteOnceFiles:
    # As in Hadoop, `hdfs:/a` is `hdfs:///a`. fsspec would parse it as a path.
    uri = re.sub(r":/(?!/)", ":///", root, count=1).rstrip("/") + "/" + FOLDER
    try:
        if "://" not in uri:
            raise ValueError("a scheme without a path")
        return FsspecFiles(uri, _as_os_error)
    except (ImportError, ValueError) as error:
        raise UnsupportedError(
            f"plans under {shown_location(root)}",
            found=f"a root of {scheme}, which cannot be opened ({type(error).__name__})",
            expected="a folder of this machine, s3a://, or a store that fsspec supports",
            next_step=_next_step(scheme),
        ) from error
    except Exception as error:
        raise _as_os_error(error) from error


def _next_step(scheme: str) -> str:
    missing = missing_package(scheme)
    if missing is not None:
        return f"pip install {missing}, where the driver runs"
    package = PACKAGES.get(scheme)
    if package is not None:
        return f"check the root, and the environment variables of {package}"
    return f"check the root, or install the package that fsspec needs for {scheme}"


def _as_os_error(error: Exception) -> OSError:
    """Return an error as OSError: one of the libraries behind fsspec with only its type."""
    return error if isinstance(error, OSError) else OSError(errno.EIO, type(error).__name__)
