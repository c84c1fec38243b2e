"""`spark-ssp leases`, `watch` and `doctor` while workers of the KCL write their lease table. With
SSP_WRITE_OUTPUTS set, the tables are written to `tests/golden/lease_tables/`, from which the tests
of the command that CI runs read them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.interop.scenarios import running
from tests.interop.scene import STREAM, Scene
from tests.interop.starts import FAILOVER_MS, kcl, ours
from tests.support.kcl.jars import KclVersion
from tests.support.leases.stores import client
from tests.support.operations.command import WIDTHS, WRITE_OUTPUTS, Run, run

pytestmark = pytest.mark.interop

_TABLES = Path(__file__).parents[1] / "golden" / "lease_tables"
_KEYS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
_STALE_AFTER = f"{FAILOVER_MS // 1000 + 2}s"


def _run(scene: Scene, *arguments: str, **more: Any) -> Run:
    services = ["--region=us-east-1", f"--endpoint-url={scene.kinesis_url}"]
    services.append(f"--dynamodb-endpoint-url={scene.dynamodb_url}")
    return run(
        *arguments,
        *services,
        environment=_KEYS,
        now_ms=lambda: time.time_ns() // 1_000_000,
        sleep=time.sleep,
        **more,
    )


def _leases(scene: Scene, *arguments: str, **more: Any) -> Run:
    return _run(scene, "leases", scene.application, "--stream", STREAM, *arguments, **more)


def _states(found: dict[str, Any]) -> dict[str, set[str]]:
    """The states of the shards of each owner."""
    states: dict[str, set[str]] = {}
    for row in found["shards"]:
        states.setdefault(row["owner"], set()).add(row["state"])
    return states


@pytest.mark.parametrize("version", list(KclVersion))
def test_workers_that_run_hand_over_and_are_killed(scene: Scene, version: KclVersion) -> None:
    start = kcl(version)
    with running(scene, start, "anne") as anne:
        parent = min(scene.watch.held_by(anne))
        children = set(scene.feed.split(STREAM, parent))
        with running(scene, start, "bert") as bert:
            scene.wait(
                lambda: children <= scene.watch.held_by(anne) | scene.watch.held_by(bert),
                "both children held",
            )
            scene.wait(lambda: len(scene.watch.held_by(bert)) >= 2, "bert holds two")
            found = _leases(scene, "--failover=4s", "--wait=5s", "--json")
            document = found.document()
            assert found.code == 0, document
            assert _states(document).keys() <= {"anne", "bert"}
            assert {row["worker"] for row in document["workers"]} == {"anne", "bert"}
            read = [row for row in document["shards"] if row["state"] in ("held", "handoff")]
            assert len(read) == 5
            assert all(row["renewedAtMostMsAgo"] is not None for row in read)
            assert all(0 <= row["lagMs"] < 120_000 for row in read)
            has_metrics = version is not KclVersion.V2_7
            assert len(document["leaders"]) == has_metrics
            assert len(document["workerMetrics"]) == 2 * has_metrics
            for columns in WIDTHS:
                text = _leases(scene, "--wait=0", columns=columns).out
                assert max(map(len, text.splitlines())) <= columns
                assert "5 of 5 shards held, 5 not seen to be renewed" in text
                assert "nobody reads" not in text
            _check_doctor(scene)
            if os.environ.get(WRITE_OUTPUTS):
                _write(scene, version)
            scene.producer.end()
            anne.kill()
            bert.kill()
    gone = _leases(scene, f"--wait={_STALE_AFTER}")
    assert gone.code == 1
    assert "0 of 5 shards read" in gone.out
    assert "nobody reads: " in gone.out


def _check_doctor(scene: Scene) -> None:
    options = (f"--option=streamName={STREAM}", f"--option=applicationName={scene.application}")
    found = _run(scene, "doctor", *options, "--json")
    assert found.code == 0, found.out
    levels = {one["check"]: one["level"] for one in found.document()}
    assert levels["dynamodb:Scan"] == levels["kinesis:GetRecords"] == "ok"


@pytest.mark.parametrize("version", [KclVersion.V3_5])
def test_a_query_beside_a_worker(scene: Scene, version: KclVersion) -> None:
    """Whose table the live page reads too."""
    with running(scene, kcl(version), "anne") as anne, running(scene, ours, "bert") as bert:
        scene.wait(
            lambda: bool(scene.watch.held_by(anne)) and bool(scene.watch.held_by(bert)),
            "both hold shards",
        )
        document = _leases(scene, "--wait=0", "--json").document()
        assert {row["owner"]: row["sparkSsp"] for row in document["shards"]} == {
            "anne": False,
            "bert": True,
        }
        assert "1 of spark-ssp, 1 of the KCL" in _leases(scene, "--wait=0").out
        checkpoint = str(scene.folder / "bert" / "checkpoint")
        page = _run(scene, "watch", checkpoint, "--json", f"--application={scene.application}")
        (source,) = page.document()["sources"]
        (stream,) = source["streams"]
        assert {shard["owner"] for shard in stream["shards"]} <= {"anne", "bert"}
        assert stream["leases"]["byOwner"].keys() == {"anne", "bert"}
        scene.finish(anne, bert)


def _write(scene: Scene, version: KclVersion) -> None:
    """Write the tables of an application as they are, with the shards of its stream."""
    dynamodb = client(scene.dynamodb_url)
    names = dynamodb.list_tables()["TableNames"]
    tables = {
        name.replace(scene.application, "orders-etl"): [
            json.loads(json.dumps(item, default=list))
            for item in dynamodb.scan(TableName=name, ConsistentRead=True)["Items"]
        ]
        for name in names
        if name.startswith(scene.application)
    }
    dynamodb.close()
    kinesis = boto3.session.Session().client(
        "kinesis",
        endpoint_url=scene.kinesis_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    shards = kinesis.list_shards(StreamName=STREAM)["Shards"]
    kinesis.close()
    document = {
        "source": f"Two workers of KCL {version} on DynamoDB Local and kinesis-mock, shortly after "
        "one of four shards was split.",
        "recordedMs": time.time_ns() // 1_000_000,
        "shards": shards,
        "tables": tables,
    }
    _TABLES.mkdir(exist_ok=True)
    path = _TABLES / f"kcl_{version.replace('.', '_')}.json"
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
