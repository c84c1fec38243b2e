"""Names of the user's files in messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.planner import Pipeline
from spark_ssp.planner.dsl.call_sites import shown


def _place(folder: Path) -> str:
    """What is told of an input that a program in this folder asks for."""
    names: dict[str, Any] = {"Pipeline": Pipeline}
    text = "p = Pipeline('p')\np.input('kafka', 'a')\n"
    exec(compile(text, str(folder / "pipeline.py"), "exec"), names)
    return str(names["p"].graph.operators[0].place)


def test_files_of_one_name_are_told_apart_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _place(tmp_path / "orders") == "orders/pipeline.py:2"
    assert _place(tmp_path / "flights") == "flights/pipeline.py:2"
    assert _place(tmp_path) == "pipeline.py:2"


def test_nothing_else_of_the_machine_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert _place(tmp_path / "orders") == "pipeline.py:2"
    assert shown("C:\\flows\\pipeline.py") == "pipeline.py"
    assert shown("pipeline.py") == "pipeline.py"
    assert shown("<stdin>") == "<stdin>"
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("/", tmp_path):
        monkeypatch.chdir(folder)
        assert _place(tmp_path / "orders") == "pipeline.py:2"
    monkeypatch.chdir(tmp_path / "here")
    os.rmdir(tmp_path / "here")
    assert shown(str(tmp_path / "here" / "orders" / "pipeline.py")) == "pipeline.py"
