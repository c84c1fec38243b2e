"""`spark-ssp plan`: The plan of a pipeline: text, Mermaid or page."""

from __future__ import annotations

import json
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from spark_ssp.common.errors import InvalidRequestError, SspError
from spark_ssp.operations.cli import write_json
from spark_ssp.planner.builder import Pipeline
from spark_ssp.planner.graph.systems import Services
from spark_ssp.planner.planned_pipeline import PlannedPipeline
from spark_ssp.planner.planning.plan import to_text

_FORMATS: Final = ("text", "mermaid", "page")


@click.command("plan")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--pipeline", "name", default="pipeline", show_default=True, help="Its name in FILE.")
@click.option("--services", default="services", show_default=True, help="Their name in FILE.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True)
@click.option("--root", help="The pipeline's root: a plan that contradicts the recorded one fails.")
@click.option("--json", "as_json", is_flag=True, help="Write the plan as JSON.")
def plan_command(
    file: Path, name: str, services: str, form: str, root: str | None, as_json: bool
) -> None:
    """Plan the pipeline in the Python file FILE, and write the plan: as text, as a Mermaid figure
    or as an HTML page.

    FILE is executed. It needs a global `pipeline`: a Pipeline or a PlannedPipeline, or a function
    without arguments that returns one. For a Pipeline it needs `services` as well: Services, or a
    function that returns them. Streams are described, none is created.
    """
    found = _load(file)
    pipeline = _value(file, found, name, (Pipeline, PlannedPipeline), "a Pipeline")
    if isinstance(pipeline, PlannedPipeline):
        planned = pipeline
    else:
        admin = _value(file, found, services, (Services,), "Services")
        planned = pipeline.plan(admin, root=root)
    if as_json:
        write_json(json.loads(to_text(planned.plan)))
        return
    text = {"text": planned.explain, "mermaid": planned.mermaid, "page": planned.page}[form]()
    click.echo(text, nl=not text.endswith("\n"))


def _load(file: Path) -> Mapping[str, Any]:
    with _code_of(file):
        return runpy.run_path(str(file), run_name="pipeline_to_plan")


@contextmanager
def _code_of(file: Path) -> Iterator[None]:
    """Guard code of the user. Modules beside the file can be imported, as when Python runs it."""
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    except (SspError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if click.get_current_context().find_root().params.get("traceback"):
            raise
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(file)
        ]
        raise InvalidRequestError(
            str(file),
            found=f"{type(error).__name__}" + (f" in line {lines[-1]}" if lines else ""),
            expected="a Python file that defines a pipeline when it is executed",
            next_step="run it with Python, or call the function; spark-ssp --traceback shows the "
            "error",
        ) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _value(
    file: Path, found: Mapping[str, Any], name: str, kinds: tuple[type, ...], expected: str
) -> Any:
    value = found.get(name)
    if callable(value) and not isinstance(value, kinds):
        with _code_of(file):
            value = value()
    if isinstance(value, kinds):
        return value
    raise InvalidRequestError(
        str(file),
        found=f"no {name}" if value is None else f"{name} of type {type(value).__name__}",
        expected=f"{expected} named {name}, or a function {name}() that returns it",
        next_step="define it at the top level of the file, or name another one by --pipeline or "
        "--services",
    )
