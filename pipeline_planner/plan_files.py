"""Plans kept beside the checkpoints: `<root>/_plans/1.json`, `2.json` and so on, the newest counts.

A plan is added when it says more than the newest one, and none is ever changed: so all that a store
must be able to do is to create a file unless it is there. Two runs that plan at once see the same
newest plan and want the same number; one of them gets it.

A root is a folder of this machine (a path, or `file:`) or the URI of a store that fsspec knows. No
stage can be called `_plans`: names begin with a letter or a digit.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol
from urllib.parse import unquote, urlsplit

from pipeline_planner.plan import Plan
from pipeline_planner.plan_record import from_text, says_the_same, to_text
from ssp_common.errors import SspError, UnsupportedError

FOLDER: Final = "_plans"
"""The folder below a root that holds its plans."""

_NAME: Final = re.compile(r"([1-9][0-9]*)\.json")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


class PlanConflictError(SspError):
    """Another run recorded another plan since this one was made: plan again."""

    kind = "plan-conflict"


class PlanStoreError(SspError):
    """The place of the recorded plans cannot be read or written."""

    kind = "plan-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """A plan as it was recorded, and its number, from 1."""

    number: int
    plan: Plan


class PlanFolder(Protocol):
    """Where plans are kept. Errors of the store are `OSError`s."""

    def names(self) -> Iterable[str]:
        """What lies in the folder; nothing when there is none."""
        ...

    def read(self, name: str) -> bytes:
        """All of a file."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """A new file with its whole content; `FileExistsError` when there is one."""
        ...


def newest(root: str) -> RecordedPlan | None:
    """The newest plan recorded under `root`; None when there is none.

    Raises IncompatibleStateError when this version did not write it, PlanStoreError when the place
    cannot be read, UnsupportedError for a store that nothing here can reach.
    """
    try:
        return _newest(_folder(root))
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
        folder = _folder(root)
        now = _newest(folder)
        if now is not None and says_the_same(now.plan, plan):
            return now
        if (0 if now is None else now.number) + 1 != number:
            raise _conflict(root, now)
        try:
            folder.create(f"{number}.json", to_text(plan).encode())
        except FileExistsError:
            return _recorded_meanwhile(root, folder, plan)
    except OSError as error:
        _refuse(root, error, "written")
    return RecordedPlan(number=number, plan=plan)


def _newest(folder: PlanFolder) -> RecordedPlan | None:
    numbers = [int(match[1]) for name in folder.names() if (match := _NAME.fullmatch(name))]
    if not numbers:
        return None
    text = folder.read(f"{max(numbers)}.json").decode(errors="replace")
    return RecordedPlan(number=max(numbers), plan=from_text(text))


def _recorded_meanwhile(root: str, folder: PlanFolder, plan: Plan) -> RecordedPlan:
    now = _newest(folder)
    if now is not None and says_the_same(now.plan, plan):
        return now
    raise _conflict(root, now)


def _conflict(root: str, now: RecordedPlan | None) -> PlanConflictError:
    return PlanConflictError(
        f"plans under {_shown(root)}",
        found="no plan any more"
        if now is None
        else f"plan {now.number}, recorded by another run meanwhile",
        expected="the newest plan to be the one that this plan was made from",
        next_step="plan again, and run a pipeline once at a time under a root",
    )


def _refuse(root: str, error: OSError, done: str) -> NoReturn:
    raise PlanStoreError(
        f"plans under {_shown(root)}",
        found=f"a place that cannot be {done} ({type(error).__name__}: {error.strerror or ''})",
        expected="a folder, or a store that fsspec knows, to keep the plan in",
        next_step="mend the root's name or the permission to it",
    ) from error


def _shown(root: str) -> str:
    """Without user and password."""
    return re.sub(r"//[^/@\s]+@", "//***@", root)


# --- Where ---------------------------------------------------------------------------------------


def is_path(root: str) -> bool:
    """Whether a root is a path of this machine, without a scheme."""
    return _SCHEME.match(root) is None


def _folder(root: str) -> PlanFolder:
    scheme = _SCHEME.match(root)
    if scheme is None:
        return _LocalFolder(Path(root) / FOLDER)
    if scheme[1].lower() == "file":
        return _LocalFolder(Path(unquote(urlsplit(root).path)) / FOLDER)
    # As Hadoop reads it: `hdfs:/a` is `hdfs:///a`. fsspec would take it for a path.
    uri = re.sub(r":/(?!/)", ":///", root, count=1)
    return _StoreFolder(uri.rstrip("/") + "/" + FOLDER, scheme[1])


class _LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> Iterable[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return ()

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def create(self, name: str, content: bytes) -> None:
        """Written whole under a passing name and then linked: nobody sees half of it, and only one
        of two gets the name."""
        self._path.mkdir(parents=True, exist_ok=True)
        handle, passing = tempfile.mkstemp(dir=self._path, prefix=".", suffix=f".{name}")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(passing, 0o644)
            self._name(Path(passing), self._path / name, content)
        finally:
            os.unlink(passing)

    def _name(self, passing: Path, final: Path, content: bytes) -> None:
        try:
            os.link(passing, final)
        except FileExistsError:
            raise
        except OSError:
            # Some mounts of stores have no links.
            with open(final, "xb") as file:
                file.write(content)


class _StoreFolder:
    """A folder of a store, by way of fsspec: whether two at once can both create a file is for the
    store's implementation to rule out, as those for S3, Google's and Azure's stores do.
    Others, HDFS among them, look first and then write."""

    def __init__(self, uri: str, scheme: str) -> None:
        try:
            fsspec: Any = importlib.import_module("fsspec")
            if "://" not in uri:
                raise ValueError("a scheme without a path")
            # Nothing remembered: another process may have added a plan.
            self._store, self._path = fsspec.core.url_to_fs(
                uri, use_listings_cache=False, skip_instance_cache=True
            )
        except (ImportError, ValueError) as error:
            raise UnsupportedError(
                f"plans under {_shown(uri.removesuffix('/' + FOLDER))}",
                found=f"a root of {scheme}, which cannot be reached ({type(error).__name__})",
                expected="a folder of this machine, or a store that fsspec can reach",
                next_step=f"install fsspec and its package for {scheme}, or check the name",
            ) from error

    def names(self) -> Iterable[str]:
        try:
            with _as_errors_of_a_store():
                found = self._store.ls(self._path, detail=False)
        except FileNotFoundError:
            return ()
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def read(self, name: str) -> bytes:
        with _as_errors_of_a_store():
            return bytes(self._store.cat_file(f"{self._path}/{name}"))

    def create(self, name: str, content: bytes) -> None:
        with _as_errors_of_a_store():
            # Stores without folders have nothing to make, and some say so by an error.
            with suppress(NotImplementedError, FileExistsError):
                self._store.makedirs(self._path, exist_ok=True)
            self._store.pipe_file(f"{self._path}/{name}", content, mode="create")


@contextmanager
def _as_errors_of_a_store() -> Iterator[None]:
    """The packages behind fsspec raise errors of their own libraries, too: these by kind alone."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, type(error).__name__) from error
