"""The settings of a lease agent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from spark_ssp.checkpoint.coordination.state import Settings
from spark_ssp.checkpoint.leases.table_schema import TableSettings
from spark_ssp.common.aws.retries import RetrySettings
from spark_ssp.common.options.endpoints import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of a lease agent. Its `repr` shows no secret; its pickle contains them and is
    sent only through the agent's pipe."""

    application: str
    """The application's name, after which KCL 3's own tables are named, regardless of the lease
    table's."""
    table: TableSettings
    coordination: Settings
    connection: ConnectionOptions
    """`endpoint_url` is `dynamodbEndpointUrl`."""


_ATTEMPTS: Final = 2
_CONNECT, _READ, _BACKOFF = 0.2, 0.25, 0.1
"""Shares of a call's time: 2 x (0.2 + 0.25) + 0.1 = 1."""
SHORTEST_MS: Final = 500
"""The minimum timeout: a healthy DynamoDB may need some hundred milliseconds, above all for a new
connection."""


def with_short_timeouts(
    connection: ConnectionOptions, failover_ms: int
) -> tuple[ConnectionOptions, RetrySettings]:
    """Return connection and retry settings under which a call takes at most a third of the failover
    time.

    Failover times below 7.5 s get the minimum timeouts instead. A renewal is due that often, and
    the coordinator repeats a failed one while the lease lasts: a longer call would only delay that.
    """
    budget = failover_ms / 3
    retry = RetrySettings(
        max_attempts=min(_ATTEMPTS, connection.retry_max_attempts),
        max_backoff=min(connection.retry_max_backoff_ms, budget * _BACKOFF) / 1000,
    )
    hurried = replace(
        connection,
        connect_timeout_ms=min(
            connection.connect_timeout_ms, max(SHORTEST_MS, int(budget * _CONNECT))
        ),
        read_timeout_ms=min(connection.read_timeout_ms, max(SHORTEST_MS, int(budget * _READ))),
    )
    return hurried, retry
