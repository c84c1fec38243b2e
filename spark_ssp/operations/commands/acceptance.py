"""`spark-ssp acceptance`: Proof that a Kinesis service answers as assumed.

The only command that writes: it creates a stream, and on request a lease table and a consumer, and
deletes them in any case.
"""

from __future__ import annotations

import platform
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Final

import click

from spark_ssp.common.times import time_text
from spark_ssp.kinesis_source.client.boto3_client import connect
from spark_ssp.operations.acceptance import report
from spark_ssp.operations.acceptance.account import Kind, connect_account
from spark_ssp.operations.acceptance.queries import query_options
from spark_ssp.operations.acceptance.steps import Plan, Proof, prove
from spark_ssp.operations.arguments import (
    Given,
    aws_options,
    connection,
    dynamodb_connection,
    options_file,
)
from spark_ssp.operations.cli import FINDING, INTERRUPTED, FailureError
from spark_ssp.operations.terminal import Environment, Screen, note, write_json

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
    reached = report.cli_options(
        region,
        {Kind.STREAM: kinesis.endpoint_url, Kind.TABLE: dynamodb.endpoint_url},
        kinesis.aws_profile,
    )
    account = connect_account(
        kinesis,
        dynamodb,
        monotonic=lambda: environment.now_ms() / 1000,
        sleep=environment.sleep,
    )
    place = f"region {region}" + (f" at {kinesis.endpoint_url}" if kinesis.endpoint_url else "")
    for line in report.announcement(plan, place, reached):
        click.echo(line, err=True)
    if not yes:
        _ask()
    target = Path(f"{name}.md") if file is None else file
    began_ms = environment.now_ms()
    _write(target, "The acceptance has not ended.\n")
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
    for line in report.left_behind(proof, reached):
        click.echo(line, err=True)
    if as_json:
        write_json({**report.document(proof, reached), "report": str(target)})
    else:
        _show(Screen(), proof, target)
    _write(target, report.report_text(proof, facts))
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


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FailureError(f"{file}: {error.strerror}; name another file by --report") from None


def _show(screen: Screen, proof: Proof, file: Path) -> None:
    screen.table(("STEP", "CHECK", "RESULT"), report.rows(proof.results), wrapped=("CHECK",))
    for line in report.findings(proof):
        screen.line(line, "bold red")
    screen.line(report.summary(proof))
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
