"""A botocore session and a service's client from the options, with credentials that refresh
themselves. boto3 would add only its resources, and 20 ms of imports to each start of a query.

Nothing here calls that service. Finding credentials may ask the machine's metadata service; a role
is assumed with the first call that is signed, and again before its credentials expire.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import botocore
import botocore.session
from botocore.config import Config
from botocore.configprovider import ConstantProvider
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    Credentials,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import BotoCoreError, CredentialRetrievalError, ProfileNotFound
from botocore.httpsession import get_cert_path
from botocore.utils import METADATA_BASE_URL

from spark_ssp.common.aws.error_translation import no_credentials, safe_text
from spark_ssp.common.aws.provided_credentials import (
    Loaded,
    RenewedCredentials,
    is_plain,
    note_use,
    provided_credentials,
)
from spark_ssp.common.aws.service_calls import Retrier, RetrySettings, retry_settings
from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.options.endpoints import ConnectionOptions

if TYPE_CHECKING:
    from botocore.client import BaseClient

_SOURCE: Final = "kinesis-ssp"
_ROLE_SESSION_NAME: Final = "spark-ssp"
_USER_AGENT: Final = (
    f"Botocore/{botocore.__version__} Python/{platform.python_version()} "
    f"{platform.system()}/{platform.release()}"
)
"""The user agent. botocore would compose it twice per call from thirty parts, a quarter of the cost
of a small call; it still does so if the user agent must contain an application id."""
_MAX_CONNECTIONS: Final = 128
"""Connections kept alive, opened on demand: as many as shards are worked on side by side."""
_MAX_LOADS: Final = 4
"""The number of attempts to find credentials."""
_METADATA_ATTEMPTS: Final = 3
_METADATA_CONNECT_S: Final = 1.0
_METADATA_READ_S: Final = 5.0
"""Attempts and time-outs of a call to the metadata service, which is on the machine: it accepts a
connection at once, but may take seconds to answer a burst of workers."""


Service = Literal["dynamodb", "kinesis", "s3", "sts"]


def create_client(
    service: Service, options: ConnectionOptions, *, endpoint_option: str = "endpointUrl"
) -> BaseClient:
    """A client that tries once and keeps its connections.

    `endpoint_option` is the name of the option that `options.endpoint_url` was read from.

    Raises AccessError when there are no credentials, InvalidOptionsError without a region or with
    half of a pair of keys. Calls raise CredentialsProviderError for keys that no client can use.
    """
    try:
        core, source = _core_session(options)
        config = client_config(options)
        if core.get_config_variable("user_agent_appid") is None:
            config = config.merge(Config(user_agent=_USER_AGENT))
        client = core.create_client(service, endpoint_url=options.endpoint_url, config=config)
    except BotoCoreError as error:
        raise no_credentials(f"{type(error).__name__} ({safe_text(str(error))})") from None
    except ValueError as error:
        # botocore's error for an endpoint that is not a URL.
        raise _invalid(
            endpoint_option,
            safe_text(str(error)),
            "a URL",
            "write scheme, host and, if need be, port, as in http://localhost:4566",
        ) from None
    if isinstance(source, RenewedCredentials):
        note_use(client, source, assumes_role=options.role_arn is not None)
    return client


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Credentials that refresh themselves, and the region that AWS's configuration names."""

    credentials: Credentials
    region: str


def signer(options: ConnectionOptions) -> Signer:
    """Return credentials for requests that are signed outside of a client. Raises AccessError when
    there are no credentials, InvalidOptionsError without a region."""
    try:
        core, _ = _core_session(options)
        credentials = core.get_credentials()
    except BotoCoreError as error:
        raise no_credentials(f"{type(error).__name__} ({safe_text(str(error))})") from None
    if credentials is None:
        raise no_credentials("no credentials")
    return Signer(credentials=credentials, region=core.get_config_variable("region"))


def trusted_certificates(options: ConnectionOptions) -> str:
    """Return the path of the certificates that clients trust: those of AWS's configuration
    (`ca_bundle`, AWS_CA_BUNDLE), else those of the SDK."""
    core = botocore.session.get_session()
    if options.aws_profile is not None:
        core.set_config_variable("profile", options.aws_profile)
    configured = core.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    return str(configured or get_cert_path(True))


def _core_session(options: ConnectionOptions) -> tuple[botocore.session.Session, object]:
    """Return a session, and the credentials of its calls or of the assumption of its role."""
    if (options.aws_access_key_id is None) != (options.aws_secret_access_key is None):
        raise _invalid(
            "awsAccessKeyId, awsSecretAccessKey",
            "one without the other",
            "both or none",
            "give both, or neither to use AWS's default chain",
        )
    core = _patient_session()
    if options.aws_profile is not None:
        core.set_config_variable("profile", options.aws_profile)
    # AWS's Java SDK, and so most clusters, set AWS_REGION; botocore reads only AWS_DEFAULT_REGION.
    # It is the last, so that the user's own calls by boto3 are in the same region.
    region = options.region or core.get_config_variable("region") or os.environ.get("AWS_REGION")
    if not region:
        raise _invalid(
            "region",
            "no region, neither as an option nor in AWS's configuration",
            "the AWS region to work in",
            "set region to that of the stream, for example us-east-1, or AWS_DEFAULT_REGION",
        )
    core.set_config_variable("region", region)
    credentials = source = _found(options, core)
    if options.role_arn is not None:
        credentials = _assumed(options, options.role_arn, source, core, region)
    core.register_component("credential_provider", CredentialResolver([_Given(credentials)]))
    return core, source


