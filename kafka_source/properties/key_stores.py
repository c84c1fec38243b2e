"""Translates Java's key stores and trust stores into files that librdkafka accepts: keys as PEM or
PKCS#12, authorities only as PEM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_ssp.common.options.spec import BadValueError, Fault, shown
from spark_ssp.kafka_source.properties.property_draft import KEYSTORE, PropertyDraft

_KEYSTORE_TYPE: Final = "ssl.keystore.type"
_TRUSTSTORE: Final = "ssl.truststore.location"
_TRUSTSTORE_TYPE: Final = "ssl.truststore.type"
_TRUSTSTORE_SECRET: Final = "ssl.truststore.password"
_TYPES: Final = ("", "JKS", "PKCS12", "PEM")


def read_stores(given: Mapping[str, str], draft: PropertyDraft) -> None:
    """Translate the properties of stores."""
    _translate_keystore(given, draft)
    _translate_truststore(given, draft)


def _translate_keystore(given: Mapping[str, str], draft: PropertyDraft) -> None:
    keystore, kind = given.get(KEYSTORE), given.get(_KEYSTORE_TYPE, "").upper()
    if kind not in _TYPES:
        draft.add_faults(_KEYSTORE_TYPE, _unknown_type(given[_KEYSTORE_TYPE], "PKCS12 or PEM"))
    elif keystore and kind == "PEM":
        draft.put("ssl.certificate.location", keystore, KEYSTORE)
        draft.put("ssl.key.location", keystore, KEYSTORE)
    elif kind == "JKS" or (not kind and (keystore or "").lower().endswith(".jks")):
        draft.add_problem(
            KEYSTORE,
            found="a Java key store (JKS)",
            expected="a PKCS#12 file, or PEM files by kafka.ssl.certificate.location and "
            "kafka.ssl.key.location",
            next_step="convert it by keytool -importkeystore -srckeystore <it> -destkeystore "
            "<new>.p12 -deststoretype PKCS12, give the new file, and set "
            "kafka.ssl.keystore.type=PKCS12; only set the type if the file is PKCS#12 already, the "
            "default of keytool since Java 9",
        )
    elif keystore:
        draft.put(KEYSTORE, keystore, KEYSTORE)


def _translate_truststore(given: Mapping[str, str], draft: PropertyDraft) -> None:
    authorities, kind = given.get(_TRUSTSTORE), given.get(_TRUSTSTORE_TYPE, "").upper()
    if kind not in _TYPES:
        draft.add_faults(_TRUSTSTORE_TYPE, _unknown_type(given[_TRUSTSTORE_TYPE], "PEM"))
    elif authorities and kind == "PEM":
        draft.put("ssl.ca.location", authorities, _TRUSTSTORE)
    elif authorities or kind in ("JKS", "PKCS12"):
        draft.add_problem(
            _TRUSTSTORE,
            found="a Java trust store",
            expected="the authorities' certificates as PEM, by kafka.ssl.ca.location",
            next_step="export them by keytool -list -rfc -keystore <it> > ca.pem, set that file by "
            "kafka.ssl.ca.location, and remove kafka.ssl.truststore.*",
        )
    if given.get(_TRUSTSTORE_SECRET):
        draft.add_problem(
            _TRUSTSTORE_SECRET,
            found="a password of certificates, which are public",
            expected="the authorities' certificates as PEM, by kafka.ssl.ca.location",
            next_step="remove it",
        )


def _unknown_type(found: str, expected: str) -> BadValueError:
    return BadValueError(
        Fault(found=shown(found), expected=expected, next_step=f"convert the file to {expected}")
    )
