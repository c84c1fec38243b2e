"""Evaluates the policies of the guides as IAM does, for the calls that were made. `reference.json`
has the actions and resources of AWS's Service Authorization Reference. A policy allows a call if it
allows the action on each resource that the reference requires for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.servers.recording_proxy import Recorded

REFERENCE: Final = json.loads((Path(__file__).parent / "reference.json").read_text("utf-8"))
ACCOUNT: Final = "123456789012"
REGION: Final = "eu-west-1"


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """The permission for an action on a resource; `*` if the action has none."""

    action: str
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names in a test and those of the same things in the guides."""

    stream: str
    consumer: str = "orders-etl"


# --- From calls -----------------------------------------------------------------------------------


def needs(service: str, calls: Iterable[Recorded], names: Names) -> frozenset[Need]:
    """Return the permissions for these calls of a service."""
    return frozenset(need for call in calls for need in _needs(service, call, names))


def _needs(service: str, call: Recorded, names: Names) -> Iterator[Need]:
    action = _action(service, call)
    actions = REFERENCE["services"][service]["actions"]
    assert action in actions, f"{service}:{action} is not in reference.json: add it"
    types = [kind.rstrip("*") for kind in actions[action]]
    if not types:
        yield Need(f"{service}:{action}", "*")
    for kind in types:
        yield Need(f"{service}:{action}", _ARNS[kind](call, names))


def _action(service: str, call: Recorded) -> str:
    if service == "sts":
        return parse_qs(call.body.decode())["Action"][0]
    if service != "s3":
        return call.target.rpartition(".")[2]
    of_bucket = "/" not in unquote(urlsplit(call.path).path).strip("/")
    match call.method:
        case "GET" | "HEAD":
            return "ListBucket" if of_bucket else "GetObject"
        case "PUT":
            return "PutObject"
        case method:
            raise AssertionError(f"{method} {call.path} has no action here: add it")


def _stream_arn(call: Recorded, names: Names) -> str:
    """Also of a call that has only an iterator: each test has one stream."""
    return f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{names.stream}"


def _consumer_arn(call: Recorded, names: Names) -> str:
    """A call by name is authorized without the time of the registration, which only the ARN has."""
    body = json.loads(call.body)
    named = f"{_stream_arn(call, names)}/consumer/{names.consumer}"
    return named if "ConsumerARN" not in body else f"{named}:1700000000"


def _table_arn(call: Recorded, names: Names) -> str:
    table = json.loads(call.body)["TableName"]
    return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{table}"


def _object_arn(call: Recorded, _: Names) -> str:
    return f"arn:aws:s3:::{unquote(urlsplit(call.path).path).strip('/')}"


def _role_arn(call: Recorded, _: Names) -> str:
    return parse_qs(call.body.decode())["RoleArn"][0]


_ARNS: Final = {
    "stream": _stream_arn,
    "consumer": _consumer_arn,
    "table": _table_arn,
    "bucket": _object_arn,
    "object": _object_arn,
    "role": _role_arn,
}


# --- From guides ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """An action and a resource of a statement, either with wildcards."""

    action: str
    resource: str

    def allows(self, need: Need) -> bool:
        """Return whether the statement allows this, by IAM's rules for `*` and `?`."""
        return fnmatchcase(need.action.lower(), self.action.lower()) and (
            self.resource == "*" or _matches(need.resource, self.resource)
        )


def _matches(arn: str, pattern: str) -> bool:
    return re.fullmatch(_regular(pattern), arn) is not None


@cache
def _regular(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")


def policies(guide: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the policies among the JSON blocks of a guide."""
    for block in re.findall(r"```json\n(.*?)```", guide.read_text("utf-8"), re.DOTALL):
        found = json.loads(block)
        if isinstance(found, dict) and "Statement" in found:
            yield found


def grants(policy: Mapping[str, Any]) -> list[Grant]:
    """Return what a policy allows."""
    found = []
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        for action in _listed(statement["Action"]):
            service, _, name = action.partition(":")
            assert name in REFERENCE["services"][service]["actions"], f"no action {action}"
            found += [Grant(action, each) for each in _listed(statement["Resource"])]
    return found


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def refused(wanted: Iterable[Need], allowed: Iterable[Grant]) -> list[Need]:
    """Return the permissions that nothing allows."""
    allowed = list(allowed)
    return sorted(need for need in wanted if not any(grant.allows(need) for grant in allowed))


def unused(wanted: Iterable[Need], allowed: Iterable[Grant]) -> list[Grant]:
    """Return what is allowed and not needed."""
    wanted = list(wanted)
    return [grant for grant in allowed if not any(grant.allows(need) for need in wanted)]
