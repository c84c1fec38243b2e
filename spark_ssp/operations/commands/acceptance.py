"""`spark-ssp acceptance`: Proof that a Kinesis service answers as assumed.

The only command that writes: it creates a stream, and on request a lease table and a consumer, and
deletes them in any case.

Its report has no account id, no ARN, no credentials, no names of the account's and no data of
records: codes, shard ids, sequence numbers and times only.
"""

from __future__ import annotations

import platform
import re
import secrets
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from spark_ssp.common.logs import count_of
from spark_ssp.common.times import seconds_text, time_text
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.operations.acceptance.account import Kind, connect_account, deletion_command
from spark_ssp.operations.acceptance.queries import query_options
from spark_ssp.operations.acceptance.steps import Plan, Proof, Result, Status, prove
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    dynamodb_connection,
    options_file,
)
from spark_ssp.operations.cli import (
    FINDING,
    INTERRUPTED,
    Environment,
    FailureError,
    Screen,
    note,
    write_file,
    write_json,
)

PREFIX: Final = "spark-ssp-acceptance"
"""The beginning of the names of everything that is made, for policies."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@click.command("acceptance")
@click.option("--lease-table", is_flag=True, help="Create a lease table in DynamoDB, too.")
@click.option("--fan-out", is_flag=True, help="Register a consumer and subscribe to shards, too.")
@click.option("--yes", is_flag=True, help="Start without asking.")
@click.option(
    "--report",
    "file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="The file for the report; default: a new one in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@options_file
@aws_options
@click.pass_context
def acceptance_command(
    context: click.Context,
    lease_table: bool,
    fan_out: bool,
    yes: bool,
    file: Path | None,
    as_json: bool,
    aws: Given,
) -> None:
    """Prove that this service answers as spark-ssp assumes: write, read, reshard, query.

    Shows first its plan and the cost, and asks. Everything that it creates is
    deleted at the end, also after an error or Ctrl-C.

    Exit code 1 if a check failed or something was left behind.
    """
    environment: Environment = context.obj
    kinesis, dynamodb = connection(aws), dynamodb_connection(aws)
    name = f"{PREFIX}-{secrets.token_hex(8)}"
    plan = Plan(name=name, lease_table=lease_table, fan_out=fan_out)
    region = connect(kinesis).client.meta.region_name
    reached = cli_options(
        region,
        {Kind.STREAM: kinesis.endpoint_url, Kind.TABLE: dynamodb.endpoint_url},
        kinesis.aws_profile,
    )
    account = connect_account(
        kinesis,
        dynamodb,
        monotonic=environment.monotonic,
        sleep=environment.sleep,
    )
    place = f"region {region}" + (f" at {kinesis.endpoint_url}" if kinesis.endpoint_url else "")
    for line in announcement(plan, place, reached):
        click.echo(line, err=True)
    if not yes:
        _ask()
    target = Path(f"{name}.md") if file is None else file
    began_ms = environment.now_ms()
    write_file(target, "The acceptance has not ended.\n", "--report")
    with _signals_as_ctrl_c():
        proof = prove(plan, account, query_options(name, kinesis), note)
    facts = {
        "begun": time_text(began_ms),
        "service": "another endpoint" if kinesis.endpoint_url else f"AWS, {region}",
        "requested": ", ".join(
            [*(["lease table"] if lease_table else []), *(["fan-out"] if fan_out else [])]
        )
        or "neither lease table nor fan-out",
        "spark-ssp": version("spark-ssp"),
        "botocore": version("botocore"),
        "Python": f"{platform.python_version()}, {platform.system()}",
    }
    for line in left_behind(proof, reached):
        click.echo(line, err=True)
    if as_json:
        write_json({**document(proof, reached), "report": str(target)})
    else:
        _show(Screen(), proof, target)
    write_file(target, report_text(proof, facts), "--report")
    if proof.interrupted and not proof.left:
        context.exit(INTERRUPTED)
    if not proof.passed:
        context.exit(FINDING)


def _ask() -> None:
    try:
        agreed = click.confirm("Start?", err=True)
    except click.Abort:
        agreed = False
        click.echo(err=True)
    if not agreed:
        raise FailureError("not confirmed, and nothing was created; --yes starts without asking")


def _show(screen: Screen, proof: Proof, file: Path) -> None:
    screen.table(("STEP", "CHECK", "RESULT"), rows(proof.results), wrapped=("CHECK",))
    for line in findings(proof):
        screen.line(line, "bold red")
    screen.line(summary(proof))
    screen.line(f"report: {file}")


@contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Treat the signals that end a process as Ctrl-C, after which everything is deleted."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- Texts ---------------------------------------------------------------------------------------


_SHARDS: Final = 5
_SHARD_HOUR: Final = 0.015
_CONSUMER_SHARD_HOUR: Final = 0.015
_ON_DEMAND_HOUR: Final = 0.04
_REQUESTS: Final = 0.001
"""List prices of us-east-1 in USD, as of 2025: every hour that has begun counts in full, also for a
shard that is closed in it. Requests and data cost less than a tenth of a cent."""

Connection = Mapping[Kind, str]
"""The options of the AWS CLI that reach the service of each kind of thing."""

_ARN: Final = re.compile(r"arn:[\w*-]+:\S*")
_ACCOUNT: Final = re.compile(r"(?<![\w-])\d{12}(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A part of the price, in USD."""

    item: str
    usd: float


