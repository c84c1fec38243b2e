"""What the guides show is what the code does: code parses, options are understood, kinds exist."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

import spark_ssp.checkpoint.assignments.store
import spark_ssp.checkpoint.leases.lease
import spark_ssp.grouping.fixed_tasks
import spark_ssp.kafka_source.client.error_translation
import spark_ssp.kinesis_source.client.api
import spark_ssp.kinesis_source.client.consumers
import spark_ssp.operations.acceptance.account
import spark_ssp.operations.inspection.spark_checkpoint
import spark_ssp.planner
import spark_ssp.planner.running
from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.batch_planner import lag_metrics
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import QueryKind
from spark_ssp.kafka_source.sink.columns import SinkColumns
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.source import spark_schema
from spark_ssp.kinesis_source.model.shard import AtTimestamp
from spark_ssp.kinesis_source.options.parse import parse_options as parse_kinesis_options
from spark_ssp.kinesis_source.source import spark_schema as kinesis_schema
from spark_ssp.operations.progress import failure_kind
from spark_ssp.planner import Pipeline, PlannedPipeline, PlanSettings, Stream, Table
from spark_ssp.planner.running import RunningPipeline
from tests.support.guides import GUIDE, PAGES, ROOT, blocks
from tests.support.pipelines.examples import KnownCounts, same

KAFKA_PAGES: Final = sorted(GUIDE.glob("kafka*.md"))
PIPELINES: Final = GUIDE / "pipelines.md"
OF_KINDS: Final = (
    spark_ssp.checkpoint.assignments.store,
    spark_ssp.checkpoint.leases.lease,
    spark_ssp.kafka_source.client.error_translation,
    spark_ssp.kinesis_source.client.consumers,
    spark_ssp.operations.acceptance.account,
    spark_ssp.operations.inspection.spark_checkpoint,
    spark_ssp.planner,
    spark_ssp.planner.running,
    spark_ssp.grouping.fixed_tasks,
)
"""Modules whose import defines the errors that the guides name."""
BROKERS: Final = {"kafka.bootstrap.servers": "host1:9092"}


def simple_statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements that hold no others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node


def errors(of: type[SspError] = SspError) -> Iterator[type[SspError]]:
    """Every class of errors that there is."""
    yield of
    for further in of.__subclasses__():
        yield from errors(further)


def kinds() -> set[str]:
    """Of every error that there is."""
    return {one.kind for one in errors()}


def defined_kinds() -> set[str]:
    """Of every error in the source code, imported or not."""
    return {
        kind
        for folder in ("checkpoint", "kafka_source", "kinesis_source", "spark_ssp")
        for module in (ROOT / folder).rglob("*.py")
        for kind in re.findall(r'^    kind = "([a-z-]+)"$', module.read_text("utf-8"), re.MULTILINE)
    }


def columns(page: Path, heading: str) -> dict[str, str]:
    """The table of columns in a section: the first cell, and the second."""
    section = page.read_text(encoding="utf-8").split(f"\n{heading}\n")[1].split("\n#")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_code_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        # A part of a chain of calls, as `.option(...)`, belongs to something.
        ast.parse(f"(it\n{block})" if block.startswith(".") else block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_json_is_json(page: Path) -> None:
    for block in blocks(page, "json"):
        json.loads(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_kinds_of_errors_are_known(page: Path) -> None:
    assert OF_KINDS
    named = set(re.findall(r"`\[([a-z][a-z-]+)\]`", page.read_text(encoding="utf-8")))
    assert named <= kinds()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_programs_are_there(page: Path) -> None:
    named = re.findall(r"python\s-m\s([\w.]+)", page.read_text(encoding="utf-8"))
    assert [name for name in named if find_spec(name) is None] == []


def test_every_kind_of_error_is_in_the_troubleshooting_page() -> None:
    defined = defined_kinds()
    page = (GUIDE / "troubleshooting.md").read_text(encoding="utf-8")
    assert {"access", "consumer", "lease-table", "plan-store"} <= defined
    assert defined <= set(re.findall(r"`\[([a-z-]+)\]`", page))
    assert set(re.findall(r"^## `\[([a-z-]+)\]`$", page, re.MULTILINE)) <= defined


def test_the_search_for_an_error_finds_every_kind() -> None:
    """In a log, where Python shows an error with its module and class."""
    (pattern,) = re.findall(r"grep -oE '(.+)'", (GUIDE / "logs.md").read_text(encoding="utf-8"))
    raised = [one for one in errors() if one.__module__.startswith("spark_ssp.")]
    assert defined_kinds() <= {one.kind for one in raised}
    lines = [f"{one.__module__}.{one.__qualname__}: [{one.kind}] orders: found" for one in raised]
    log = "".join(f"Caused by: {line}\n" for line in lines)
    found = subprocess.run(
        ["grep", "-oE", pattern], input=log, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == lines
    assert [failure_kind(line, None) for line in lines] == [one.kind for one in raised]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1_100


def test_recipes_are_shown_as_they_are() -> None:
    """Each file of `examples/recipes` is a block of one guide."""
    shown = [block for page in PAGES for block in blocks(page, "python")]
    files = list((ROOT / "examples" / "recipes").glob("[a-z]*.py"))
    assert files
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    assert {name for name, text in texts.items() if shown.count(text) != 1} == set()


# --- Kafka ----------------------------------------------------------------------------------------


def test_options_in_code_are_understood() -> None:
    told: list[str] = []
    shown = [
        block for page in [*KAFKA_PAGES, ROOT / "README.md"] for block in blocks(page, "python")
    ]
    statements = [
        ast.unparse(one) for block in shown for one in simple_statements(ast.parse(block))
    ]
    for statement in statements:
        given = dict(re.findall(r"\.option\('([\w.]+)', '([^']*)'\)", statement))
        for way in re.findall(r"(\w+)\.format\('kafka-ssp'\)", statement):
            told.append(way)
            match way:
                case "readStream":
                    parse_options({**BROKERS, "subscribe": "orders", **given})
                case "read":
                    parse_options({**BROKERS, "subscribe": "orders", **given}, QueryKind.BATCH)
                case _:
                    parse_sink_options({**BROKERS, **given})
    assert {"read", "readStream", "writeStream"} <= set(told)


def test_columns_of_the_source_are_its_schema() -> None:
    schema = spark_schema(include_headers=True, include_task=True)
    plain = {field.name: field.dataType.simpleString() for field in schema}
    plain["headers"] = "array of struct (`key` string, `value` binary)"
    assert columns(GUIDE / "kafka-columns.md", "## Columns") == plain


def test_columns_of_the_sink_are_those_it_knows() -> None:
    known = {field.name for field in dataclasses.fields(SinkColumns)}
    assert columns(GUIDE / "kafka-sink.md", "## Columns").keys() == known


def test_lag_is_reported_as_shown() -> None:
    page = GUIDE / "kafka-lag.md"
    (shown,) = (block for block in blocks(page, "python") if "query_lag(" in block)
    text = "".join(line[1:] for line in shown.splitlines() if line.startswith("#"))
    assert json.loads(text) == [lag_metrics({StreamName("orders"): {0: 3, 1: 0}})]


# --- Kinesis --------------------------------------------------------------------------------------


def test_columns_of_the_kinesis_source_are_its_schema() -> None:
    schema = kinesis_schema(include_repeat_keys=True)
    plain = {field.name: field.dataType.simpleString() for field in schema}
    assert columns(GUIDE / "kinesis-columns.md", "## Columns") == plain


def test_the_start_of_the_questions_is_understood() -> None:
    block = next(b for b in blocks(GUIDE / "questions.md", "python") if "at_timestamp" in b)
    names: dict[str, Any] = {}
    exec(compile(block, "questions.md", "exec"), names)
    raw = {"streamName": "orders", "startingPosition": names["start"]}
    assert parse_kinesis_options(raw).starting_position.default == AtTimestamp(
        millis=round(names["nine"].timestamp() * 1000)
    )


# --- Pipelines ------------------------------------------------------------------------------------


def test_the_plan_of_the_guide_is_the_plan() -> None:
    (shown,) = blocks(PIPELINES, "text")
    names: dict[str, Any] = {"parse_airline": same, "parse_flight": same}
    exec(compile(blocks(PIPELINES, "python")[0], "delays.py", "exec"), names)
    counts = KnownCounts({"airlines": 8, "kinesis/flights": 4, "late-flights": 2})
    assert names["pipeline"].plan(counts).explain() == shown


def test_the_services_of_the_guide_can_be_made() -> None:
    names: dict[str, Any] = {}
    for block in blocks(PIPELINES, "python")[:2]:
        tree = ast.parse(block)
        wanted = [n for n in tree.body if "Services" in ast.unparse(n)]
        imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
        exec(compile(ast.Module([*imports, *wanted], []), "services.py", "exec"), names)
    assert sorted(names["services"]) == ["kafka", "kinesis"]


def test_methods_of_the_guide_exist() -> None:
    """With the keywords that the guide gives them."""
    owners = (Pipeline, Stream, Table, PlannedPipeline, PlanSettings, RunningPipeline)
    text = PIPELINES.read_text(encoding="utf-8")
    code = [*blocks(PIPELINES, "python"), *re.findall(r"`([^`\n]+)`", text)]
    calls = re.findall(r"(?:\b|\.)(\w+)\(([^()]*)\)", "\n".join(code))
    checked = set()
    for name, arguments in calls:
        for owner in owners:
            if callable(function := getattr(owner, name, None)):
                keywords = set(re.findall(r"(\w+)=", arguments))
                assert keywords <= inspect.signature(function).parameters.keys(), name
                checked.add(name)
    assert checked >= {"input", "transform", "join_table", "plan", "run", "save_page", "mermaid"}
