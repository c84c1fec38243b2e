"""Secrets given as options reach the service and nothing else, whether a query works or fails."""

from __future__ import annotations

from pathlib import Path

from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import AccessDenied, DropConnection
from tests.support.fakes.scripted_http import Reply, ScriptedHttp
from tests.support.kinesis.fan_out_mode import python_path
from tests.support.kinesis.feeds import Feed
from tests.support.spark.drivers import Driver

CANARIES = {
    "awsAccessKeyId": "AKIACANARYCANARY0001",
    "awsSecretAccessKey": "canary-secret-access-key",
    "awsSessionToken": "canary-session-token",
}
ROLE = {
    "roleArn": "arn:aws:iam::000000000000:role/reader",
    "roleExternalId": "canary-external-id",
}
PROVIDER = {
    "credentialsProvider": "canary_keys:credentials",
    "credentialsProviderSecretArguments": '{"password": "canary-password"}',
}
MODULE = """
from botocore.credentials import Credentials

def credentials(password):
    return Credentials("AKIACANARYCANARY0002", "canary-provided-key", "canary-provided-token")

def failing(password):
    raise LookupError(password)
"""
RECORD = b"canary-record-data"

_REFUSED = Reply(
    status=403,
    content_type="text/xml",
    body=b"<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>"
    b"<Message>User: arn:aws:iam::1:user/me is not authorized</Message></Error></ErrorResponse>",
)


def test_no_secret_in_logs_plans_progress_offsets_or_errors(
    kinesis: EmbeddedKinesis, feed: Feed, options: dict[str, str], tmp_path: Path
) -> None:
    feed.create("orders")
    feed.create("closed")
    feed.put_data("orders", "key", RECORD)
    kinesis.faults.add(DropConnection(), operation="GetRecords", nth=2, count=2)
    kinesis.faults.add(AccessDenied(), stream="closed", count=None)
    mine = options | CANARIES
    provided = {name: options[name] for name in options.keys() - CANARIES.keys()} | PROVIDER
    queries = [
        mine,
        mine | {"streamName": "closed"},
        provided,
        provided | {"credentialsProvider": "canary_keys:failing"},
    ]
    folder = tmp_path / "driver"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "canary_keys.py").write_text(MODULE)
    with ScriptedHttp(_REFUSED) as sts:
        queries.append(mine | ROLE | {"stsEndpointUrl": sts.url})
        environment = python_path(Path(__file__).parents[3], modules)
        with Driver(folder, queries, log_everything=True, environment=environment) as driver:
            results = driver.results()
            outputs = {"standard output": driver.output, "standard error": driver.log}
        assert ROLE["roleExternalId"].encode() in sts.requests[0].body
    works, denied, provider, failing, role = results
    assert works["failure"] is None
    assert [report["numInputRows"] for report in works["progress"]] == [1]
    assert "[access] stream closed" in denied["failure"]
    assert "[access] option roleArn" in role["failure"]
    assert provider["failure"] is None
    assert [report["numInputRows"] for report in provider["progress"]] == [1]
    assert "[access] option credentialsProvider (canary_keys:failing)" in failing["failure"]
    assert "raised LookupError" in failing["failure"]
    assert "kinesis-ssp" in works["plan"]
    assert " INFO org.apache.spark.sql.execution" in driver.log
    assert "query starts from TRIM_HORIZON: stream orders with " in driver.log

    for path in folder.glob("checkpoint-*/**/*"):
        if path.is_file():
            outputs[str(path.relative_to(folder))] = path.read_text(errors="replace")
    assert any(name.startswith("checkpoint-0/offsets/") for name in outputs)
    secrets = [*CANARIES.values(), ROLE["roleExternalId"], RECORD.decode()]
    secrets += ["AKIACANARYCANARY0002", "canary-provided", "canary-password"]
    leaks = [
        (secret, name, text[max(0, text.find(secret) - 200) : text.find(secret) + 50])
        for name, text in outputs.items()
        for secret in secrets
        if secret in text
    ]
    assert leaks == []
