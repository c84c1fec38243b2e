"""Reads the lease table: the owner and the checkpoint of each shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import boto3

from spark_ssp import EmbeddedKinesis


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFact:
    """One row of the table. `owner`: the worker that reads the shard, during a handoff still the
    old one; None without one. `checkpoint`: the last record processed, or a word such as
    TRIM_HORIZON or SHARD_END."""

    owner: str | None
    checkpoint: str


class LeaseTable:
    """Reads the table of an application. The rows are those of the Kinesis Client Library."""

    def __init__(self, kinesis: EmbeddedKinesis, application: str) -> None:
        settings = kinesis.client_settings() | {"endpoint_url": kinesis.dynamodb_endpoint_url}
        self._client: Any = boto3.client("dynamodb", **settings)
        self._application = application

    def rows(self) -> dict[str, LeaseFact]:
        """By shard; empty while there is no table yet."""
        try:
            pages = self._client.get_paginator("scan").paginate(TableName=self._application)
            return {item["leaseKey"]["S"]: _fact(item) for page in pages for item in page["Items"]}
        except self._client.exceptions.ResourceNotFoundException:
            return {}


def _fact(item: Mapping[str, Mapping[str, str]]) -> LeaseFact:
    owner = item.get("checkpointOwner", item.get("leaseOwner"))
    return LeaseFact(
        owner=None if owner is None else owner["S"], checkpoint=item["checkpoint"]["S"]
    )
