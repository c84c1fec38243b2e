"""Asks STS who the credentials belong to."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from spark_ssp.common.aws.clients import create_client
from spark_ssp.common.aws.error_translation import DeniedCall, access_error, quoted, safe_text
from spark_ssp.common.aws.retries import Retrier, RetryLog, RetrySettings
from spark_ssp.common.aws.service_calls import ServiceCalls
from spark_ssp.common.errors import ServiceUnavailableError, SspError
from spark_ssp.common.options.endpoints import ConnectionOptions


class _StsCalls(ServiceCalls):
    def _translated(self, error: Exception, operation: str) -> SspError:
        place = safe_text(self._client.meta.endpoint_url)
        access = access_error(
            error,
            DeniedCall(
                subject=self._subject,
                service="sts",
                operation=operation,
                resource="this account",
                place=place,
            ),
        )
        return access or ServiceUnavailableError(
            self._subject,
            found=f"{quoted(error)} on {operation}",
            expected=f"an answer from {place}",
            next_step="check the network; a VPC without internet needs an endpoint for STS, only "
            "for this check and for roleArn",
        )


def caller_identity(connection: ConnectionOptions) -> str:
    """Return the ARN that AWS resolves the credentials to. GetCallerIdentity needs no permission.

    Raises AccessError, ServiceUnavailableError.
    """
    client = create_client("sts", replace(connection, endpoint_url=connection.sts_endpoint_url))
    log = RetryLog(time.monotonic)
    retry = RetrySettings(max_attempts=2, max_backoff=1.0)
    retrier = Retrier(retry, log=log, sleep=time.sleep, random=random.random)
    try:
        answer = _StsCalls(client, retrier, subject="credentials").ask("GetCallerIdentity", {})
    finally:
        client.close()
    return str(answer["Arn"])
