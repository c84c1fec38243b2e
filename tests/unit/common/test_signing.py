"""Signatures of AWS requests."""

from __future__ import annotations

from datetime import UTC, datetime

from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.aws.botocore_bypass import RequestSigner, Scope, signing_key
from tests.support.fakes.direct_calls import signed_by_the_sdk

TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=40)
PLAIN = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)


@given(
    keys=st.tuples(TEXT, TEXT, st.none() | TEXT),
    scope=st.builds(lambda region, service: Scope(region=region, service=service), PLAIN, PLAIN),
    body=st.binary(max_size=300),
    moment=st.integers(946_684_800, 4_102_444_800),
    target=PLAIN,
    port=st.integers(1, 65535),
)
def test_a_signature_is_what_botocore_makes_of_it(
    keys: tuple[str, str, str | None],
    scope: Scope,
    body: bytes,
    moment: int,
    target: str,
    port: int,
) -> None:
    access_key, secret_key, token = keys
    now = datetime.fromtimestamp(moment, UTC)
    url = f"https://kinesis.example:{port}/"
    request = AWSRequest("POST", url, headers={"X-Amz-Target": target}, data=body)
    expected = signed_by_the_sdk(
        request,
        Credentials(access_key, secret_key, token),
        service=scope.service,
        region=scope.region,
        now=now,
    )
    text = now.strftime("%Y%m%dT%H%M%SZ")
    host = "kinesis.example" if port == 443 else f"kinesis.example:{port}"
    headers = {"host": host, "x-amz-date": text, "x-amz-target": target}
    signer = RequestSigner(
        access_key=access_key,
        key=signing_key(secret_key, text[:8], scope),
        scope=scope,
        path="/",
        headers=headers | ({} if token is None else {"x-amz-security-token": token}),
    )
    assert signer.authorization(body) == expected
