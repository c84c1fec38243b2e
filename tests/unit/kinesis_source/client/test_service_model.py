"""botocore's model of Kinesis, as far as this project relies on it, is the one that was read.

`docs/design/kinesis-client.md` lists the conclusions from it. When this test fails, the
service has changed: read the operations and shapes that differ, revise the record and the code,
then write the outline again with `python -m tests.unit.kinesis_source.client.test_service_model`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import botocore
from botocore.loaders import Loader

OUTLINE = Path(__file__).with_name("kinesis_service_model.json")
RECORD = Path(__file__).parents[4] / "docs" / "design" / "kinesis-client.md"
OPERATIONS = (
    "CreateStream",
    "DescribeStreamSummary",
    "GetRecords",
    "GetShardIterator",
    "ListShards",
    "MergeShards",
    "PutRecord",
    "PutRecords",
    "SplitShard",
    "SubscribeToShard",
    "UpdateMaxRecordSize",
    "UpdateShardCount",
    "UpdateStreamMode",
    "UpdateStreamRecordDistributionStrategy",
)


def outline() -> dict[str, Any]:
    """The operations relied on, with their errors, and every shape that they reach: constraints and
    members. Of the documentation a digest, since it has rules beyond the constraints."""
    model = Loader().load_service_model("kinesis", "service-2")
    operations = {name: _operation(model["operations"][name]) for name in OPERATIONS}
    shapes: dict[str, Any] = {}
    line = [shape for one in operations.values() for shape in (one["input"], one["output"])]
    while line:
        name = line.pop()
        if name is not None and name not in shapes:
            shapes[name] = _shape(model["shapes"][name])
            line.extend(shapes[name]["members"].values())
    return {
        "all operations": sorted(model["operations"]),
        "operations": operations,
        "shapes": dict(sorted(shapes.items())),
    }


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "input": operation["input"]["shape"],
        "output": operation.get("output", {}).get("shape"),
        "errors": sorted(error["shape"] for error in operation.get("errors", ())),
        "documentation": _digest(operation),
    }


def _shape(shape: dict[str, Any]) -> dict[str, Any]:
    members = {name: member["shape"] for name, member in shape.get("members", {}).items()}
    if "member" in shape:
        members["member"] = shape["member"]["shape"]
    rest = {
        name: value
        for name, value in shape.items()
        if name not in ("members", "member", "documentation", "key", "value")
    }
    told = [_digest(member) for member in shape.get("members", {}).values()]
    return rest | {"members": members, "documentation": _digest(shape) + "".join(told)}


def _text(found: dict[str, Any]) -> str:
    """An outline as JSON, with a line for each operation and each shape."""
    lines = [f'"all operations": {json.dumps(found["all operations"])}']
    for kind in ("operations", "shapes"):
        entries = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found[kind].items()]
        lines.append(f'"{kind}": {{\n' + ",\n".join(entries) + "}")
    return "{" + ",\n".join(lines) + "}\n"


def _digest(documented: dict[str, Any]) -> str:
    text = " ".join(documented.get("documentation", "").split())
    return hashlib.sha256(text.encode()).hexdigest()[:8] if text else ""


def test_the_model_is_the_one_that_was_read() -> None:
    expected = json.loads(OUTLINE.read_text())
    found = json.loads(json.dumps(outline()))
    changed = sorted(
        f"{kind} {name}"
        for kind in ("operations", "shapes")
        for name in expected[kind].keys() | found[kind].keys()
        if expected[kind].get(name) != found[kind].get(name)
    )
    new = sorted(set(found["all operations"]) ^ set(expected["all operations"]))
    assert not changed + new, (
        f"botocore {botocore.__version__} describes Kinesis otherwise than the version that was "
        f"read: {changed + new}. Reread {RECORD.name}."
    )


def test_the_record_names_every_operation_that_it_is_about() -> None:
    text = RECORD.read_text()
    assert [name for name in OPERATIONS if f"`{name}`" not in text] == []


if __name__ == "__main__":
    OUTLINE.write_text(_text(outline()))
