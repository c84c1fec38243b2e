"""Signs the tokens with which a client logs in to Amazon MSK as an AWS identity (IAM).

A token is a signed URL of the action kafka-cluster:Connect, in base64. Every process signs its
tokens with the credentials of AWS's default chain, of a profile or of a role, as Amazon's library
for the Java client does, or of the option `credentialsProvider`.
"""

from __future__ import annotations

import base64
import calendar
import os
import time
from functools import lru_cache
from typing import Final

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError

from spark_ssp.common.aws.clients import Signer, signer
from spark_ssp.common.aws.error_translation import (
    CredentialsProviderError,
    ProviderFailedError,
    Severity,
    quoted,
    refresh_error,
    severity_of,
)
from spark_ssp.common.errors import AccessError, InvalidOptionsError, ServiceUnavailableError
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.kafka_source.options.login_tokens import Log, TokenCallback, token_callback
from spark_ssp.kafka_source.options.logins import region_of

TOKEN_LIFETIME_S: Final = 900
"""The lifetime in the signature, as in Amazon's clients."""
TOKEN_EXPIRY_S: Final = 600
"""The age at which a token counts as expired: temporary credentials are refreshed ten minutes
before they expire, and a token does not outlive its credentials."""
_SERVICE: Final = "kafka-cluster"
_SUBJECT: Final = "kafka.sasl.mechanism=AWS_MSK_IAM"
_USER_AGENT: Final = "spark-ssp"


def iam_token_callback(
    login: ConnectionOptions, bootstrap_servers: str, *, logger: Log
) -> TokenCallback:
    """Return the function that a client calls for each token. Raises the errors of `iam_token`."""
    return token_callback(
        (login, bootstrap_servers),
        lambda: iam_token(login, bootstrap_servers),
        subject=_SUBJECT,
        logger=logger,
    )


def iam_token(login: ConnectionOptions, bootstrap_servers: str) -> tuple[str, float]:
    """Return a token for these brokers and its expiry time in seconds since 1970. Raises
    AccessError if there are no credentials or the role cannot be assumed, and
    ServiceUnavailableError if AWS does not answer."""
    found = _signer(os.getpid(), login)
    region = region_of(bootstrap_servers) or found.region
    url = f"https://kafka.{region}.amazonaws.com/"
    request = AWSRequest(method="GET", url=url, params={"Action": f"{_SERVICE}:Connect"})
    try:
        credentials = found.credentials.get_frozen_credentials()
        SigV4QueryAuth(credentials, _SERVICE, region, expires=TOKEN_LIFETIME_S).add_auth(request)
    except ProviderFailedError as error:
        raise refresh_error(error) from None
    except (BotoCoreError, ClientError, RuntimeError) as error:
        if severity_of(error) is not Severity.PERMANENT:
            raise _unavailable(quoted(error)) from None
        raise _no_credentials(quoted(error)) from None
    # Brokers log the user agent; it is not signed.
    request.params = {"User-Agent": _USER_AGENT}
    signed = request.prepare().url
    token = base64.urlsafe_b64encode(signed.encode()).decode().rstrip("=")
    signed_at = calendar.timegm(time.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ"))
    return token, float(signed_at + TOKEN_EXPIRY_S)


@lru_cache(maxsize=16)
def _signer(_process: int, login: ConnectionOptions) -> Signer:
    """Return the signer of a login, which is kept for the life of a process: credentials refresh
    themselves."""
    try:
        return signer(login)
    except InvalidOptionsError:
        raise AccessError(
            _SUBJECT,
            found="no AWS region, neither in kafka.bootstrap.servers nor in AWS's configuration",
            expected="the region of the brokers",
            next_step="name the brokers as Amazon MSK does (….kafka.<region>.amazonaws.com), or "
            "set the environment variable AWS_DEFAULT_REGION on the driver and on every executor",
        ) from None
    except CredentialsProviderError:
        raise
    except AccessError as error:
        raise _no_credentials(error.found) from None


def _unavailable(found: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        _SUBJECT,
        found=found,
        expected="credentials from AWS",
        next_step="wait, or check the connection to sts.<region>.amazonaws.com",
    )


def _no_credentials(found: str) -> AccessError:
    return AccessError(
        _SUBJECT,
        found=found,
        expected="AWS credentials on the driver and on every executor",
        next_step="attach a role to the machines (or pods), or set AWS_ACCESS_KEY_ID etc. "
        "in the environment of driver and executors, or name a profile or a role in "
        "kafka.sasl.jaas.config: …IAMLoginModule required awsProfileName=… (or awsRoleArn=…);",
    )
