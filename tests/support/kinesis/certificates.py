"""Certificates for servers and clients on loopback, of an authority made for them."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Final, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

_HOST: Final = "127.0.0.1"
_AUTHORITY: Final = "Test Authority"


def write_certificates(folder: Path, *names: str) -> None:
    """`ca.pem`, an authority's certificate, and for each name a PEM of private key and
    certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "ca.pem").write_bytes(_pem(_certificate(_AUTHORITY, key, key)))
    for name in names:
        own = ec.generate_private_key(ec.SECP256R1())
        private = own.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (folder / f"{name}.pem").write_bytes(private + _pem(_certificate(name, own, key)))


def write_key_store(pem: Path, store: Path, password: str) -> None:
    """A PKCS#12 file of the private key and the certificate in a PEM."""
    text = pem.read_bytes()
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            pem.stem.encode(),
            cast(ec.EllipticCurvePrivateKey, serialization.load_pem_private_key(text, None)),
            x509.load_pem_x509_certificate(text),
            None,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(_AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(_HOST))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=key is signer, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
