"""What a worker process keeps is put aside after its first tasks, and only then."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from itertools import pairwise

import pytest

from spark_ssp.common.spark.gc_freeze import TASKS, without_collections

SCRIPT = textwrap.dedent(
    """
    import gc, os
    from spark_ssp.common.spark.gc_freeze import freeze_after_task

    frozen = []
    for number in range({tasks} + 2):
        kept = [[] for _ in range(1000)]
        {task}
        frozen.append(gc.get_freeze_count())
        globals()[f"kept{{number}}"] = kept
    child = os.fork()
    if child == 0:
        gc.unfreeze()
        list(freeze_after_task(iter("ab")))
        os._exit(0 if gc.get_freeze_count() > 0 else 1)
    print(*frozen, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
)


@pytest.mark.parametrize(
    "task",
    [
        'assert list(freeze_after_task(iter("ab"))) == ["a", "b"]',
        'rows = freeze_after_task(iter("ab")); next(rows); rows.close()',
    ],
    ids=["read to the end", "left early"],
)
def test_put_aside_after_the_first_tasks_of_each_process(task: str) -> None:
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(tasks=TASKS, task=task)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    *frozen, child = map(int, out.split())
    assert frozen[0] > 1000
    assert all(later > earlier + 900 for earlier, later in pairwise(frozen[:TASKS]))
    # What is freed goes from there as well.
    assert max(frozen[TASKS:]) <= frozen[TASKS - 1]
    assert child == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_continue_after_a_pause_as_before(enabled: bool) -> None:
    during = []

    def fail() -> None:
        during.append(gc.isenabled())
        raise ImportError("a module that is missing")

    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ImportError), without_collections():
            fail()
        assert [*during, gc.isenabled()] == [False, enabled]
    finally:
        gc.enable()