def costs(plan: Plan) -> tuple[Cost, ...]:
    """Return the most that a run costs, if it ends within an hour."""
    shards = f"{_SHARDS} shards for an hour"
    found = [
        Cost(item=shards, usd=_SHARDS * _SHARD_HOUR),
        Cost(item="an on-demand stream for an hour", usd=_ON_DEMAND_HOUR),
        Cost(item="requests and data", usd=_REQUESTS),
    ]
    if plan.fan_out:
        consumer = _SHARDS * _CONSUMER_SHARD_HOUR
        found.append(Cost(item=f"a consumer of {shards}", usd=consumer))
    return tuple(found)


def announcement(plan: Plan, place: str, connection: Connection) -> Iterator[str]:
    """Yield the lines that are shown before anything is created."""
    yield f"spark-ssp acceptance creates in {place}, and deletes at the end:"
    yield f"  stream {plan.name}, of 2 shards, with about 60 records"
    if plan.fan_out:
        yield "  a registered consumer of it"
    if plan.lease_table:
        yield f"  table {plan.name}, on demand, with a row"
    parts = ", ".join(f"{cost.item} {cost.usd:.3f}" for cost in costs(plan))
    total = sum(cost.usd for cost in costs(plan))
    yield f"It takes about ten minutes and costs at most {total:.2f} USD in us-east-1 ({parts}),"
    yield "up to twice that in other regions, and nothing at a local service."
    yield "If this process is killed, delete these yourself:"
    for thing in plan.things:
        yield f"  {deletion_command(thing, connection[thing.kind])}"


def rows(results: Sequence[Result]) -> list[tuple[str, str, str]]:
    """Return the rows of the table: step, check, result."""
    return [(result.step, result.check.value, result.status.value) for result in results]


def findings(proof: Proof) -> Iterator[str]:
    """Yield a line for each deviation and each step that failed."""
    for result in proof.results:
        for text in result.found:
            yield scrubbed(f"{result.step}: {name_of(result)}: {text}")
    for failure in proof.failures:
        yield scrubbed(f"{failure.step}: {failure.reason}")
    if proof.interrupted:
        yield "ended by Ctrl-C or a signal"


def left_behind(proof: Proof, connection: Connection) -> Iterator[str]:
    """Yield the things that could not be deleted, with the command that deletes it."""
    for left in proof.left:
        yield f"left behind: {left.thing.kind} {left.thing.name}: {scrubbed(left.reason)}"
        yield f"  {deletion_command(left.thing, connection[left.thing.kind])}"


def summary(proof: Proof) -> str:
    """Return the last line."""
    counts = Counter(result.status for result in proof.results)
    parts = [f"{counts[status]} {status.value}" for status in Status if counts[status]]
    left = f", {count_of(len(proof.left), 'thing')} left behind" if proof.left else ""
    return f"{', '.join(parts)}{left}, in {seconds_text(proof.took_s)}"


def document(proof: Proof, connection: Connection) -> dict[str, Any]:
    """Return the JSON document."""
    return {
        "passed": proof.passed,
        "interrupted": proof.interrupted,
        "tookMs": round(proof.took_s * 1000),
        "checks": [
            {
                "step": result.step,
                "check": name_of(result),
                "assumed": result.check.value,
                "result": result.status.value,
                "found": [scrubbed(text) for text in result.found],
            }
            for result in proof.results
        ],
        "failures": [
            {"step": failure.step, "reason": scrubbed(failure.reason)} for failure in proof.failures
        ],
        "leftBehind": [
            {
                "kind": left.thing.kind.value,
                "name": left.thing.name,
                "reason": scrubbed(left.reason),
                "command": deletion_command(left.thing, connection[left.thing.kind]),
            }
            for left in proof.left
        ],
    }


def report_text(proof: Proof, facts: Mapping[str, str]) -> str:
    """Return the report to attach to an issue, in Markdown. `facts`: versions and place."""
    lines = ["# spark-ssp acceptance", "", summary(proof), ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "| step | check | result |", "| --- | --- | --- |"]
    lines += [f"| {step} | {check} | {result} |" for step, check, result in rows(proof.results)]
    found = list(findings(proof))
    if found:
        lines += ["", "## Found", "", *(f"- {text}" for text in found)]
    left = Counter(each.thing.kind for each in proof.left)
    if left:
        kinds = ", ".join(count_of(left[kind], kind.value) for kind in Kind if left[kind])
        lines += ["", f"Left behind: {kinds}."]
    return "\n".join(lines) + "\n"


def name_of(result: Result) -> str:
    """Return the name of a check for programs."""
    return result.check.name.lower().replace("_", "-")


def scrubbed(text: str) -> str:
    """Return a text without ARNs and account ids."""
    return _ACCOUNT.sub("***", _ARN.sub("arn:***", text))


def cli_options(
    region: str, endpoints: Mapping[Kind, str | None], profile: str | None = None
) -> Connection:
    """Return the options of the AWS CLI that reach the service of each kind of thing."""
    chosen = f"--region {region}" + (f" --profile {profile}" if profile else "")
    return {
        kind: chosen + (f" --endpoint-url {url}" if url else "") for kind, url in endpoints.items()
    }
