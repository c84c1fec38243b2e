"""`spark-ssp doctor`: checks of the machine, of options and of the access to services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from spark_ssp.common.errors import SspError
from spark_ssp.common.logs import count_of
from spark_ssp.common.options.spec import OptionTable, read_options
from spark_ssp.kafka_source.options.parse import parse_options as parse_kafka
from spark_ssp.kafka_source.options.table import KAFKA_OPTIONS
from spark_ssp.kafka_source.properties.translation import PREFIX
from spark_ssp.kinesis_source.options.parse import parse_at_load
from spark_ssp.kinesis_source.options.table import KINESIS_OPTIONS
from spark_ssp.operations.checks.access_checks import check_kafka, check_kinesis
from spark_ssp.operations.checks.findings import Finding, Level, findings_of
from spark_ssp.operations.checks.machine_checks import check_machine
from spark_ssp.operations.commands.cli import FINDING
from spark_ssp.operations.terminal.connection import (
    Given,
    are_of_kafka,
    aws_options,
    kafka_options,
    options_file,
)
from spark_ssp.operations.terminal.environment import Environment
from spark_ssp.operations.terminal.output import Screen, write_json


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@options_file
@kafka_options
@aws_options
@click.pass_context
def doctor_command(context: click.Context, as_json: bool, aws: Given, kafka: Given) -> None:
    """Check this machine, and, with --options or other options, a query's options and its access.

    With options of the Kafka source, such as subscribe, the checks are those of kafka-ssp.

    Exit code 1 if there is a problem: a query would fail.
    """
    environment: Environment = context.obj
    findings = list(check_machine())
    given = {**aws.options, **kafka.options}
    if are_of_kafka(given):
        aws, kafka = Given(), Given(options=given)
    if aws.options:
        findings += _kinesis(aws.options, environment)
    if kafka.options:
        findings += _kafka(kafka.options)
    if as_json:
        write_json(
            [
                {
                    "check": one.check,
                    "level": str(one.level),
                    "found": one.found,
                    "remedy": one.remedy,
                }
                for one in findings
            ]
        )
    else:
        _show(Screen(), findings)
    if any(finding.level is Level.PROBLEM for finding in findings):
        context.exit(FINDING)


def _kinesis(options: Mapping[str, str], environment: Environment) -> Iterator[Finding]:
    yield from _without_effect(KINESIS_OPTIONS, options)
    try:
        parsed = parse_at_load(options, pyspark_without_limits=_pyspark_without_limits())
    except SspError as error:
        yield from findings_of("options", error)
        return
    yield Finding(check="options", level=Level.OK, found="kinesis-ssp accepts them")
    yield from check_kinesis(parsed, environment.now_ms)


def _kafka(options: Mapping[str, str]) -> Iterator[Finding]:
    own = {name: options[name] for name in options if not name.strip().lower().startswith(PREFIX)}
    yield from _without_effect(KAFKA_OPTIONS, own)
    try:
        parsed = parse_kafka(options, pyspark_without_limits=_pyspark_without_limits())
    except SspError as error:
        yield from findings_of("options", error)
        return
    yield Finding(check="options", level=Level.OK, found="kafka-ssp accepts them")
    yield from check_kafka(parsed)


def _pyspark_without_limits() -> str | None:
    try:
        from spark_ssp.common.spark.pyspark_api import PYSPARK_WITHOUT_LIMITS
    except ImportError:
        return None
    return PYSPARK_WITHOUT_LIMITS


def _without_effect(table: OptionTable, options: Mapping[str, str]) -> Iterator[Finding]:
    reading = read_options(table, options)
    names = [*(option.name for option in reading.without_effect), *reading.unknown]
    if names:
        yield Finding(
            check="options",
            level=Level.WARNING,
            found=f"without effect: {', '.join(sorted(names))}",
            remedy="remove them",
        )


def _show(screen: Screen, findings: list[Finding]) -> None:
    for finding in findings:
        style = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
        screen.line(
            f"{finding.level:<8} {finding.check}: {finding.found}", style.get(finding.level, "")
        )
        if finding.remedy:
            screen.line(f"         -> {finding.remedy}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    screen.line(f"{count_of(problems, 'problem')}, {count_of(warnings, 'warning')}")
