"""A query with leases whose credentials come from a user's module and expire each second."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_ssp.testing.kinesis import EmbeddedKinesis, server
from spark_ssp.testing.kinesis.state.faults import AccessDenied
from tests.support.kinesis.fan_out_mode import pushed_everywhere, python_path
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.spark.drivers import Driver

_DEADLINE_S = 240
_MODULE = """
import os
import time
from datetime import UTC, datetime, timedelta

from botocore.credentials import RefreshableCredentials

def credentials(vault, password):
    assert (vault, password) == ("orders", "canary-password")

    def fetch():
        now = datetime.now(UTC)
        return {
            "access_key": f"ASIAPROVIDED{os.getpid()}AT{now:%H%M%S%f}",
            "secret_key": "canary-secret-key",
            "token": "canary-token",
            "expiry_time": (now + timedelta(seconds=1)).isoformat(),
        }

    made = RefreshableCredentials.create_from_metadata(fetch(), fetch, "vault")
    made._advisory_refresh_timeout = made._mandatory_refresh_timeout = 0
    return made
"""
_ARGUMENTS = '{"vault": "orders", "password": "canary-password"}'
_KEY = re.compile(r"Credential=([^/]*)/")


class Keys:
    """The access key ids that the services saw, by process and operation."""

    def __init__(self) -> None:
        self.seen: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, target: str, authorization: str) -> None:
        found = _KEY.search(authorization)
        assert found is not None
        self.seen[target].add(found[1])

    def all(self) -> set[str]:
        return {key for keys in self.seen.values() for key in keys}

    def most_of_a_process(self, *targets: str) -> int:
        """Return the largest number of keys that one process used for these operations."""
        of: defaultdict[str, set[str]] = defaultdict(set)
        for target in targets:
            for key in self.seen[target]:
                of[key.partition("AT")[0]].add(key)
        return max((len(keys) for keys in of.values()), default=0)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Keys:
    """Records the keys of the requests to services that start after it."""
    seen = Keys()
    respond, one_at_a_time = server.respond, server.one_at_a_time

    def note(state: Any, headers: Mapping[bytes, bytes], body: bytes) -> Any:
        seen.add(headers[b"x-amz-target"].decode(), headers[b"authorization"].decode())
        return respond(state, headers, body)

    def noting(app: server.App) -> server.App:
        inner = one_at_a_time(app)

        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            seen.add(environ["HTTP_X_AMZ_TARGET"], environ["HTTP_AUTHORIZATION"])
            return inner(environ, start_response)

        return answer

    monkeypatch.setattr(server, "respond", note)
    monkeypatch.setattr(server, "one_at_a_time", noting)
    return seen


@pytest.mark.core("credentials from a function")
@pytest.mark.long
def test_driver_executors_and_lease_agent_use_fresh_credentials(keys: Keys, tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "company_vault.py").write_text(_MODULE)
    folder = tmp_path / "driver"
    with EmbeddedKinesis(dynamodb=True) as kinesis, pushed_everywhere(kinesis):
        feed = EmbeddedFeed(kinesis)
        feed.create("orders", 2)
        options = options_for(kinesis.endpoint_url)
        query = {name: options[name] for name in options if not name.startswith("aws")} | {
            "streamName": "orders",
            "startingPosition": "trim_horizon",
            "trigger": "processingTime",
            "applicationName": tmp_path.name,
            "dynamodbEndpointUrl": kinesis.dynamodb_endpoint_url,
            "leaseMaxOutage": "5m",
            "failoverTime": "10s",
            "credentialsProvider": "company_vault:credentials",
            "credentialsProviderSecretArguments": _ARGUMENTS,
        }
        with Driver(
            folder,
            [query],
            trigger="as fast as possible",
            log_everything=True,
            environment=python_path(Path(__file__).parents[3], modules),
        ) as driver:

            def fresh() -> Mapping[str, int]:
                return {
                    "driver": keys.most_of_a_process("Kinesis_20131202.ListShards"),
                    "tasks": keys.most_of_a_process("Kinesis_20131202.GetRecords"),
                    "agent": keys.most_of_a_process("DynamoDB_20120810.UpdateItem"),
                }

            deadline = time.monotonic() + _DEADLINE_S
            while min(fresh().values()) < 3:
                assert driver.alive, driver.log[-4000:]
                assert time.monotonic() < deadline, (fresh(), driver.log[-4000:])
                feed.put("orders", 10)
                time.sleep(0.2)
            assert list((folder / "output-0").glob("*.parquet"))
            kinesis.faults.add(AccessDenied(), count=None)
            (result,) = driver.results()
            texts = {"standard output": driver.output, "standard error": driver.log}
    # The processes of driver, executor and agent.
    assert len({key.partition("AT")[0] for key in keys.all()}) >= 3
    assert all(key.startswith("ASIAPROVIDED") for key in keys.all())
    assert "AccessDenied" in result["failure"]
    assert result["progress"]
    for path in folder.glob("checkpoint-*/**/*"):
        if path.is_file():
            texts[str(path.relative_to(folder))] = path.read_text(errors="replace")
    assert any(name.startswith("checkpoint-0/offsets/") for name in texts)
    for name, text in texts.items():
        for secret in ("canary", "ASIAPROVIDED"):
            at = text.find(secret)
            assert at < 0, (name, text[max(0, at - 300) : at + 50])