def _found(options: ConnectionOptions, core: botocore.session.Session) -> Credentials:
    if options.credentials_provider is not None:
        provided: Any = provided_credentials(
            options.credentials_provider, options.credentials_provider_secret_arguments
        )
        return provided  # type: ignore[no-any-return]
    if options.aws_access_key_id is not None and options.aws_secret_access_key is not None:
        return Credentials(
            options.aws_access_key_id, options.aws_secret_access_key, options.aws_session_token
        )
    chain = core.get_component("credential_provider")

    def load() -> Loaded:
        credentials = _from_chain(chain, retry_settings(options))
        return Loaded(credentials, is_plain(credentials), credentials.method)

    found = load()
    if not found.is_plain:
        return found.credentials  # type: ignore[no-any-return]
    # Files of keys are rotated too, while queries run.
    renewed: Any = RenewedCredentials(load, loaded=found)
    return renewed  # type: ignore[no-any-return]


def _from_chain(chain: CredentialResolver, retry: RetrySettings) -> Credentials:
    """Return the credentials of AWS's default chain. A source of credentials that fails is asked
    again: a slow answer of a machine's or container's service does not mean that there are none.
    Raises AccessError."""

    def load() -> Credentials | None:
        # Not `get_credentials`, which would keep them: the session's own are those of `_Given`.
        try:
            credentials = chain.load_credentials()
        except (AttributeError, TypeError, ValueError) as error:
            # botocore's for a process that prints anything but a JSON object. The text may contain
            # a secret.
            raise CredentialRetrievalError(
                provider="the default chain",
                error_msg=f"{type(error).__name__} for what a source of it returned",
            ) from None
        if credentials is None and _metadata_service_answers():
            raise NoCredentialsReturnedError(
                provider="iam-role", error_msg="the machine's metadata service returned none"
            )
        return credentials

    retrier = Retrier(replace(retry, max_attempts=min(retry.max_attempts, _MAX_LOADS)))
    try:
        credentials = retrier.run(load, operation="the default chain", subject="AWS credentials")
    except NoCredentialsReturnedError:
        credentials = None
    if credentials is None:
        raise no_credentials("no credentials")
    return credentials


class NoCredentialsReturnedError(CredentialRetrievalError):
    """There is a metadata service, and botocore got no credentials from it: the machine has no
    role, or an answer took too long, which botocore does not distinguish."""


def _metadata_service_answers() -> bool:
    """Return whether something listens at the address of the machine's metadata service."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    url = urlsplit(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or METADATA_BASE_URL)
    try:
        with socket.create_connection((url.hostname or "", url.port or 80), _METADATA_CONNECT_S):
            return True
    except OSError:
        return False


def _patient_session() -> botocore.session.Session:
    """Return a session that waits longer for a machine's metadata service than botocore, which
    gives up for good after one attempt of a second: too little when many workers start together.

    A machine without the service is recognised as fast as before. AWS's configuration takes
    precedence.
    """
    core = botocore.session.get_session()
    configured = core.get_component("config_store")
    for name, value in (
        ("metadata_service_num_attempts", _METADATA_ATTEMPTS),
        # A variable of the session has to be one number.
        ("metadata_service_timeout", (_METADATA_CONNECT_S, _METADATA_READ_S)),
    ):
        if f"AWS_{name.upper()}" not in os.environ and name not in _scoped_config(core):
            configured.set_config_provider(name, ConstantProvider(value))
    return core


def _scoped_config(core: botocore.session.Session) -> Mapping[str, Any]:
    """Return the profile of AWS's configuration; none if the profile is missing, which the
    credentials' error names."""
    try:
        return core.get_scoped_config()
    except ProfileNotFound:
        return {}


class _Given(CredentialProvider):
    """Hands out the credentials that were found or made here."""

    METHOD = "spark-ssp"
    CANONICAL_NAME = None

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> Credentials:
        return self._credentials


def _assumed(
    options: ConnectionOptions,
    role_arn: str,
    source: Credentials,
    core: botocore.session.Session,
    region: str,
) -> DeferredRefreshableCredentials:
    def create_sts(service: str, **keys: Any) -> BaseClient:
        return core.create_client(
            service,
            region_name=region,
            endpoint_url=options.sts_endpoint_url,
            config=client_config(options),
            **keys,
        )

    extra = {"RoleSessionName": options.role_session_name or _ROLE_SESSION_NAME}
    if options.role_external_id is not None:
        extra["ExternalId"] = options.role_external_id
    fetcher = AssumeRoleCredentialFetcher(create_sts, source, role_arn, extra_args=extra)
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def client_config(options: ConnectionOptions) -> Config:
    """Return the SDK's configuration: kept connections, the options' time-outs, no retries."""
    return Config(
        connect_timeout=options.connect_timeout_ms / 1000,
        read_timeout=options.read_timeout_ms / 1000,
        max_pool_connections=_MAX_CONNECTIONS,
        tcp_keepalive=True,
        retries={"total_max_attempts": 1, "mode": "standard"},
        user_agent_extra="spark-ssp",
    )


def _invalid(option: str, found: str, expected: str, next_step: str) -> InvalidOptionsError:
    problem = OptionProblem(option=option, found=found, expected=expected, next_step=next_step)
    return InvalidOptionsError(_SOURCE, [problem])
